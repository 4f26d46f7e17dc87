// States of models with a window that forget what no query can see any longer, and states in bf16 and int8.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/state_file.h"
#include "multihead/models/testing-inl.h"
#include "multihead/nn/module.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

constexpr int64_t kWindow = 37, kVocabulary = 23;

LanguageModel model(Positions positions, uint64_t seed = 1, int64_t window = kWindow) {
  LanguageModelConfig c;
  c.vocab_size = kVocabulary, c.context = 1100, c.window = window, c.num_layers = 2, c.num_heads = 4;
  c.num_kv_heads = 2, c.embed_dim = 24, c.ffn_dim = 29, c.positions = positions, c.init_std = 0.2;
  Rng rng(seed);
  return {c, rng};
}

Tensor part(const Tensor& x, int64_t begin, int64_t end) { return slice(x, 1, begin, end).contiguous(); }

// Reads tokens [at, end) of x in pieces of `step`; the logits of all.
std::vector<float> read(const LanguageModel& m, const Tensor& x, nn::DecodeState& state, int64_t end,
                        int64_t step) {
  std::vector<float> all;
  for (int64_t at = state.lengths[0]; at < end; at += step) {
    const auto logits = m(part(x, at, std::min(at + step, end)), {.state = &state}).to_vector<float>();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST(RingStateTest, AWindowIsWhatEveryTokenSees) {
  // Two layers see 2 · (window - 1) tokens back.
  const LanguageModel m = model(Positions::rotary, 1, 5);
  const Tensor x = tokens(1, 30), changed = x.clone();
  changed.data<int64_t>()[3] = (changed.data<int64_t>()[3] + 1) % kVocabulary;
  const Tensor a = m(x), b = m(changed);
  EXPECT_EQ(row(a, 0, 0, 3), row(b, 0, 0, 3));
  for (int64_t t = 3; t < 12; ++t) EXPECT_NE(row(a, 0, t, t + 1), row(b, 0, t, t + 1)) << t;
  EXPECT_EQ(row(a, 0, 12, 30), row(b, 0, 12, 30));
  // A window at least as long as the text excludes nothing.
  const LanguageModel wide = model(Positions::rotary, 1, 30), all = model(Positions::rotary, 1, 0);
  EXPECT_EQ(wide(x).to_vector<float>(), all(x).to_vector<float>());
}

TEST(RingStateTest, EveryBitIsThatOfAFullStateAndOfTheWholeText) {
  for (const auto positions :
       {Positions::none, Positions::learned, Positions::sinusoidal, Positions::rotary, Positions::alibi}) {
    const LanguageModel m = model(positions);
    const Tensor x = tokens(1, 1000);
    const std::vector<float> whole = m(x).to_vector<float>();
    nn::DecodeState full = m.make_state({.capacity = 1000});
    EXPECT_EQ(full.window, 0);
    EXPECT_EQ(read(m, x, full, 1000, 19), whole);
    for (const int64_t step : {1, 7, 64}) {
      nn::DecodeState ring = m.make_state({.capacity = 1000, .ring = true, .chunk = 64});
      EXPECT_EQ(ring.window, kWindow);
      const size_t bytes = ring.bytes();
      EXPECT_EQ(read(m, x, ring, 1000, step), whole) << step;
      EXPECT_EQ(ring.bytes(), bytes);
      EXPECT_GE(ring.starts[0], 512);
    }
  }
}

TEST(RingStateTest, RowsOfARaggedBatchAreWhatTheyWouldBeAlone) {
  const LanguageModel m = model(Positions::rotary);
  const Tensor x = tokens(3, 900);
  const Tensor whole = m(x);
  nn::DecodeState ring = m.make_state({.batch = 3, .ring = true, .chunk = 31});
  const RandomStream stream{5, 0};
  for (uint64_t i = 0; i < 60; ++i) {
    std::vector<int64_t> counts, before = ring.lengths;
    Tensor next = Tensor::zeros({3, 31}, Dtype::i64);
    for (uint64_t b = 0; b < 3; ++b) {
      const auto at = static_cast<size_t>(b);
      counts.push_back(
          std::min<int64_t>(static_cast<int64_t>(stream.bits(3 * i + b) % 32), 900 - before[at]));
      for (int64_t t = 0; t < counts[at]; ++t) {
        next.data<int64_t>()[b * 31 + static_cast<uint64_t>(t)] =
            x.data<int64_t>()[b * 900 + static_cast<uint64_t>(before[at] + t)];
      }
    }
    const Tensor y = m(next, {.state = &ring, .counts = counts});
    for (int64_t b = 0; b < 3; ++b) {
      const auto at = static_cast<size_t>(b);
      ASSERT_EQ(row(y, b, 0, counts[at]), row(whole, b, before[at], before[at] + counts[at]));
    }
  }
  for (const int64_t start : ring.starts) EXPECT_GT(start, 0);
}

TEST(RingStateTest, ReorderForkAndRepeatMoveWhatIsHeld) {
  const LanguageModel m = model(Positions::alibi);
  const Tensor x = tokens(2, 700);
  nn::DecodeState ring = m.make_state({.batch = 2, .ring = true, .chunk = 50});
  // Row 1 stays behind: another start.
  for (int64_t at = 0; at < 650; at += 50)
    m(part(x, at, at + 50), {.state = &ring, .counts = {50, at < 300 ? 50 : 0}});
  ASSERT_EQ(ring.lengths, (std::vector<int64_t>{650, 300}));
  ASSERT_NE(ring.starts[0], ring.starts[1]);
  const Tensor next = Tensor::full({2, 1}, 3, Dtype::i64), four = Tensor::full({4, 1}, 3, Dtype::i64);
  nn::DecodeState straight = ring.fork(), swapped = ring.fork(), twice = ring.fork();
  swapped.reorder(std::vector<int64_t>{1, 0, 0, 1});
  twice.repeat(2);
  const Tensor a = m(next, {.state = &straight}), b = m(four, {.state = &swapped}),
               c = m(four, {.state = &twice});
  for (const auto& [at, from] : {std::pair{0, 1}, {1, 0}, {2, 0}, {3, 1}}) {
    EXPECT_EQ(row(b, at, 0, 1), row(a, from, 0, 1));
  }
  for (int64_t at = 0; at < 4; ++at) EXPECT_EQ(row(c, at, 0, 1), row(a, at / 2, 0, 1));
  EXPECT_EQ(ring.lengths, (std::vector<int64_t>{650, 300}));  // forks left it alone
  // A fork that slides does not move what the other reads.
  nn::DecodeState on = ring.fork();
  for (int64_t i = 0; i < 8; ++i) m(Tensor::full({2, 50}, 3, Dtype::i64), {.state = &on});
  EXPECT_EQ(row(m(next, {.state = &ring}), 0, 0, 1), row(a, 0, 0, 1));
}

TEST(RingStateTest, ItGoesBackAsFarAsItRemembers) {
  const LanguageModel m = model(Positions::rotary);
  const Tensor x = tokens(1, 800);
  nn::DecodeState ring = m.make_state({.ring = true, .chunk = 40});
  read(m, x, ring, 600, 40);
  const int64_t start = ring.starts[0], least = start + kWindow - 1;
  ASSERT_GT(start, 0);
  EXPECT_THROW(ring.truncate(least - 1), ValueError);
  EXPECT_EQ(ring.lengths[0], 600);
  ring.truncate(least);
  const Tensor whole = m(x);
  EXPECT_EQ(read(m, x, ring, 800, 40), row(whole, 0, least, 800));
  ring.truncate(800);  // nothing to drop
  ring.clear(0);
  EXPECT_EQ(read(m, x, ring, 90, 40), row(whole, 0, 0, 90));
}

TEST(RingStateTest, MemoryIsPlannedAndBadRequestsAreNamed) {
  const LanguageModel m = model(Positions::rotary);
  for (const auto dtype : {Dtype::f32, Dtype::bf16}) {
    const nn::DecodeStateOptions plan =
        m.state_options({.batch = 3, .ring = true, .chunk = 64, .dtype = dtype});
    EXPECT_EQ(plan.capacity, kWindow + 64 + 254);
    EXPECT_EQ(nn::decode_state_bytes(plan),
              static_cast<size_t>(3 * 2 * 2 * (6 + 6) * plan.capacity) * size_of(dtype));
    EXPECT_EQ(nn::make_decode_state(plan).bytes(), nn::decode_state_bytes(plan));
  }
  EXPECT_EQ(m.state_options({.capacity = 100, .ring = true}).window, 0);  // a full state is smaller
  EXPECT_EQ(m.longest(), int64_t{1} << 31);
  EXPECT_EQ(model(Positions::learned).longest(), 1100);
  EXPECT_THROW(model(Positions::rotary, 1, 0).state_options({.ring = true}), ValueError);
  EXPECT_THROW(model(Positions::rotary, 1, -1), ValueError);
  EXPECT_THROW(m.state_options({.ring = true, .chunk = 0}), ValueError);
  EXPECT_THROW(m.state_options({.dtype = Dtype::f64}), DtypeError);
  EXPECT_THROW(nn::make_decode_state(
                   {.kv_heads = {1}, .head_dim = 2, .value_head_dim = 2, .capacity = 60, .window = 30}),
               ValueError);
  nn::DecodeState ring = m.make_state({.ring = true, .chunk = 8});
  EXPECT_EQ(ring.room(), 8);
  read(m, tokens(1, 291), ring, 291, 8);
  EXPECT_THROW(m(tokens(1, 90), {.state = &ring}), ValueError);
  EXPECT_EQ(ring.lengths[0], 291);
  EXPECT_THROW(m(tokens(1, 1), {.state = &ring, .mask = drop(Tensor::zeros({1}, Dtype::boolean))}),
               ValueError);
  EXPECT_THROW(model(Positions::rotary, 1, 36)(tokens(1, 1), {.state = &ring}), ValueError);
}

TEST(Bf16StateTest, ChunksAndRingsAgreeBitForBitAndAreNearF32) {
  for (const auto positions : {Positions::learned, Positions::rotary, Positions::alibi}) {
    const LanguageModel m = model(positions);
    const Tensor x = tokens(1, 800);
    nn::DecodeState single = m.make_state({.dtype = Dtype::bf16}), exact = m.make_state(1);
    EXPECT_EQ(2 * single.bytes(), exact.bytes());
    const std::vector<float> got = read(m, x, single, 800, 1), want = read(m, x, exact, 800, 80);
    double largest = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max<double>(largest, std::abs(got[i] - want[i]));
      size = std::max<double>(size, std::abs(want[i]));
    }
    EXPECT_GT(largest, 0);
    EXPECT_LT(largest, 0.02 * size);
    for (const int64_t step : {5, 64}) {
      nn::DecodeState full = m.make_state({.dtype = Dtype::bf16});
      EXPECT_EQ(read(m, x, full, 800, step), got);
      nn::DecodeState ring = m.make_state({.ring = true, .chunk = 64, .dtype = Dtype::bf16});
      EXPECT_EQ(read(m, x, ring, 800, step), got);
    }
  }
}

TEST(Bf16StateTest, TranslatorsHoldTheirSourcesInBf16Too) {
  Rng rng(2);
  const Seq2Seq m({.source_vocab_size = kVocabulary, .max_positions = 40, .num_heads = 2, .embed_dim = 16},
                  rng);
  const TokenBatch source = {tokens(2, 9), {9, 5}};
  nn::DecodeState half = m.start(source, 20, Dtype::bf16), exact = m.start(source, 20);
  EXPECT_EQ(2 * half.bytes(), exact.bytes());
  const Tensor x = tokens(2, 12, 3);
  const Tensor want = m.step(x, exact), got = m.step(x, half);
  const auto a = want.to_vector<double>(), b = got.to_vector<double>();
  double largest = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i])), size = std::max(size, std::abs(a[i]));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LT(largest, 0.02 * size);
  nn::DecodeState again = m.start(source, 20, Dtype::bf16);
  for (int64_t t = 0; t < 12; ++t) {
    const Tensor y = m.step(part(x, t, t + 1), again);
    for (int64_t r = 0; r < 2; ++r) EXPECT_EQ(row(y, r, 0, 1), row(got, r, t, t + 1));
  }
}

