#include "multihead/models/files/state_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/testing-inl.h"

namespace multihead::models {
namespace {

using Tokens = std::vector<int32_t>;

class StateFileTest : public ::testing::Test {
 protected:
  StateFileTest() : path_(std::filesystem::temp_directory_path() / concat("multihead_state_", getpid())) {}
  ~StateFileTest() override { std::filesystem::remove(path_); }

  std::string path_;
};

Seq2Seq translator(int64_t layers, int64_t heads, int64_t size) {
  Rng rng(4);
  return {{.source_vocab_size = 19,
           .max_positions = 11,
           .encoder_layers = 1,
           .decoder_layers = layers,
           .num_heads = heads,
           .embed_dim = size,
           .ffn_dim = 13},
          rng};
}

TEST_F(StateFileTest, GenerationGoesOnBitForBit) {
  const Seq2Seq model = translator(2, 3, 12);
  nn::DecodeState state =
      model.start({Tensor::of<int32_t>({2, 4}, Tokens{3, 4, 5, 0, 6, 7, 0, 0}), {4, 3}}, 7);
  state.repeat(2);
  const auto step = [&](nn::DecodeState& s) {
    return model.step(Tensor::of<int32_t>({4, 1}, Tokens{5, 6, 7, 8}), s).to_vector<float>();
  };
  step(state);
  // A row ahead of the others.
  model.step(Tensor::of<int32_t>({4, 1}, Tokens{1, 2, 3, 4}), state, {.counts = {0, 1, 0, 0}});
  save_state(path_, state, model);
  for (const int64_t capacity : {0, 3, 10}) {
    nn::DecodeState loaded = load_state(path_, model, capacity);
    EXPECT_EQ(loaded.lengths, (std::vector<int64_t>{1, 2, 1, 1}));
    EXPECT_EQ(loaded.cross_lengths, (std::vector<int64_t>{4, 3}));
    EXPECT_EQ(loaded.capacity, capacity == 0 ? 7 : capacity);
    nn::DecodeState original = state;
    EXPECT_EQ(step(loaded), step(original));
  }
  refused([&] { load_state(path_, model, 1); }, "a capacity of 1 for 2 tokens");
}

TEST_F(StateFileTest, ALanguageModelsStateGoesOn) {
  Rng rng(6);
  const LanguageModel model({.vocab_size = 17, .context = 9, .num_layers = 2, .num_heads = 2, .embed_dim = 8},
                            rng);
  nn::DecodeState state = model.make_state(1);
  model(Tensor::of<int64_t>({1, 3}, std::vector<int64_t>{4, 2, 6}), {.state = &state});
  save_state(path_, state, model);
  nn::DecodeState loaded = load_state(path_, model);
  const Tensor next = Tensor::of<int64_t>({1, 1}, std::vector<int64_t>{5});
  EXPECT_EQ(model(next, {.state = &loaded}).to_vector<float>(),
            model(next, {.state = &state}).to_vector<float>());
  refused([&] { load_state(path_, translator(2, 2, 8)); }, "another model: it has 0 rows of an encoder's");
}

// The capacity that the file names is bounded by the model, and room that no token takes costs nothing.
TEST_F(StateFileTest, ACapacityInAFileTakesNoMemory) {
  Rng rng(6);
  const LanguageModel model({.vocab_size = 17, .context = 9, .num_layers = 2, .num_heads = 2, .embed_dim = 8},
                            rng);
  nn::DecodeState state = model.make_state(1);
  model(Tensor::of<int64_t>({1, 3}, std::vector<int64_t>{4, 2, 6}), {.state = &state});
  save_state(path_, state, model);
  const io::SafetensorsFile file(path_);
  const io::TensorMap tensors = file.load_all();
  for (const int64_t capacity : {int64_t{10}, int64_t{1000}, int64_t{1} << 40, int64_t{1} << 48}) {
    io::TensorMap other = tensors;
    other["capacity"] = Tensor::of<int64_t>({1}, {capacity});
    io::save_safetensors(path_, other, file.metadata());
    refused([&] { load_state(path_, model); }, "the model takes 9 at most");
    refused([&] { load_state(path_, model, 5); }, "the state is corrupt");
  }
  const int64_t endless = int64_t{1} << 50;
  refused([&] { load_state(path_, model, endless); },
          "of memory are available; give load_state a smaller capacity");
  Seq2Seq seq2seq = translator(2, 3, 12);
  save_state(path_, seq2seq.start({Tensor::of<int32_t>({1, 2}, Tokens{3, 4}), {}}, 5), seq2seq);
  const io::SafetensorsFile pair(path_);
  io::TensorMap other = pair.load_all();
  other["capacity"] = Tensor::of<int64_t>({1}, {12});
  io::save_safetensors(path_, other, pair.metadata());
  refused([&] { load_state(path_, seq2seq); }, "the model takes 11 at most");
}

// Every number of the configuration counts, and every byte of the file.
TEST_F(StateFileTest, AnotherConfigurationOrAFlippedBitIsRefused) {
  LanguageModelConfig c = {.vocab_size = 17, .context = 9, .num_layers = 1, .num_heads = 2, .embed_dim = 8};
  c.positions = Positions::rotary;
  const auto with = [&](auto&& change) {
    LanguageModelConfig other = c;
    change(other);
    Rng rng(6);
    return LanguageModel(other, rng);
  };
  const LanguageModel model = with([](auto&) {});
  nn::DecodeState state = model.make_state(1);
  model(Tensor::of<int64_t>({1, 3}, std::vector<int64_t>{4, 2, 6}), {.state = &state});
  save_state(path_, state, model);
  const char* another = "another model: the checksum of its configuration and weights";
  refused([&] { load_state(path_, with([](auto& o) { o.rotary_base = 1e6; })); }, another);
  refused([&] { load_state(path_, with([](auto& o) { o.norm_eps = 1e-3; })); }, another);
  refused([&] { load_state(path_, with([](auto& o) { o.activation = Activation::relu; })); }, another);
  const std::string bytes = read_file(path_);
  int64_t refusals = 0;
  const std::string word = "\"format\":\"pt\"";  // which says nothing
  for (size_t at = 8; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] ^= 4;
    std::ofstream(path_, std::ios::binary) << flipped;
    try {
      load_state(path_, model);
      const size_t begin = bytes.find(word);
      EXPECT_TRUE(bytes[at] == ' ' || (at >= begin && at < begin + word.size())) << at;
    } catch (const FormatError&) {
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 700);
}

TEST_F(StateFileTest, StatesOfOtherModelsAndBrokenFilesAreRefused) {
  const Seq2Seq model = translator(2, 3, 12);
  const nn::DecodeState state = model.start({Tensor::of<int32_t>({1, 2}, Tokens{3, 4}), {}}, 5);
  save_state(path_, state, model);
  refused([&] { load_state(path_, translator(1, 3, 12)); },
          "another model: layers: it has more than 1 layers");
  refused([&] { load_state(path_, translator(3, 3, 12)); },
          "another model: layers: \"layers.2.key\" is missing");
  refused([&] { load_state(path_, translator(2, 2, 12)); }, "expected 2 heads of 6");
  refused([&] { load_state(path_, translator(2, 3, 24)); }, "expected 3 heads of 8");
  refused([&] { load_state("nowhere", model); }, "nowhere");

  io::TensorMap tensors = io::load_safetensors(path_);
  const auto broken = [&](const char* name, const Tensor& tensor, const char* text) {
    io::TensorMap other = tensors;
    other[name] = tensor;
    io::save_safetensors(path_, other, {{"state", "multihead"}});
    refused([&] { load_state(path_, model); }, text);
  };
  broken("lengths", Tensor::of<int64_t>({1}, std::vector<int64_t>{-1}), "a length of -1");
  broken("lengths", Tensor::of<int64_t>({1}, std::vector<int64_t>{4}),
         "holds 1 rows of 1 tokens, expected 1 of 4");
  broken("lengths", Tensor::of<int64_t>({1}, std::vector<int64_t>{6}),
         "the capacity does not fit the lengths");
  broken("lengths", Tensor::zeros({1}), "must be [rows] of i64");
  broken("cross_lengths", Tensor::of<int64_t>({2}, std::vector<int64_t>{1, 1}),
         "1 rows cannot share 2 sources");
  io::save_safetensors(path_, tensors);
  refused([&] { load_state(path_, model); }, "no saved decoding state");
}

}  // namespace
}  // namespace multihead::models
