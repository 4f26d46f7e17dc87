#include "multihead/nn/encoder_decoder.h"

#include <gtest/gtest.h>

#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead::nn {
namespace {

constexpr int64_t kEmbed = 14;

StackOptions options(bool norm_first) {
  StackOptions o;
  o.layer.attention = {.embed_dim = kEmbed, .num_heads = 2};
  o.layer.feed_forward = {.embed_dim = kEmbed, .hidden_dim = 19};
  o.layer.norm_first = norm_first;
  o.num_layers = 3;
  o.final_norm = norm_first;
  return o;
}

Tensor noise(const Shape& shape, uint64_t seed, double bound = 2) {
  Tensor x = Tensor::empty(shape, Dtype::f32);
  fill_uniform(x, -bound, bound, Rng(seed).next());
  return x;
}

// x[row:row+1, begin:end]
std::vector<float> part(const Tensor& x, int64_t row, int64_t begin, int64_t end) {
  return slice(slice(x, 0, row, row + 1), 1, begin, end).to_vector<float>();
}

Mask valid(const std::vector<int64_t>& values) {
  return lengths(Tensor::of<int64_t>({static_cast<int64_t>(values.size())}, values));
}

TEST(EncoderDecoderTest, LayersStartDifferentAndNamesArePyTorchs) {
  Rng rng(1);
  Transformer model(options(true), options(true), rng);
  std::vector<std::string> names;
  for (const NamedTensor& p : named_parameters(model)) names.push_back(p.name);
  for (const char* name : {"encoder.layers.2.self_attn.in_proj_weight", "encoder.layers.0.linear1.bias",
                           "encoder.norm.weight", "decoder.layers.1.multihead_attn.out_proj.bias",
                           "decoder.layers.0.norm3.weight", "decoder.norm.bias"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  // 12 tensors per encoder layer, 18 per decoder layer, two norms.
  EXPECT_EQ(names.size(), 3u * 12 + 3 * 18 + 4);
  EXPECT_NE(model.encoder.layers[0].self_attn.in_proj_weight.to_vector<float>(),
            model.encoder.layers[1].self_attn.in_proj_weight.to_vector<float>());
}

TEST(EncoderDecoderTest, AStateIsRefusedWhileATapeRecords) {
  Rng rng(2);
  TransformerDecoder decoder(options(true), rng);
  const Tensor memory = noise({1, 4, kEmbed}, 3), x = noise({1, 2, kEmbed}, 4);
  DecodeState state = decoder.start(memory, {}, 5);
  Tape tape;
  EXPECT_MESSAGE(decoder(x, {}, {.state = &state}), ValueError, "with a state records no gradients");
  {
    const NoTape silent;
    decoder(x, {}, {.state = &state});
  }
  for (const Tensor& parameter : parameters(decoder)) Tensor(parameter).set_requires_grad(false);
  decoder(x, {}, {.state = &state});
  EXPECT_MESSAGE(decoder(x.clone().set_requires_grad(), {}, {.state = &state}), ValueError,
                 "a Tape is recording");
}

TEST(EncoderDecoderTest, PaddingChangesNothingBitForBit) {
  for (const bool norm_first : {false, true}) {
    Rng rng(2);
    const Transformer model(options(norm_first), options(norm_first), rng);
    Tensor source = noise({2, 11, kEmbed}, 3);
    const Tensor target = noise({2, 5, kEmbed}, 4);
    const std::vector<int64_t> sizes = {7, 11};
    const auto run = [&](const Tensor& x) {
      return model(x, target, {.mask = valid(sizes)}, {.memory_mask = valid(sizes)});
    };
    const Tensor expected = run(source);
    // The padding of row 0 is poisoned; its row alone has no padding at all.
    for (int64_t t = 7; t < 11; ++t) {
      for (int64_t e = 0; e < kEmbed; ++e)
        source.data<float>()[t * kEmbed + e] = std::numeric_limits<float>::max();
    }
    EXPECT_EQ(run(source).to_vector<float>(), expected.to_vector<float>());
    const Tensor alone = model(slice(slice(source, 0, 0, 1), 1, 0, 7), slice(target, 0, 0, 1));
    EXPECT_EQ(alone.to_vector<float>(), part(expected, 0, 0, 5));
  }
}

TEST(EncoderDecoderTest, FutureTargetsDoNotChangeThePast) {
  Rng rng(5);
  const TransformerDecoder decoder(options(false), rng);
  const Tensor memory = noise({1, 6, kEmbed}, 6);
  Tensor x = noise({1, 9, kEmbed}, 7);
  const auto before = part(decoder(x, memory), 0, 0, 8);
  for (int64_t e = 0; e < kEmbed; ++e) x.data<float>()[8 * kEmbed + e] = 1e6f;
  EXPECT_EQ(part(decoder(x, memory), 0, 0, 8), before);
}

TEST(EncoderDecoderTest, CachedEqualsUncachedBitForBitInAnyChunks) {
  for (const bool norm_first : {false, true}) {
    Rng rng(8);
    const TransformerDecoder decoder(options(norm_first), rng);
    const Tensor memory = noise({3, 10, kEmbed}, 9), x = noise({3, 7, kEmbed}, 10);
    const std::vector<int64_t> sizes = {10, 1, 6};
    const Tensor full = decoder(x, memory, {.memory_mask = valid(sizes)});
    for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{7}, {1, 1, 1, 1, 1, 1, 1}, {3, 1, 3}}) {
      DecodeState state = decoder.start(memory, sizes, 7);
      int64_t at = 0;
      for (const int64_t size : chunks) {
        const Tensor y = decoder(slice(x, 1, at, at + size).contiguous(), {}, {.state = &state});
        for (int64_t b = 0; b < 3; ++b) EXPECT_EQ(part(y, b, 0, size), part(full, b, at, at + size));
        at += size;
      }
    }
  }
}

TEST(EncoderDecoderTest, RowsMayAdvanceByDifferentCounts) {
  Rng rng(11);
  const TransformerDecoder decoder(options(true), rng);
  const Tensor memory = noise({2, 4, kEmbed}, 12), x = noise({2, 5, kEmbed}, 13);
  const Tensor full = decoder(x, memory);
  DecodeState state = decoder.start(memory, {}, 5);
  decoder(slice(x, 1, 0, 3).contiguous(), {}, {.state = &state, .counts = {3, 1}});
  EXPECT_EQ(state.lengths, (std::vector<int64_t>{3, 1}));
  // Row 0 goes on with token 3, row 1 with token 1.
  Tensor next = Tensor::empty({2, 1, kEmbed}, Dtype::f32);
  slice(next, 0, 0, 1).copy_from(slice(slice(x, 0, 0, 1), 1, 3, 4));
  slice(next, 0, 1, 2).copy_from(slice(slice(x, 0, 1, 2), 1, 1, 2));
  const Tensor y = decoder(next, {}, {.state = &state});
  EXPECT_EQ(part(y, 0, 0, 1), part(full, 0, 3, 4));
  EXPECT_EQ(part(y, 1, 0, 1), part(full, 1, 1, 2));
}

// Three hypotheses of one sentence share its cross-attention keys and values.
TEST(EncoderDecoderTest, RepeatedRowsShareTheMemoryAndGiveTheSameBits) {
  Rng rng(14);
  const TransformerDecoder decoder(options(false), rng);
  const Tensor memory = noise({2, 13, kEmbed}, 15), x = noise({6, 4, kEmbed}, 16);
  const std::vector<int64_t> sizes = {13, 5};
  DecodeState state = decoder.start(memory, sizes, 9);
  const size_t cross_bytes = state.cross[0].key.bytes();
  state.repeat(3);
  EXPECT_EQ(state.batch(), 6);
  EXPECT_EQ(state.group(), 3);
  EXPECT_EQ(state.cross[0].key.bytes(), cross_bytes);
  const Tensor y = decoder(x, {}, {.state = &state});
  for (int64_t b = 0; b < 6; ++b) {
    const int64_t sentence = b / 3;
    const Tensor one =
        slice(slice(memory, 0, sentence, sentence + 1), 1, 0, sizes[static_cast<size_t>(sentence)]);
    EXPECT_EQ(part(decoder(slice(x, 0, b, b + 1), one), 0, 0, 4), part(y, b, 0, 4));
  }
}

TEST(DecodeStateTest, ReorderForkAndTruncateAreThoseOfTheTokens) {
  Rng rng(17);
  const TransformerDecoder decoder(options(true), rng);
  const Tensor memory = noise({2, 3, kEmbed}, 18), x = noise({4, 6, kEmbed}, 19);
  DecodeState state = decoder.start(memory, {3, 2}, 6);
  state.repeat(2);
  decoder(slice(x, 1, 0, 4).contiguous(), {}, {.state = &state});
  DecodeState fork = state.fork();

  const std::vector<int64_t> rows = {1, 1, 2, 3};  // the second hypothesis of sentence 0 displaces the first
  state.reorder(rows);
  const Tensor next = slice(x, 1, 4, 5).contiguous();
  const Tensor y = decoder(next, {}, {.state = &state});
  const Tensor z = decoder(next, {}, {.state = &fork});
  EXPECT_EQ(part(y, 1, 0, 1), part(z, 1, 0, 1));
  EXPECT_EQ(part(y, 2, 0, 1), part(z, 2, 0, 1));
  EXPECT_NE(part(y, 0, 0, 1), part(z, 0, 0, 1));

  // Sentence 1 alone, in the other order, then rolled back and replayed.
  DecodeState last = fork.fork();
  const std::vector<int64_t> kept = {3, 2};
  last.reorder(kept);
  EXPECT_EQ(last.batch(), 2);
  EXPECT_EQ(last.cross_lengths, (std::vector<int64_t>{2}));
  last.truncate(4);
  EXPECT_EQ(last.lengths, (std::vector<int64_t>{4, 4}));
  Tensor replay = Tensor::empty({2, 1, kEmbed}, Dtype::f32);
  slice(replay, 0, 0, 1).copy_from(slice(next, 0, 3, 4));
  slice(replay, 0, 1, 2).copy_from(slice(next, 0, 2, 3));
  const Tensor w = decoder(replay, {}, {.state = &last});
  EXPECT_EQ(part(w, 0, 0, 1), part(z, 3, 0, 1));
  EXPECT_EQ(part(w, 1, 0, 1), part(z, 2, 0, 1));
}

TEST(DecodeStateTest, CopiesShareMemoryUntilOneIsWrittenTo) {
  Rng rng(23);
  const TransformerDecoder decoder(options(true), rng);
  const Tensor memory = noise({2, 3, kEmbed}, 24), x = noise({2, 2, kEmbed}, 25);
  DecodeState state = decoder.start(memory, {}, 5);
  decoder(slice(x, 1, 0, 1).contiguous(), {}, {.state = &state});
  const DecodeState fork = state.fork();
  const float* shared = state.layers[0].key.data<float>();
  EXPECT_EQ(fork.layers[0].key.data<float>(), shared);
  const auto before = fork.layers[0].key.to_vector<float>();
  decoder(slice(x, 1, 1, 2).contiguous(), {}, {.state = &state});
  EXPECT_NE(state.layers[0].key.data<float>(), shared);
  EXPECT_EQ(state.cross[0].key.data<float>(), fork.cross[0].key.data<float>());  // nobody writes there
  EXPECT_EQ(fork.layers[0].key.to_vector<float>(), before);
  EXPECT_EQ(fork.lengths, (std::vector<int64_t>{1, 1}));
  const float* own = state.layers[0].key.data<float>();
  state.truncate(1);
  decoder(slice(x, 1, 1, 2).contiguous(), {}, {.state = &state});
  EXPECT_EQ(state.layers[0].key.data<float>(), own);  // no second copy
}

TEST(DecodeStateTest, MemoryIsWhatWasPlannedAndLinear) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (const int64_t capacity : {1, 7, 14}) {
      const DecodeStateOptions o = {.kv_heads = {5, 5, 2},
                                    .batch = 2,
                                    .head_dim = 4,
                                    .value_head_dim = 6,
                                    .capacity = capacity,
                                    .dtype = dtype};
      EXPECT_EQ(make_decode_state(o).bytes(), decode_state_bytes(o));
      EXPECT_EQ(decode_state_bytes(o), static_cast<size_t>(2 * (5 + 5 + 2) * 10 * capacity) * size_of(dtype));
    }
  }
  EXPECT_THROW(decode_state_bytes({.kv_heads = {1},
                                   .batch = int64_t{1} << 40,
                                   .head_dim = 1,
                                   .value_head_dim = 1,
                                   .capacity = int64_t{1} << 40}),
               ValueError);
}