// As model() with heads whose sizes are multiples of 4, and of 16 where one token has a way of its own.
LanguageModel int8_model(Positions positions, int64_t head_dim) {
  LanguageModelConfig c;
  c.vocab_size = kVocabulary, c.context = 1100, c.window = kWindow, c.num_layers = 2, c.num_heads = 4;
  c.num_kv_heads = 2, c.embed_dim = 4 * head_dim, c.ffn_dim = 29, c.positions = positions, c.init_std = 0.2;
  Rng rng(1);
  return {c, rng};
}

TEST(Int8StateTest, ChunksRingsAndCompanyAgreeBitForBitAndAreNearF32) {
  for (const int64_t head_dim : {12, 16}) {
    for (const auto positions : {Positions::rotary, Positions::alibi}) {
      const LanguageModel m = int8_model(positions, head_dim);
      const Tensor x = tokens(1, 800);
      nn::DecodeState single = m.make_state({.dtype = nn::kInt8Cache}), exact = m.make_state(1);
      EXPECT_EQ(4 * single.bytes() * static_cast<size_t>(head_dim),
                exact.bytes() * static_cast<size_t>(head_dim + 4));
      EXPECT_EQ(single.bytes(), nn::decode_state_bytes(m.state_options({.dtype = nn::kInt8Cache})));
      const std::vector<float> got = read(m, x, single, 800, 1), want = read(m, x, exact, 800, 80);
      double largest = 0, size = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        largest = std::max<double>(largest, std::abs(got[i] - want[i]));
        size = std::max<double>(size, std::abs(want[i]));
      }
      EXPECT_GT(largest, 0);
      EXPECT_LT(largest, 0.02 * size);
      for (const int64_t step : {5, 64}) {
        nn::DecodeState full = m.make_state({.dtype = nn::kInt8Cache});
        EXPECT_EQ(read(m, x, full, 800, step), got);
        nn::DecodeState ring = m.make_state({.ring = true, .chunk = 64, .dtype = nn::kInt8Cache});
        EXPECT_EQ(read(m, x, ring, 800, step), got);
      }
      nn::DecodeState three = m.make_state({.batch = 3, .dtype = nn::kInt8Cache});
      three.put(1, single, 0, 600), three.put(2, single, 0, 77);
      three.reorder(std::vector<int64_t>{2, 1, 1});
      const Tensor next = Tensor::full({3, 1}, x.data<int64_t>()[600], Dtype::i64);
      const Tensor y = m(next, {.state = &three});
      for (const int64_t b : {1, 2}) {
        EXPECT_EQ(row(y, b, 0, 1),
                  std::vector<float>(got.begin() + 600 * kVocabulary, got.begin() + 601 * kVocabulary));
      }
    }
  }
}

