// Keys that no query of a tile sees are left out, 16 at a time: of the scores, the values and every gradient.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/testing/attention_case.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/sanitizers.h"

namespace multihead::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionResult;
using testing::Bias;
using testing::CaseOptions;
using testing::distance;
using testing::largest;
using testing::Layout;
using testing::same_bits;

/// A mask of random blocks per head; `counts`: it says what is known of a block.
struct RandomBlocks {
  int64_t query_block, key_block;
  std::vector<uint8_t> flags;
  static constexpr int64_t kRows = 400, kColumns = 400, kHeads = 4;

  RandomBlocks(int64_t queries, int64_t keys, double density, uint32_t seed)
      : query_block(queries), key_block(keys) {
    std::mt19937 random(seed);
    std::bernoulli_distribution seen(density);
    for (int64_t i = 0; i < kHeads * kRows * kColumns; ++i)
      flags.push_back(static_cast<uint8_t>(seen(random)));
  }
  bool keep(int64_t h, int64_t q, int64_t k) const {
    return flags[(h * kRows + q / query_block) * kColumns + k / key_block] != 0;
  }
  static void fill(const void* self, const KeepTile& t) {
    for (int64_t k = 0; k < t.key_count; ++k) {
      for (int64_t q = 0; q < t.query_count; ++q) {
        t.keep[k * t.stride + q] =
            static_cast<const RandomBlocks*>(self)->keep(t.head, t.query_begin + q, t.key_begin + k);
      }
    }
  }
  static BlockClass classify(const void* self, const KeepTile& t) {
    int64_t seen = 0;
    for (int64_t k = 0; k < t.key_count; ++k) {
      for (int64_t q = 0; q < t.query_count; ++q) {
        seen += static_cast<const RandomBlocks*>(self)->keep(t.head, t.query_begin + q, t.key_begin + k);
      }
    }
    if (seen == 0) return BlockClass::empty;
    return seen == t.key_count * t.query_count ? BlockClass::full : BlockClass::partial;
  }
  MaskFunction function(bool classified) const { return {this, fill, classified ? classify : nullptr}; }
};

std::vector<CaseOptions> shapes() {
  std::vector<CaseOptions> list;
  CaseOptions o;
  o.batch = 2, o.heads = 4, o.kv_heads = 2, o.queries = 131, o.keys = 300, o.head_dim = 40, o.value_dim = 72;
  list.push_back(o);
  o.causal = true, o.layout = Layout::bthd, o.kv_heads = 4, o.value_dim = 64, o.head_dim = 64;
  list.push_back(o);
  o.alibi = o.relative_bias = true, o.softcap = 5, o.dropout = 0.2, o.bias = Bias::full;
  list.push_back(o);
  o = {};
  o.batch = 3, o.heads = 4, o.kv_heads = 2, o.queries = 90, o.keys = 301, o.head_dim = 8, o.value_dim = 8;
  o.ragged = o.score_function = true;
  list.push_back(o);
  o.ragged = false, o.queries = 3, o.relative_key = 20;
  list.push_back(o);
  return list;
}

struct BlockSizes {
  int64_t query_block, key_block;
  double density;
};
constexpr BlockSizes kBlockSizes[] = {{64, 64, .25}, {64, 16, .3}, {1, 16, .05},  {16, 16, .3},
                                      {16, 64, .2},  {48, 20, .2}, {128, 128, .4}};

