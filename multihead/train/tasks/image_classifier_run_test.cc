#include "multihead/train/tasks/image_classifier_run.h"

#include <gmock/gmock.h>

#include "multihead/embed/image_classifier.h"
#include "multihead/embed/images/labelled_files.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/encoder_run.h"

namespace multihead::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ImageClassifierRunTest : public EncoderRunTest {
 protected:
  // Red, green, blue: 8 x 8 pixels with noise.
  ImageClassifierRunTest() { draw("train", 0), draw("valid", 1000); }

  void draw(const std::string& name, uint64_t seed) const {
    for (uint64_t i = 0; i < 48; ++i) {
      const char* const label = kLabels[i % 3];
      std::string pixels;
      for (uint64_t at = 0; at < 192; ++at) {
        const uint64_t bright = at % 3 == i % 3 ? 120 : 0;
        pixels += static_cast<char>(RandomStream{seed + i, 0}.bits(at) % 100 + bright);
      }
      fs::create_directories(root_ / name / label);
      write(name + "/" + label + "/" + std::to_string(i) + ".ppm", "P6 8 8 255\n" + pixels);
    }
  }

  ImageClassifierRun run(const std::string& name, const std::string& init = "") const {
    ImageClassifierRun run;
    run.settings = image_classifier_settings("tiny");
    run.data = path("train"), run.valid = path("valid"), run.folder = path(name);
    if (!init.empty()) start_from(run.settings, run.init = path(init));
    ImageClassifierSettings& s = run.settings;
    if (init.empty()) s.model.num_layers = 1, s.model.embed_dim = 16, s.model.patch_size = 4;
    s.batch = 8, s.steps = 60, s.lr = 1e-2, s.warmup_steps = 3, s.eval_every = 10;
    return run;
  }

  static constexpr const char* kLabels[] = {"2", "10", "left"};
};

TEST_F(ImageClassifierRunTest, LearnsAndLeavesAClassifierThatSaysWhatWasMeasured) {
  const ImageClassifierSummary summary = train_image_classifier(run("a"));
  EXPECT_EQ(summary.images, 48);
  EXPECT_THAT(summary.labels, ElementsAre("2", "10", "left"));
  EXPECT_GT(summary.validation->accuracy, 0.95);
  const auto classifier = embed::ImageClassifier::load(path("a"));
  EXPECT_EQ(classifier.encoder().config().image_size, 8);
  const embed::LabelledFiles valid = embed::list_images(path("valid"));
  const Tensor logits = classifier.logits(classifier.read(valid.files));
  int64_t right = 0;
  for (int64_t i = 0; i < 48; ++i) {
    const float* row = logits.data<float>() + i * 3;
    right += classifier.label(std::max_element(row, row + 3) - row) == valid.labels[static_cast<size_t>(i)];
  }
  EXPECT_DOUBLE_EQ(static_cast<double>(right) / 48, summary.validation->accuracy);
  EXPECT_EQ(io::load_json(path("a/config.json")).at("architectures").at(0).as_string(),
            "ViTForImageClassification");
  EXPECT_EQ(io::load_json(path("a/preprocessor_config.json")).at("size").at("height").as_int(), 8);
  EXPECT_THAT(bytes("a/README.md"), HasSubstr("| accuracy | "));
  EXPECT_THAT(bytes("a/README.md"), HasSubstr("pipeline_tag: image-classification"));
}

TEST_F(ImageClassifierRunTest, ResumesToTheSameBits) {
  expect_resumes(run("a"), [](const auto& r) { return train_image_classifier(r); });
}

TEST_F(ImageClassifierRunTest, FineTunesAModelForOtherLabelsAndSizes) {
  train_image_classifier(run("a"));
  fs::rename(root_ / "train" / "left", root_ / "train" / "corner");
  fs::rename(root_ / "valid" / "left", root_ / "valid" / "corner");
  write("train/corner/big.ppm", "P6 16 4 255\n" + std::string(192, 'x'));  // resized
  ImageClassifierRun r = run("b", "a");
  r.settings.steps = 1, r.settings.lr = 1e-30;
  EXPECT_THAT(train_image_classifier(r).labels, ElementsAre("2", "10", "corner"));
  const auto before = models::load_image_encoder(path("a")), after = models::load_image_encoder(path("b"));
  EXPECT_EQ(after.patch_weight.to_vector<float>(), before.patch_weight.to_vector<float>());
  EXPECT_NE(after.classifier.weight.to_vector<float>(), before.classifier.weight.to_vector<float>());
  r.folder = path("c"), r.settings.model.image_size = 16;
  expect_error<ValueError>([&] { train_image_classifier(r); }, "its model has other sizes");
  r.settings.model.channels = 2;
  expect_error<ValueError>([&] { train_image_classifier(r); }, "--channels must be 3");
  EXPECT_FALSE(fs::exists(root_ / "c"));
}

TEST_F(ImageClassifierRunTest, GreyModelsReadGrey) {
  ImageClassifierRun r = run("grey");
  r.settings.model.channels = 1, r.settings.model.image_size = 12, r.settings.model.patch_size = 0;
  train_image_classifier(r);
  const auto classifier = embed::ImageClassifier::load(path("grey"));
  EXPECT_EQ(classifier.encoder().config().patch_size, 3);  // a quarter of the side
  EXPECT_EQ(classifier.read({path("train/2/0.ppm")}).shape(), Shape({1, 1, 12, 12}));
}

TEST_F(ImageClassifierRunTest, LearnsInBf16) {
  ImageClassifierRun r = run("a");
  r.settings.precision = Precision::bf16;
  EXPECT_GT(train_image_classifier(r).validation->accuracy, 0.95);
}

TEST_F(ImageClassifierRunTest, WrongFilesAreNamedAndNothingIsWritten) {
  const auto expect_refusal = [&](const std::string& name, const std::string& content,
                                  const std::string& text) {
    write(name, content);
    expect_error<FormatError>([&] { train_image_classifier(run("a")); }, text);
    fs::remove(root_ / name);
  };
  expect_refusal("train/2/x.png", "GIF89a", "train/2/x.png\": is neither PNG nor binary PPM");
  expect_refusal("valid/2/x.ppm", "P6 8 8 255\n12", "valid/2/x.ppm\": ends after 3 of 193 bytes");
  expect_refusal("valid/2/x.jpg", "x", "valid/2/x.jpg\": expected a PNG or PPM file");
  expect_refusal("train/x.ppm", "x", "train/x.ppm\": lies beside");
  fs::rename(root_ / "valid" / "left", root_ / "valid" / "right");
  expect_error<FormatError>([&] { train_image_classifier(run("a")); },
                            "the validation data has the label \"right\"");
  fs::create_symlink("nowhere", root_ / "train" / "2" / "x.ppm");
  expect_error<FormatError>([&] { train_image_classifier(run("a")); }, "train/2/x.ppm");
  fs::remove_all(root_ / "train" / "left"), fs::remove_all(root_ / "train" / "10");
  fs::remove(root_ / "train" / "2" / "x.ppm");
  expect_error<FormatError>([&] { train_image_classifier(run("a")); }, "all images have the label \"2\"");
  EXPECT_FALSE(fs::exists(root_ / "a"));
}

}  // namespace
}  // namespace multihead::train