TEST(Int8StateTest, WhatCannotBeIsNamed) {
  EXPECT_THROW(model(Positions::rotary).make_state({.dtype = nn::kInt8Cache}), ValueError);  // heads of 6
  LanguageModel wide = int8_model(Positions::rotary, 12), half = nn::clone(wide);
  nn::to(half, Dtype::bf16);
  nn::DecodeState state = half.make_state({.dtype = nn::kInt8Cache}), other = wide.make_state(1);
  EXPECT_EQ(half(tokens(1, 3), {.state = &state}).dtype(), Dtype::bf16);
  EXPECT_THROW(other.put(0, state, 0, 3), ValueError);
  nn::to(wide, Dtype::f64);
  EXPECT_THROW(wide.make_state({.dtype = nn::kInt8Cache}), DtypeError);
}

class SavedRingTest : public ::testing::Test {
 protected:
  ~SavedRingTest() override { std::filesystem::remove(path_); }
  void refused(const LanguageModel& m, const char* text, int64_t capacity = 0) const {
    models::refused([&] { load_state(path_, m, capacity); }, text);
  }
  std::string path_ = std::filesystem::temp_directory_path() / concat("multihead_ring_", getpid());
};

TEST_F(SavedRingTest, ItGoesOnBitForBitFromAnyPlaceInTheRing) {
  const LanguageModel m = int8_model(Positions::rotary, 12);
  const Tensor x = tokens(2, 900);
  for (const auto dtype : {Dtype::f32, Dtype::bf16, nn::kInt8Cache}) {
    nn::DecodeState ring = m.make_state({.batch = 2, .ring = true, .chunk = 40, .dtype = dtype});
    std::vector<int64_t> counts = {40, 40};
    for (int64_t at = 0; at < 840; at += 40) {
      save_state(path_, ring, m);
      for (const int64_t capacity : {0, 500}) {
        nn::DecodeState loaded = load_state(path_, m, capacity);
        EXPECT_EQ(loaded.lengths, ring.lengths);
        EXPECT_EQ(loaded.starts, ring.starts);
        EXPECT_EQ(loaded.window, kWindow);
        EXPECT_EQ(loaded.layers[0].key.dtype(), dtype);
        nn::DecodeState original = ring.fork();
        EXPECT_EQ(m(part(x, at, at + 40), {.state = &loaded}).to_vector<float>(),
                  m(part(x, at, at + 40), {.state = &original}).to_vector<float>());
      }
      if (at == 400) counts = {40, 13};  // other places in the two rings from here on
      m(part(x, at, at + 40), {.state = &ring, .counts = counts});
    }
    EXPECT_NE(ring.starts[0], ring.starts[1]);
  }
  refused(m, "a ring for a window of 37 needs at least 292", 291);
}

