// LanguageModel::pack_weights().
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/models/files/gguf.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/language_model.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/files.h"
#include "multihead/testing/matchers.h"

namespace multihead::models {
namespace {

using nn::WeightDtype;

constexpr WeightDtype kPacked[] = {WeightDtype::bf16, WeightDtype::f16, WeightDtype::int8, WeightDtype::q8,
                                   WeightDtype::q4};

LanguageModelConfig wide_config(Positions positions) {
  LanguageModelConfig c;
  c.vocab_size = 67, c.context = 31, c.num_layers = 2, c.num_heads = 4, c.num_kv_heads = 2;
  c.embed_dim = 72, c.ffn_dim = 131, c.positions = positions, c.init_std = 0.1;
  return c;
}

// Every form of the matrices: biases and none, gated and plain, tied and not, norms of heads.
std::vector<LanguageModelConfig> matrix_forms() {
  std::vector<LanguageModelConfig> list = {wide_config(Positions::learned), wide_config(Positions::rotary),
                                           wide_config(Positions::rotary), wide_config(Positions::alibi)};
  for (LanguageModelConfig& c : list) {
    if (c.positions != Positions::rotary) continue;
    c.norm = nn::NormKind::rms, c.gated = true, c.activation = Activation::silu;
    c.attention_bias = c.out_bias = c.ffn_bias = false;
  }
  list[2].tie_embeddings = false, list[2].qk_norm = true;
  list[3].norm_first = false, list[3].head_bias = true, list[3].tie_embeddings = false;
  return list;
}

LanguageModel model_of(const LanguageModelConfig& config) {
  Rng rng(5);
  return LanguageModel(config, rng);
}

Tensor prompt(int64_t batch, int64_t length) { return tokens(batch, length, 3, 67); }

// |a - b| / |a|
double distance(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double difference = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) difference += (x[i] - y[i]) * (x[i] - y[i]), size += x[i] * x[i];
  return std::sqrt(difference / size);
}

TEST(PackedLanguageModelTest, LogitsAreNear) {
  for (const LanguageModelConfig& config : matrix_forms()) {
    const Tensor x = prompt(2, 13);
    const Tensor exact = model_of(config)(x);
    for (const WeightDtype dtype : kPacked) {
      LanguageModel model = model_of(config);
      model.pack_weights(dtype);
      EXPECT_EQ(model.weight_dtype(), dtype);
      const double error = distance(exact, model(x));
      EXPECT_LT(error, dtype == WeightDtype::q4 ? 0.25 : 0.04) << kernels::name(dtype);
      EXPECT_GT(error, dtype == WeightDtype::f16 ? 1e-5 : 1e-4) << kernels::name(dtype);
    }
    LanguageModel same = model_of(config);
    same.pack_weights(WeightDtype::f32);
    EXPECT_EQ(distance(exact, same(x)), 0);
    EXPECT_THROW(same.pack_weights(WeightDtype::q8), ValueError);
    EXPECT_THROW(save_language_model(same, ::testing::TempDir() + "/packed_f32"), ValueError);
    nn::DecodeState state = same.make_state(2);
    EXPECT_EQ(distance(slice(exact, 1, 0, 1), same(slice(x, 1, 0, 1).contiguous(), {.state = &state})), 0);
  }
}

TEST(PackedLanguageModelTest, ARowHasTheSameBitsAloneInABatchAndTokenByToken) {
  for (const LanguageModelConfig& config : matrix_forms()) {
    for (const WeightDtype dtype : kPacked) {
      LanguageModel model = model_of(config);
      model.pack_weights(dtype);
      const Tensor x = prompt(3, 11), whole = model(x);
      const Tensor alone = slice(x, 0, 1, 2).contiguous();
      EXPECT_EQ(distance(model(alone), slice(whole, 0, 1, 2)), 0) << kernels::name(dtype);
      nn::DecodeState state = model.make_state(1);
      for (int64_t t = 0; t < 11; ++t) {
        const Tensor one = model(slice(alone, 1, t, t + 1).contiguous(), {.state = &state});
        EXPECT_EQ(distance(one, slice(slice(whole, 0, 1, 2), 1, t, t + 1)), 0)
            << kernels::name(dtype) << ' ' << t;
      }
    }
  }
}

TEST(PackedLanguageModelTest, TheMemoryFalls) {
  LanguageModelConfig config = matrix_forms()[1];
  config.vocab_size = 96, config.embed_dim = 128, config.ffn_dim = 256;
  for (const WeightDtype dtype : kPacked) {
    LanguageModel model = model_of(config);
    const Tensor weight = model.layers[0].feed_forward.fc1.weight, words = model.head_weight;
    const size_t f32 = model.weight_bytes(), layers = f32 - words.bytes();
    const Tensor norm = model.final_norm.weight;
    model.pack_weights(dtype);
    EXPECT_TRUE(weight.is_unique());
    EXPECT_TRUE(words.is_unique());
    const bool half = dtype == WeightDtype::bf16 || dtype == WeightDtype::f16;
    const auto bits = half ? 16 : dtype == WeightDtype::q4 ? 5 : dtype == WeightDtype::q8 ? 8.5 : 8.4;
    const auto expected =
        static_cast<double>(layers) * bits / 32 + static_cast<double>(words.bytes()) * (half ? 16 : 8.5) / 32;
    EXPECT_NEAR(static_cast<double>(model.weight_bytes()), expected, 0.03 * expected) << kernels::name(dtype);
    EXPECT_TRUE(model.final_norm.weight.is_same(norm));
    for (const nn::NamedTensor& p : nn::named_parameters(model)) EXPECT_EQ(p.tensor.rank(), 1) << p.name;
  }
}

TEST(PackedLanguageModelTest, CannotBeTrainedOrPackedAgain) {
  LanguageModel model = model_of(matrix_forms()[0]);
  model.pack_weights(WeightDtype::q4);
  const Tensor x = prompt(1, 5);
  EXPECT_GT(model.loss(x, x).item(), 0);
  {
    const Tape tape;
    EXPECT_THROW(model.loss(x, x), ValueError);
  }
  EXPECT_THROW(model.pack_weights(WeightDtype::q8), ValueError);
  EXPECT_THROW(nn::to(model, Dtype::f64), ValueError);
  LanguageModel exact = model_of(matrix_forms()[0]);
  nn::to(exact, Dtype::f64);
  EXPECT_THROW(exact.pack_weights(WeightDtype::q8), ValueError);
  const LanguageModel copy = nn::clone(model);
  EXPECT_EQ(distance(copy(x), model(x)), 0);
}

TEST(PackedLanguageModelTest, SavesAndLoads) {
  const std::string folder = ::testing::TempDir() + "/packed_language_model";
  for (const LanguageModelConfig& config : matrix_forms()) {
    for (const WeightDtype dtype : kPacked) {
      std::filesystem::remove_all(folder);
      LanguageModel model = model_of(config);
      model.pack_weights(dtype);
      save_language_model(model, folder);
      const Tensor x = prompt(2, 9), y = model(x);
      for (const WeightDtype asked : {WeightDtype::f32, dtype}) {
        LanguageModel loaded = load_language_model(folder, asked);
        EXPECT_EQ(loaded.weight_dtype(), dtype);
        EXPECT_EQ(loaded.weight_bytes(), model.weight_bytes());
        EXPECT_EQ(distance(y, loaded(x)), 0) << kernels::name(dtype);
      }
      const WeightDtype other = dtype == WeightDtype::q4 ? WeightDtype::q8 : WeightDtype::q4;
      EXPECT_THROW(load_language_model(folder, other), ValueError);
    }
  }
}

std::vector<float> logits_of(const LanguageModel& model) { return model(prompt(2, 5)).to_vector<float>(); }

TEST(PackedLanguageModelTest, PackedWhileReadIsPackedAfterwards) {
  for (const LanguageModelConfig& config : matrix_forms()) {
    const TemporaryFolder folder;
    LanguageModel model = model_of(config);
    save_language_model(model, folder.path());
    const LanguageModel packed = load_language_model(folder.path(), {}, true);
    EXPECT_EQ(packed.packed_dtype(), WeightDtype::f32);
    EXPECT_EQ(logits_of(packed), logits_of(model));
    EXPECT_FALSE(load_language_model(folder.path(), WeightDtype::f32).packed_dtype());
    for (const WeightDtype dtype : kPacked) {
      LanguageModel want = model_of(config);
      want.pack_weights(dtype);
      LanguageModel got = load_language_model(folder.path(), dtype);
      EXPECT_EQ(got.weight_bytes(), want.weight_bytes()) << kernels::name(dtype);
      EXPECT_EQ(logits_of(got), logits_of(want)) << kernels::name(dtype);
    }
  }
  LanguageModel llama = model_of(matrix_forms()[1]);
  const TemporaryFolder folder;
  save_gguf(llama, folder / "m.gguf", "F32", {});
  const LanguageModel packed = load_language_model(folder / "m.gguf", {}, true);
  EXPECT_EQ(packed.packed_dtype(), WeightDtype::f32);
  EXPECT_EQ(logits_of(packed), logits_of(llama));
  llama.pack_weights(WeightDtype::q8);
  EXPECT_EQ(logits_of(load_language_model(folder / "m.gguf", WeightDtype::q8, true)), logits_of(llama));
}

TEST(PackedLanguageModelTest, GgufFilesHaveTheBiasesThatLlamaCppReads) {
  LanguageModelConfig config = matrix_forms()[1];
  config.attention_bias = config.out_bias = config.ffn_bias = true;
  LanguageModel llama = model_of(config);
  Rng rng(5);
  for (const nn::NamedTensor& p : nn::named_parameters(llama))
    if (p.name.ends_with("bias")) p.tensor.copy_from(randn(p.tensor.shape(), rng));
  const TemporaryFolder folder;
  save_gguf(llama, folder / "m.gguf", "F32", {});
  EXPECT_EQ(logits_of(load_language_model(folder / "m.gguf", WeightDtype::f32)), logits_of(llama));
  config.ffn_bias = false, config.qk_norm = true;
  LanguageModel qwen3 = model_of(config);
  EXPECT_MESSAGE(save_gguf(qwen3, folder / "q.gguf", "F32", {}), ValueError, "a qwen3 with attention_bias");
}

TEST(PackedLanguageModelTest, GgufFilesOfF16AreComputedAsTheyLieWithTheBitsOfF32) {
  for (const bool tied : {true, false}) {
    LanguageModelConfig config = matrix_forms()[1];
    config.tie_embeddings = tied;
    LanguageModel model = model_of(config);
    const TemporaryFolder folder;
    save_gguf(model, folder / "m.gguf", "F16", {});
    LanguageModel halves = load_language_model(folder / "m.gguf");
    EXPECT_EQ(halves.weight_dtype(), WeightDtype::f16);
    LanguageModel wide = load_language_model(folder / "m.gguf", WeightDtype::f32);
    EXPECT_LT(halves.weight_bytes(), wide.weight_bytes() * 6 / 10);
    for (const int64_t length : {1, 13}) {
      const Tensor x = prompt(2, length);
      EXPECT_EQ(halves(x).to_vector<float>(), wide(x).to_vector<float>());
    }
    wide.pack_weights(WeightDtype::f16);
    EXPECT_EQ(halves(prompt(2, 5)).to_vector<float>(), wide(prompt(2, 5)).to_vector<float>());
  }
}

TEST(PackedLanguageModelTest, F16RefusesWeightsBeyondIt) {
  LanguageModel model = model_of(matrix_forms()[0]);
  model.layers[1].feed_forward.fc1.weight.data<float>()[3] = 70000;
  EXPECT_THROW(model.pack_weights(WeightDtype::f16), ValueError);
}

TEST(PackedLanguageModelTest, RefusesFilesThatDoNotFitTheConfig) {
  const std::string folder = ::testing::TempDir() + "/packed_language_model_files";
  std::filesystem::remove_all(folder);
  LanguageModel model = model_of(matrix_forms()[1]);
  model.pack_weights(WeightDtype::q4);
  save_language_model(model, folder);
  const io::TensorMap tensors = language_model_tensors(model);
  const auto refused = [&](const io::TensorMap& changed) {
    std::filesystem::remove(folder + "/model.safetensors");
    io::save_safetensors(folder + "/model.safetensors", changed);
    try {
      load_language_model(folder);
    } catch (const FormatError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused(tensors));
  for (const auto& [name, tensor] : tensors) {
    io::TensorMap changed = tensors;
    changed[name] = Tensor::zeros({16}, tensor.dtype());
    EXPECT_TRUE(refused(changed)) << name;
    changed.erase(name);
    EXPECT_TRUE(refused(changed)) << name;
  }
  io::TensorMap more = tensors;
  more["other"] = Tensor::zeros({16});
  EXPECT_TRUE(refused(more));
  for (const char* name : {"other", "layers.0.linear2.weight.q8", "layers.7.linear2.weight.q4"}) {
    more = tensors;
    more[name] = Tensor::zeros({16}, Dtype::i32);
    EXPECT_TRUE(refused(more)) << name;
  }
}

TEST(PackedLanguageModelTest, DecodersLeaveOutAPackedOutputLayer) {
  LanguageModelConfig config = matrix_forms()[2];
  ASSERT_FALSE(config.tie_embeddings);
  LanguageModel model = model_of(config);
  model.pack_weights(WeightDtype::q8);
  const TemporaryFolder folder;
  save_language_model(model, folder / "m");
  EXPECT_FALSE(load_decoder(folder / "m").config().head);
}

TEST(PackedLanguageModelTest, NoFileIsWrittenOfWeightsThatTheirFormatCannotHold) {
  const TemporaryFolder folder;
  for (const WeightDtype dtype : {WeightDtype::q8, WeightDtype::q4}) {
    LanguageModel model = model_of(matrix_forms()[1]);
    model.layers[1].feed_forward.fc1.weight.data<float>()[3] = 1e7F;
    model.pack_weights(dtype);
    EXPECT_MESSAGE(save_language_model(model, folder / "m"), ValueError, "too large for ");
    EXPECT_FALSE(std::filesystem::exists(folder / "m/model.safetensors"));
  }
}

TEST(PackedLanguageModelTest, GgufFilesAreNotWrittenOfPackedModelsNorOfThoseThatSeeWhatFollows) {
  const TemporaryFolder folder;
  LanguageModelConfig config = matrix_forms()[1];
  LanguageModel packed = model_of(config);
  packed.pack_weights(WeightDtype::q8);
  EXPECT_MESSAGE(save_gguf(packed, folder / "m.gguf", "F32", {}), ValueError, "weights are packed in q8");
  config.causal = false;
  LanguageModel both_ways = model_of(config);
  EXPECT_MESSAGE(save_gguf(both_ways, folder / "m.gguf", "F32", {}), ValueError, "see the whole text");
  EXPECT_FALSE(std::filesystem::exists(folder / "m.gguf"));
}

}  // namespace
}  // namespace multihead::models
