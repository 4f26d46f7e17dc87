#include "multihead/embed/images/image_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "multihead/core/error.h"
#include "multihead/embed/images/labelled_files.h"

namespace multihead::embed {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const fs::path kPictures = fs::path(MULTIHEAD_SOURCE_DIR) / "tests" / "data" / "images";

// The numbers are Pillow's, rows first.
TEST(ImageFileTest, IsResizedAsByPillow) {
  const Image image = {.height = 3,
                       .width = 5,
                       .pixels = {171, 206, 5,  206, 120, 131, 161, 73,  250, 13, 71,  98,  146, 104, 33,
                                  11,  0,   12, 38,  255, 48,  167, 192, 60,  72, 111, 67,  249, 45,  229,
                                  204, 216, 29, 100, 160, 126, 170, 173, 169, 15, 245, 142, 231, 69,  92}};
  EXPECT_THAT(resized(image, 4, 2).pixels,
              ElementsAreArray({176, 134, 116, 98,  84,  113, 104, 146, 69,  129, 103, 115,
                                92,  165, 65,  139, 135, 122, 145, 185, 106, 123, 169, 132}));
  EXPECT_THAT(resized(image, 2, 7).pixels,
              ElementsAreArray({111, 129, 8,   129, 153, 61, 149, 156, 122, 163, 118, 179, 72, 95,
                                113, 99,  84,  95,  185, 82, 107, 132, 135, 23,  100, 170, 65, 103,
                                191, 105, 169, 180, 128, 74, 190, 118, 123, 137, 127, 238, 60, 143}));
  EXPECT_THAT(resized(image, 4, 2, 3).pixels,
              ElementsAreArray({186, 137, 122, 92,  78,  116, 94,  146, 60,  136, 98,  120,
                                80,  168, 54,  149, 136, 128, 151, 190, 108, 122, 168, 135}));
  EXPECT_THAT(resized(image, 2, 7, 3).pixels,
              ElementsAreArray({105, 128, 3,   127, 155, 53, 156, 159, 127, 163, 115, 179, 57, 87,
                                108, 92,  78,  88,  190, 83, 108, 133, 134, 19,  91,  170, 61, 95,
                                197, 107, 169, 184, 123, 57, 206, 115, 119, 138, 129, 252, 50, 150}));
  EXPECT_EQ(resized(image, 3, 5).pixels, image.pixels);
  EXPECT_THROW(resized(image, 2, 2, 1), ValueError);
}

TEST(ImageFileTest, ReadsPpmInColoursAndGrey) {
  const fs::path file = fs::temp_directory_path() / concat("mh_image_", getpid(), ".ppm");
  std::ofstream(file) << "P6 # a comment\n2 1\n255\n" << std::string("\x01\x02\x03\xff\x80\x40", 6);
  const Image image = read_image(file.string());
  EXPECT_EQ(image.height, 1);
  EXPECT_EQ(image.width, 2);
  EXPECT_THAT(image.pixels, ElementsAre(1, 2, 3, 255, 128, 64));
  EXPECT_THAT(read_image(file.string(), 1).pixels, ElementsAre(2, 159));  // (77 r + 150 g + 29 b) / 256
  std::vector<uint8_t> planes(6);
  copy_planes(image, planes.data());
  EXPECT_THAT(planes, ElementsAre(1, 255, 2, 128, 3, 64));
  EXPECT_THROW(read_image(file.string(), 2), ValueError);
  fs::remove(file);
  EXPECT_THROW(read_image(file.string()), IoError);
}

// Three pixels of RGBA: opaque, of half opacity, clear. The numbers are Pillow's.
TEST(ImageFileTest, TransparencyIsLeftOutOrBlendedWithWhite) {
  constexpr unsigned char kFile[] = {
      0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52,
      0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x01, 0x08, 0x06, 0x00, 0x00, 0x00, 0x1b, 0xe0, 0x14,
      0xb4, 0x00, 0x00, 0x00, 0x13, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x38, 0x91, 0xc2, 0xf0,
      0x1f, 0x88, 0x1b, 0xb8, 0x44, 0xe4, 0x18, 0x00, 0x22, 0xcc, 0x04, 0x14, 0x89, 0x70, 0xfb, 0xb3,
      0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
  const fs::path file = fs::temp_directory_path() / concat("mh_image_", getpid(), ".png");
  std::ofstream(file) << std::string(std::begin(kFile), std::end(kFile));
  const auto pixels = [&](bool on_white) { return read_image(file.string(), 3, on_white).pixels; };
  try {
    EXPECT_THAT(pixels(false), ElementsAre(200, 100, 0, 200, 100, 0, 10, 20, 30));
    EXPECT_THAT(pixels(true), ElementsAre(200, 100, 0, 227, 177, 127, 255, 255, 255));
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("libpng"));  // built without the module
  }
  fs::remove(file);
}

TEST(ImageFileTest, FoldersAreLabelsAndNothingElseIsPassedOver) {
  const fs::path root = fs::temp_directory_path() / concat("mh_labels_", getpid());
  const auto error = [&]() -> std::string {
    try {
      list_images(root.string());
    } catch (const FormatError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_THAT(error(), HasSubstr("expected a folder with a folder of PNG or PPM files for each label"));
  fs::create_directories(root / "dog"), fs::create_directories(root / "cat"),
      fs::create_directories(root / ".git");
  EXPECT_THAT(error(), HasSubstr("cat\": has no image"));
  fs::copy(kPictures / "second.ppm", root / "cat" / "b.ppm"),
      fs::copy(kPictures / "first.png", root / "cat" / "a.PNG");
  std::ofstream(root / "cat" / ".DS_Store") << "x";
  fs::copy(kPictures / "second.ppm", root / "dog" / "a.ppm");
  EXPECT_THAT(list_images(root.string()).labels, ElementsAre("cat", "cat", "dog"));
  EXPECT_THAT(list_images(root.string()).files,
              ElementsAre(root / "cat" / "a.PNG", root / "cat" / "b.ppm", root / "dog" / "a.ppm"));
  std::ofstream(root / "dog" / "b.jpg") << "x";
  EXPECT_THAT(error(), HasSubstr("dog/b.jpg\": expected a PNG or PPM file"));
  fs::remove(root / "dog" / "b.jpg"), fs::create_directories(root / "dog" / "more");
  EXPECT_THAT(error(), HasSubstr("dog/more\": is a folder in the folder of a label"));
  fs::remove(root / "dog" / "more"), fs::copy(kPictures / "second.ppm", root / "c.ppm");
  EXPECT_THAT(error(), HasSubstr("c.ppm\": lies beside the folders of the labels"));
  fs::remove_all(root);
}

}  // namespace
}  // namespace multihead::embed