TEST_F(SavedRingTest, StatesOfOtherModelsAreRefused) {
  const LanguageModel m = model(Positions::rotary);
  nn::DecodeState ring = m.make_state({.ring = true, .chunk = 40});
  read(m, tokens(1, 400), ring, 400, 40);
  save_state(path_, ring, m);
  refused(model(Positions::rotary, 1, 38),
          "another model: a ring for a window of 37, the model's window is 38");
  refused(model(Positions::rotary, 2), "another model: the checksum of its configuration and weights is");
  LanguageModel trained = nn::clone(m);  // one bit of one weight
  trained.token_embedding.weight.data<float>()[77] *= 1.0000002f;
  refused(trained, "another model: the checksum of its configuration and weights is");
  load_state(path_, nn::clone(m));
  const auto broken = [&](const char* name, int64_t value, const char* text) {
    save_state(path_, ring, m);
    io::TensorMap tensors = io::load_safetensors(path_);
    const auto metadata = io::SafetensorsFile(path_).metadata();
    tensors[name] = Tensor::of<int64_t>({1}, std::vector<int64_t>{value});
    io::save_safetensors(path_, tensors, {metadata.begin(), metadata.end()});
    refused(m, text);
  };
  broken("starts", 300, "the dropped tokens do not fit the lengths");
  broken("starts", 512, "the dropped tokens do not fit the lengths");
  broken("capacity", 291, "the capacity does not fit");
  broken("window", 0, "the dropped tokens do not fit the lengths");
}

}  // namespace
}  // namespace multihead::models