TEST(KeyRunsTest, ResultsAreTheSpecificationsAndTheSameWhateverIsKnownOfABlock) {
  uint32_t seed = 1;
  for (const BlockSizes& size : kBlockSizes) {
    for (CaseOptions o : shapes()) {
      o.seed = ++seed;
      if (multihead::testing::kSanitized && seed % 7 != 0) continue;
      AttentionCase c(o);
      const RandomBlocks blocks(size.query_block, size.key_block, size.density, seed);
      c.problem.mask_function = blocks.function(true);
      const AttentionResult<double> exact = c.reference<double>(true);
      const AttentionResult<float> got = c.fused(true);
      const auto near = [](const std::vector<float>& a, const std::vector<double>& b) {
        return distance(a, b).max <= 3e-5 * std::max(1.0, largest(b));
      };
      EXPECT_TRUE(near(got.out, exact.out) && near(got.lse, exact.lse)) << seed;
      EXPECT_TRUE(near(got.d_query, exact.d_query) && near(got.d_key, exact.d_key)) << seed;
      EXPECT_TRUE(near(got.d_value, exact.d_value) && near(got.d_bias, exact.d_bias)) << seed;
      EXPECT_TRUE(near(got.d_alibi_slopes, exact.d_alibi_slopes)) << seed;
      EXPECT_TRUE(near(got.d_relative_bias, exact.d_relative_bias)) << seed;
      EXPECT_TRUE(near(got.d_relative_key, exact.d_relative_key)) << seed;

      c.problem.mask_function = blocks.function(false);
      const AttentionResult<float> unknown = c.fused(true);
      EXPECT_TRUE(same_bits(got.out, unknown.out) && same_bits(got.d_query, unknown.d_query)) << seed;
      EXPECT_TRUE(same_bits(got.d_key, unknown.d_key) && same_bits(got.d_value, unknown.d_value)) << seed;

      const int before = num_threads();
      set_num_threads(before == 1 ? 2 : 1);
      const AttentionResult<float> threads = c.fused(true);
      set_num_threads(before);
      EXPECT_TRUE(same_bits(got.out, threads.out) && same_bits(got.d_query, threads.d_query)) << seed;
      EXPECT_TRUE(same_bits(got.d_key, threads.d_key) && same_bits(got.d_value, threads.d_value)) << seed;
    }
  }
}

// A tile of one row leaves out other keys than one of 64.
TEST(KeyRunsTest, ARowAloneHasTheBitsOfItsTile) {
  for (const BlockSizes& size : kBlockSizes) {
    CaseOptions o;
    o.batch = 1, o.heads = 4, o.kv_heads = 2, o.queries = 70, o.keys = 530, o.head_dim = 32, o.value_dim = 80;
    o.diagonal = o.keys - o.queries, o.causal = true;
    AttentionCase c(o);
    const RandomBlocks blocks(size.query_block, size.key_block, size.density, 7);
    c.problem.mask_function = blocks.function(true);
    const AttentionResult<float> all = c.fused(true);
    for (int64_t row : {0, 15, 16, 63, 69}) {
      struct Shifted {
        const RandomBlocks* blocks;
        int64_t row;
      } shifted{&blocks, row};
      AttentionResult<float> one = c.poisoned<float>();
      AttentionProblem p = c.problem;
      p.queries = 1, p.diagonal += row;
      p.mask_function = {&shifted,
                         [](const void* self, const KeepTile& t) {
                           const auto& s = *static_cast<const Shifted*>(self);
                           KeepTile moved = t;
                           moved.query_begin += s.row;
                           RandomBlocks::fill(s.blocks, moved);
                         },
                         nullptr};
      AttentionInput in = c.input<float>();
      const auto from_row = [row](Operand& x) {
        x.data = static_cast<float*>(x.data) + row * x.strides.token;
      };
      AttentionOutput out = c.output(one);
      from_row(in.query), from_row(out.out), from_row(out.lse);
      attention_forward(p, c.terms<float>(), in, out);
      AttentionGradient g = c.gradient(one);
      from_row(g.d_out), from_row(g.d_query), from_row(g.out), from_row(g.lse);
      attention_backward(p, c.terms<float>(), in, g);
      for (int64_t h = 0; h < o.heads; ++h) {
        const auto bits = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t dim) {
          const int64_t at = (h * o.queries + row) * dim;
          return std::memcmp(a.data() + at, b.data() + at, static_cast<size_t>(dim) * sizeof(float)) == 0;
        };
        EXPECT_TRUE(bits(all.out, one.out, o.value_dim)) << size.key_block << " row " << row;
        EXPECT_TRUE(bits(all.d_query, one.d_query, o.head_dim)) << size.key_block << " row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace multihead::kernels
