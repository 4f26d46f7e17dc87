#include "multihead/models/image_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/gradcheck.h"
#include "multihead/testing/matchers.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

const fs::path kImages = kData / "images";

// Fixtures: tools/goldens/vit.py.
io::TensorMap expected_images(const std::string& name) {
  return io::load_safetensors((kImages / name / "expected.safetensors").string());
}

TEST(ImageEncoderTest, OutputsAreThoseOfTransformers) {
  const io::TensorMap plain = expected_images("vit");
  const ImageEncoder model = load_image_encoder((kImages / "vit").string());
  const Tensor features = model.features(plain.at("pixels"));
  expect_near(features, plain.at("features"), 1e-5);
  expect_near(model.pooled(features), plain.at("pooled"), 1e-5);
  const io::TensorMap headed = expected_images("vit_classifier");
  const ImageEncoder classifier = load_image_encoder((kImages / "vit_classifier").string());
  expect_near(classifier.logits(headed.at("pixels")), headed.at("logits"), 1e-5);
  EXPECT_EQ(classifier.config().labels, (std::vector<std::string>{"cat", "dog", "a third"}));
}

TEST(ImageEncoderTest, AreSavedAsTheyWereRead) {
  for (const std::string name : {"vit", "vit_classifier"}) {
    const std::string folder = (fs::temp_directory_path() / concat("mh_vit_", getpid(), "_", name)).string();
    ImageEncoder model = load_image_encoder((kImages / name).string());
    save_image_encoder(model, folder);
    EXPECT_TRUE(is_image_folder(folder));
    EXPECT_FALSE(is_encoder_folder(folder) || is_seq2seq_folder(folder));
    EXPECT_EQ(load_image_encoder(folder).config(), model.config());
    EXPECT_EQ(io::load_json(folder + "/config.json").at("model_type").as_string(), "vit");
    const io::SafetensorsFile theirs((kImages / name).string()), ours(folder);
    ASSERT_EQ(theirs.names(), ours.names());
    for (const std::string& tensor : ours.names()) {
      EXPECT_EQ(ours.info(tensor).shape, theirs.info(tensor).shape) << tensor;
      EXPECT_EQ(ours.load(tensor).to_vector<float>(), theirs.load(tensor).to_vector<float>()) << tensor;
    }
    fs::remove_all(folder);
  }
}

ImageEncoderConfig small_images() {
  return {.image_size = 6,
          .patch_size = 3,
          .channels = 2,
          .num_layers = 1,
          .num_heads = 2,
          .embed_dim = 6,
          .ffn_dim = 5,
          .pooler = false,
          .head = EncoderHead::classification,
          .num_labels = 3,
          .init_std = 0.5};
}

TEST(ImageEncoderTest, WhatNoFamilyHasIsSavedUnderOurNames) {
  ImageEncoderConfig config = small_images();
  config.pooler = true, config.labels = {"a", "b", "c"};
  Rng rng(1);
  ImageEncoder model(config, rng);
  const std::string folder = (fs::temp_directory_path() / concat("mh_own_vit_", getpid())).string();
  save_image_encoder(model, folder);
  EXPECT_EQ(family_of(config), "multihead_image_encoder");
  EXPECT_EQ(load_image_encoder(folder).config(), model.config());
  fs::remove_all(folder);
}

TEST(ImageEncoderTest, AnImageHasTheSameBitsInWhateverCompanyAndPacked) {
  const Tensor pixels = expected_images("vit_classifier").at("pixels");
  ImageEncoder model = load_image_encoder((kImages / "vit_classifier").string());
  const std::vector<float> all = model.logits(pixels).to_vector<float>();
  const int threads = num_threads();
  set_num_threads(3);
  for (int64_t i = 0; i < 3; ++i) {
    const std::vector<float> alone = model.logits(slice(pixels, 0, i, i + 1)).to_vector<float>();
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + 3 * i)) << i;
  }
  model.pack_weights();
  EXPECT_EQ(model.logits(pixels).to_vector<float>(), all);
  set_num_threads(threads);
  EXPECT_THROW(model.pack_weights(), ValueError);
  EXPECT_THROW(save_image_encoder(model, "/nonexistent"), ValueError);
}

TEST(ImageEncoderTest, GradientsAreThoseOfDifferences) {
  Rng rng(5);
  ImageEncoder model(small_images(), rng);
  nn::to(model, Dtype::f64);
  std::vector<Tensor> inputs = {Tensor::empty({2, 2, 6, 6}, Dtype::f64)};
  fill_normal(inputs[0], 0, 1, RandomStream{3, 0});
  for (const Tensor& parameter : {model.class_token, model.position_embedding, model.patch_weight,
                                  model.patch_bias, model.classifier.weight}) {
    inputs.push_back(parameter);
  }
  const auto result = testing::gradcheck_one(
      [&](const std::vector<Tensor>& x) {
        ImageEncoder changed = model;
        changed.class_token = x[1], changed.position_embedding = x[2], changed.patch_weight = x[3];
        changed.patch_bias = x[4], changed.classifier.weight = x[5];
        return changed.logits(x[0]);
      },
      inputs);
  EXPECT_TRUE(result) << result.message;
}

template <class F>
std::string image_error(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ImageEncoderTest, OtherSizesAndConfigurationsAreRefusedByName) {
  using ::testing::HasSubstr;
  const ImageEncoder model = load_image_encoder((kImages / "vit").string());
  EXPECT_THAT(image_error([&] {
                model.features(Tensor::zeros({1, 2, 12, 16}, Dtype::f32));
              }),
              HasSubstr("pixels must be [N, 2, 12, 12], got [1, 2, 12, 16]"));
  EXPECT_THROW(model.features(Tensor::zeros({0, 2, 12, 12}, Dtype::f32)), ShapeError);
  EXPECT_THROW(model.logits(Tensor::zeros({1, 2, 12, 12}, Dtype::f32)), ValueError);
  const Json config = config_of("images/vit");
  const auto error_with = [&](const char* key, const Json& value) {
    Json changed = config;
    changed[key] = value;
    return image_error([&] { image_encoder_config_from_json(changed, "config.json"); });
  };
  EXPECT_THAT(error_with("patch_size", 5), HasSubstr("image_size 12 is not divisible by patch_size 5"));
  EXPECT_THAT(error_with("image_size", Json(std::vector<Json>{12, 16})), HasSubstr("\"image_size\""));
  EXPECT_THAT(error_with("pooler_output_size", 7), HasSubstr("pooler_output_size"));
  EXPECT_THAT(error_with("architectures", Json(std::vector<Json>{"ViTForMaskedImageModeling"})),
              HasSubstr("supported are ViTModel and ViTForImageClassification"));
  EXPECT_THAT(image_error([&] { encoder_config_from_json(config, "config.json"); }),
              HasSubstr("an encoder of images"));
}

}  // namespace
}  // namespace multihead::models