TEST(EncoderDecoderTest, OptionsWithoutEffectAreRefused) {
  Rng rng(20);
  const TransformerEncoder encoder(options(true), rng);
  const TransformerDecoder decoder(options(true), rng);
  const Tensor memory = noise({2, 3, kEmbed}, 21), x = noise({2, 2, kEmbed}, 22);
  DecodeState state = decoder.start(memory, {}, 3);
  std::vector<AttentionCapture> one(1), three(3);
  EXPECT_THROW(encoder(x, {.state = &state}), ValueError);
  EXPECT_THROW(encoder(x, {.counts = {1, 1}}), ValueError);
  EXPECT_THROW(encoder(x, {.memory_mask = valid({1, 2})}), ValueError);
  EXPECT_THROW(encoder(x, {.cross_capture = &three}), ValueError);
  EXPECT_THROW(encoder(x, {.capture = &one}), ShapeError);
  EXPECT_THROW(decoder(x, memory, {.cross_capture = &one}), ShapeError);
  EXPECT_THROW(decoder(x, memory, {.state = &state}), ValueError);
  EXPECT_THROW(decoder(x, memory, {.counts = {1, 1}}), ValueError);
  EXPECT_THROW(encoder.layers[0](x, {.memory = memory}), ValueError);
  LayerCall masked;
  masked.cross.mask = causal();
  EXPECT_THROW(encoder.layers[0](x, masked), ValueError);
  EXPECT_THROW(TransformerDecoder().start(memory, {}, 3), ValueError);
  StackOptions crossed = options(true);
  crossed.layer.cross_attention = true;
  EXPECT_THROW(TransformerEncoder(crossed, rng), ValueError);
  EXPECT_NO_THROW(TransformerDecoder(crossed, rng));
}

