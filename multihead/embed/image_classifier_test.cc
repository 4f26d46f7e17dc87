#include "multihead/embed/image_classifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead::embed {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kVit = fs::path(MULTIHEAD_SOURCE_DIR) / "tests" / "data" / "images" / "vit_classifier";

TEST(ImageClassifierTest, PixelsAndLogitsAreThoseOfTransformers) {
  const io::TensorMap expected = io::load_safetensors((kVit / "expected.safetensors").string());
  const ImageClassifier classifier = ImageClassifier::load(kVit.string());
  const auto expect_near = [](const Tensor& got, const Tensor& want) {
    ASSERT_EQ(got.shape(), want.shape());
    const auto a = got.to_vector<float>(), b = want.to_vector<float>();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << i;
  };
  expect_near(classifier.pixels(expected.at("images")), expected.at("pixels"));
  expect_near(classifier.logits(expected.at("images")), expected.at("logits"));
  EXPECT_EQ(classifier.label(1), "dog");
  EXPECT_THROW(classifier.logits(Tensor::zeros({1, 3, 12, 13}, Dtype::f32)), ShapeError);
}

TEST(ImageClassifierTest, IsSavedWithItsScaling) {
  const fs::path folder = fs::temp_directory_path() / concat("mh_saved_images_", getpid());
  ImageClassifier made(models::load_image_encoder(kVit.string()),
                       {.mean = {0.1, 0.2, 0.3}, .deviation = {0.5, 0.25, 1}});
  EXPECT_THROW(ImageClassifier::load(folder.string()), IoError);
  made.save(folder.string());
  const Tensor images = Tensor::full({1, 3, 12, 12}, 51, Dtype::f32);
  const auto pixels = ImageClassifier::load(folder.string()).pixels(images).to_vector<float>();
  EXPECT_FLOAT_EQ(pixels[0], 0.2F);
  EXPECT_NEAR(pixels[144], 0, 1e-7);
  EXPECT_FLOAT_EQ(pixels[288], -0.1F);
  const auto ours = made.logits(images).to_vector<float>(),
             read = ImageClassifier::load(folder.string()).logits(images).to_vector<float>();
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(read[i], ours[i], 1e-5);
  EXPECT_THROW(ImageClassifier(models::load_image_encoder(kVit.string()), {.mean = {0.1}}), ValueError);
  fs::remove_all(folder);
}

TEST(ImageClassifierTest, StepsItLacksAreRefusedByName) {
  const fs::path folder = fs::temp_directory_path() / concat("mh_images_", getpid());
  fs::copy(kVit, folder);
  const Json before = io::load_json((folder / "preprocessor_config.json").string());
  const auto error_with = [&](const char* key, const Json& value) -> std::string {
    Json changed = before;
    changed[key] = value;
    io::save_json((folder / "preprocessor_config.json").string(), changed);
    try {
      ImageClassifier::load(folder.string());
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error_with("size", 12), "accepted");
  EXPECT_EQ(error_with("do_center_crop", false), "accepted");
  EXPECT_THAT(error_with("size", 14), HasSubstr("\"size\" must be {\"height\":12,\"width\":12}"));
  EXPECT_THAT(error_with("do_center_crop", true), HasSubstr("do_center_crop"));
  EXPECT_THAT(error_with("image_processor_type", "DeiTImageProcessor"),
              HasSubstr("true, the default of the class, is not"));
  EXPECT_THAT(error_with("image_processor_type", "BeitImageProcessor"),
              HasSubstr("\"BeitImageProcessor\" is not supported"));
  EXPECT_EQ(error_with("image_processor_type", "SiglipImageProcessorFast"), "accepted");
  EXPECT_THAT(error_with("image_mean", Json(std::vector<Json>{0.5})), HasSubstr("a list of 3 numbers"));
  EXPECT_THAT(error_with("image_std", Json(std::vector<Json>{0, 1, 1})), HasSubstr("image_std"));
  fs::remove(folder / "preprocessor_config.json");
  EXPECT_THROW(ImageClassifier::load(folder.string()), IoError);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace multihead::embed
