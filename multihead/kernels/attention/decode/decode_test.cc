// Few queries on a long cache: a way of its own, with the bits of the tiles that more queries take.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "multihead/kernels/attention/attention.h"
#include "multihead/kernels/attention/decode/int8_rows.h"
#include "multihead/kernels/attention/testing-inl.h"
#include "multihead/testing/everywhere.h"

namespace multihead {
namespace {

using kernels::Isa;
using testing::AttentionCase;
using testing::CaseOptions;
using testing::same_bits;

struct Size {
  int64_t group, queries, keys, head_dim, value_dim;
};

// 1 to 8 rows, ends inside runs of 16 keys and blocks of 256, dimensions on and off multiples of 32 and 64.
std::vector<CaseOptions> few_rows() {
  const Size sizes[] = {{1, 1, 257, 64, 64},  {2, 1, 531, 128, 128}, {4, 1, 300, 128, 64},
                        {8, 1, 271, 48, 112}, {3, 1, 1025, 16, 16},  {5, 1, 15, 256, 256},
                        {1, 7, 97, 80, 48},   {2, 3, 512, 32, 240},  {1, 1, 1, 16, 32}};
  std::vector<CaseOptions> list;
  for (const Size& s : sizes) {
    CaseOptions o;
    o.batch = 2, o.kv_heads = 2, o.heads = 2 * s.group, o.queries = s.queries, o.keys = s.keys;
    o.head_dim = s.head_dim, o.value_dim = s.value_dim, o.causal = true;
    list.push_back(o);
    o.layout = testing::Layout::bthd, o.key_lengths = true, o.seed = 2;
    list.push_back(o);
    o.window_left = 37, o.causal = false, o.key_lengths = false;
    list.push_back(o);
  }
  return list;
}

// A mask that keeps everything takes the tiles.
TEST(AttentionDecodeTest, F32HasTheBitsOfTheTiles) {
  const testing::EverywhereScope scope;
  const uint8_t all = 1;
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    if (kernels::best_isa() < isa) continue;
    kernels::set_isa(isa);
    for (const CaseOptions& o : few_rows()) {
      SCOPED_TRACE(describe(o));
      AttentionCase c(o);
      const auto few = c.fused(false);
      c.problem.keep = &all;
      const auto tiles = c.fused(false);
      EXPECT_TRUE(same_bits(few.out, tiles.out));
      EXPECT_TRUE(same_bits(few.lse, tiles.lse));
    }
  }
}

// x as rows of int8 with the distances in words, and as the numbers they stand for, laid out as x.
struct Int8Rows {
  std::vector<int32_t> words;
  std::vector<float> numbers;
  kernels::Strides3 strides;

  Int8Rows(const std::vector<float>& x, int64_t dim, const kernels::Strides3& of) : numbers(x.size()) {
    const int64_t row = kernels::int8_row_words(dim);
    words.resize(x.size() / static_cast<size_t>(dim) * static_cast<size_t>(row));
    for (size_t r = 0; r < x.size() / static_cast<size_t>(dim); ++r) {
      int32_t* to = words.data() + r * static_cast<size_t>(row);
      kernels::quantize_int8_row(x.data() + r * static_cast<size_t>(dim), dim, to);
      kernels::widen_int8_row(to, dim, numbers.data() + r * static_cast<size_t>(dim));
    }
    strides = {of.batch / dim * row, of.head / dim * row, of.token / dim * row};
  }
};

void expect_int8_is_its_numbers(const CaseOptions& o) {
  AttentionCase c(o);
  const Int8Rows key(c.key, o.head_dim, c.key_strides), value(c.value, o.value_dim, c.value_strides);
  c.key = key.numbers, c.value = value.numbers;
  const auto want = c.fused(false);
  std::vector<float> out(want.out.size(), std::nanf("")), lse(want.lse.size(), std::nanf(""));
  kernels::AttentionInput input = c.input<float>();
  input.key = {key.words.data(), key.strides}, input.value = {value.words.data(), value.strides};
  kernels::attention_forward(c.problem, c.terms<float>(), input, c.output(out, lse));
  if (kernels::current_isa() == Isa::baseline) {
    for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], want.out[i], 1e-6);
    return;
  }
  EXPECT_TRUE(same_bits(out, want.out));
  EXPECT_TRUE(same_bits(lse, want.lse));
}

TEST(AttentionDecodeTest, Int8HasTheBitsOfTheNumbersItStandsFor) {
  const testing::EverywhereScope scope;
  for (const Isa isa : kernels::kIsas) {
    if (kernels::best_isa() < isa) continue;
    kernels::set_isa(isa);
    for (CaseOptions o : few_rows()) {
      if (isa == Isa::baseline && o.head_dim > 48) continue;  // slow
      SCOPED_TRACE(describe(o));
      expect_int8_is_its_numbers(o);
      o.alibi = true, o.queries = 19, o.head_dim += 4;  // tiles
      o.query_lengths = true, o.empty_row = kernels::EmptyRow::uniform;
      expect_int8_is_its_numbers(o);
    }
  }
}

TEST(AttentionDecodeTest, RowsOfInt8AreNearestAndKeepWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {127, -126.5f, 0.5f, 1.5f}, tiny(4, 1e-37f), bad = {1, infinity, 2, 3};
  std::vector<int32_t> row(2);
  std::vector<float> back(4);
  const auto through = [&](const std::vector<float>& from) {
    kernels::quantize_int8_row(from.data(), 4, row.data());
    kernels::widen_int8_row(row.data(), 4, back.data());
    return back;
  };
  EXPECT_EQ(through(x), (std::vector<float>{127, -126, 0, 2}));  // ties to even
  EXPECT_EQ(through(tiny), std::vector<float>(4, 0));
  for (const float number : through(bad)) EXPECT_TRUE(std::isnan(number));
}

// bf16 values that are exact in f32, so that only the output is rounded.
TEST(AttentionDecodeTest, WidenedBrainFloatHasTheBitsOfF32) {
  kernels::set_bf16_dots(false);
  for (const CaseOptions& o : few_rows()) {
    SCOPED_TRACE(describe(o));
    AttentionCase c(o);
    const auto round = [](std::vector<float>& x) {
      std::vector<BFloat16> y(x.begin(), x.end());
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(y[i]);
      return y;
    };
    const auto q = round(c.query), k = round(c.key), v = round(c.value);
    const auto f32 = c.fused(false);
    std::vector<BFloat16> out(f32.out.size(), BFloat16(std::nanf("")));
    std::vector<BFloat16> expected(f32.out.begin(), f32.out.end());
    std::vector<float> lse(f32.lse.size(), std::nanf(""));
    kernels::attention_forward(c.problem, c.terms<float>(), c.input(q, k, v), c.output(out, lse));
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(lse, f32.lse));
  }
  kernels::set_bf16_dots(true);
}

}  // namespace
}  // namespace multihead