TEST(DecodeStateTest, WrongUsesAreNamedAndChangeNothing) {
  Rng rng(20);
  const TransformerDecoder decoder(options(true), rng);
  const Tensor memory = noise({2, 3, kEmbed}, 21), x = noise({2, 2, kEmbed}, 22);
  EXPECT_THROW(decoder(x, noise({3, 3, kEmbed}, 1)), ShapeError);  // encoder batch ≠ decoder batch
  EXPECT_THROW(decoder(x, {}), ValueError);
  EXPECT_THROW(decoder.start(memory, {3, 4}, 5), ValueError);  // longer than the memory
  EXPECT_THROW(decoder.start(memory, {3}, 5), ShapeError);
  EXPECT_THROW(decoder.start(memory, {}, 0), ValueError);

  DecodeState state = decoder.start(memory, {}, 3);
  EXPECT_THROW(decoder(noise({3, 1, kEmbed}, 1), {}, {.state = &state}), ShapeError);
  decoder(x, {}, {.state = &state});
  EXPECT_THROW(decoder(x, {}, {.state = &state}), ValueError);  // 4 tokens, room for 3
  EXPECT_EQ(state.lengths, (std::vector<int64_t>{2, 2}));
  StackOptions other = options(true);
  other.layer.attention.num_heads = 7;
  const TransformerDecoder stranger(other, rng);
  EXPECT_THROW(stranger(slice(x, 1, 0, 1).contiguous(), {}, {.state = &state}), ShapeError);
  const auto reorder = [&](std::vector<int64_t> rows) { state.reorder(rows); };
  EXPECT_THROW(reorder({0, 2}), ValueError);
  EXPECT_THROW(reorder({-1}), ValueError);
  EXPECT_THROW(state.truncate(-1), ValueError);
  state.repeat(2);
  EXPECT_THROW(reorder({0, 2, 1, 3}), ValueError);  // mixes two sentences
  EXPECT_THROW(reorder({0}), ValueError);
  EXPECT_EQ(state.lengths, (std::vector<int64_t>{2, 2, 2, 2}));
}

}  // namespace
}  // namespace multihead::nn
