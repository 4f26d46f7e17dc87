#include "multihead/ops/attention/inspect/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/testing/processor_time.h"

namespace multihead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(AttentionExplainTest, SaysTheRule) {
  Rng rng(4);
  AttentionCapture capture{.query_rows = {0, 1}, .want_entropy = true};
  const Tensor q = Tensor::ones({2, 4, 5, 16}), k = Tensor::ones({2, 2, 7, 16});
  const AttentionExplanation e =
      explain(q, k, k,
              {.mask = causal(Align::start) & lengths(Tensor::of<int64_t>({2}, {7, 3})),
               .softcap = 30,
               .bias = Tensor::full({5, 7}, 0.5).set_requires_grad(),
               .dropout_p = 0.1f,
               .rng = &rng,
               .empty_row = EmptyRow::uniform,
               .capture = &capture});
  EXPECT_EQ(rng.drawn(), 0u) << "explaining must not move the generator";
  EXPECT_FALSE(capture.weights.defined()) << "nor compute";
  EXPECT_EQ(e.mask, "causal(start) & lengths([2])");
  EXPECT_EQ(e.scale, 0.25);
  EXPECT_EQ(e.scale_rule, "1/sqrt(head_dim)");
  EXPECT_NEAR(e.dropout_p, 0.1, 1e-7);
  EXPECT_THAT(e.alignment, HasSubstr("start"));
  EXPECT_THAT(e.empty_row, HasSubstr("uniform"));
  EXPECT_EQ(e.output_bytes, 2 * 4 * 5 * (16 + 1) * 4);
  EXPECT_EQ(e.capture_bytes, 2 * 4 * 2 * 7 * 4 + 2 * 4 * 5 * 4);
  EXPECT_EQ(e.score_matrix_bytes, 2 * 4 * 5 * 7 * 4);
  const std::string text = e.to_string();
  for (const char* part :
       {"softcap 30", "+ bias [5, 7], trained", "capture    probabilities before dropout, entropy",
        "keys after the end are skipped", "kernel"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(AttentionExplainTest, RelativeKeysRunInF32) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const Tensor x = Tensor::ones({1, 2, 8, 4}, dtype);
    const std::string text =
        explain(x, x, x, {.relative_key = Tensor::ones({2, 15, 4}).set_requires_grad()}).to_string();
    EXPECT_THAT(text, HasSubstr("+ scale · query · relative_key [2, 15, 4], trained"));
    EXPECT_THAT(text, HasSubstr("relative key: a band of distances for 16 queries at a time"));
    EXPECT_THAT(text, Not(HasSubstr("on AMX tiles")));
    if (dtype == Dtype::bf16) {
      EXPECT_THAT(text, HasSubstr("relative_key takes no bf16 products"));
    }
  }
}

TEST(AttentionExplainTest, AlignmentsHaveNames) {
  const Tensor q = Tensor::ones({1, 1, 3, 4}), k = Tensor::ones({1, 1, 9, 4});
  EXPECT_THAT(explain(q, k, k).alignment, HasSubstr("i + 6 (end: the last query sees the last key)"));
  EXPECT_THAT(explain(q, k, k, {.mask = causal_offset(2)}).alignment, HasSubstr("i + 2 (given)"));
  EXPECT_THAT(explain(k, k, k, {.mask = causal()}).alignment, HasSubstr("at key position i"));
}

TEST(AttentionExplainTest, NamesTheKernelOfTheType) {
  const Tensor x = Tensor::ones({1, 2, 8, 4}, Dtype::f64);
  const AttentionExplanation wide = explain(x, x, x);
  EXPECT_EQ(wide.kernel, "reference f64");
  const Tensor y = x.to(Dtype::f32);
  const AttentionExplanation fast = explain(y, y, y);
  EXPECT_THAT(fast.kernel, HasSubstr("f32"));
  EXPECT_LE(kernels::parse_isa(fast.target), kernels::current_isa());
  EXPECT_THAT(explain(y.to(Dtype::f16), y.to(Dtype::f16), y.to(Dtype::f16)).to_string(),
              HasSubstr("f16 is storage"));
  const Tensor half = y.to(Dtype::bf16);
  EXPECT_THAT(explain(half, half, half).to_string(),
              HasSubstr(kernels::bf16_tiles()           ? "(AMX) forward and backward"
                        : kernels::attention_on_pairs() ? "AVX512_BF16"
                                                        : "widened to f32"));
}

TEST(AttentionExplainTest, SaysWhatAPrecisionChanges) {
  const Tensor x = Tensor::ones({1, 2, 8, 4});
  EXPECT_THAT(explain(x, x, x).to_string(), Not(HasSubstr("float32_matmul_precision")));
  kernels::set_float32_matmul_precision(kernels::MatmulPrecision::high);
  const AttentionExplanation e = explain(x, x, x),
                             wide = explain(x.to(Dtype::f64), x.to(Dtype::f64), x.to(Dtype::f64));
  kernels::set_float32_matmul_precision(kernels::MatmulPrecision::highest);
  EXPECT_THAT(
      e.to_string(),
      HasSubstr(kernels::has_tiles() ? "high: products on tiles, 3 of bf16 parts each, forward and backward"
                                     : "high: no effect, this CPU has no AMX tiles"));
  EXPECT_EQ(e.kernel, kernels::has_tiles() ? "tiled f32 on AMX tiles" : explain(x, x, x).kernel);
  EXPECT_THAT(wide.to_string(), Not(HasSubstr("float32_matmul_precision")));
}

TEST(AttentionExplainTest, SaysWhichOperandsAreCopied) {
  if (kernels::current_isa() == kernels::Isa::baseline) GTEST_SKIP() << "the plain loops copy nothing";
  const Tensor close = Tensor::ones({1, 2, 1024, 64});
  EXPECT_THAT(explain(close, close, close).to_string(), Not(HasSubstr("copied")));
  EXPECT_THAT(plan({.heads = 2, .queries = 1024, .head_dim = 64}).to_string(), Not(HasSubstr("copied")));
  const Tensor apart = close.as_strided({1, 2, 1024, 64}, {131072, 64, 128, 1});  // tokens before heads
  EXPECT_THAT(explain(apart, apart, apart).to_string(),
              AllOf(HasSubstr("keys lie 512 bytes apart: blocks are copied"),
                    HasSubstr("values lie 512 bytes apart: blocks are copied")));
  EXPECT_THAT(plan({.heads = 2, .queries = 1024, .head_dim = 64}, {.layout = Layout::bthd}).to_string(),
              HasSubstr("keys lie 512 bytes apart"));
  const Tensor odd = Tensor::ones({1, 2, 1024, 63});
  EXPECT_THAT(explain(odd, odd, odd).to_string(), HasSubstr("value_dim 63 is no multiple of 16"));
  const Tensor half = close.to(Dtype::bf16);
  EXPECT_THAT(explain(half, half, half).kernel, HasSubstr("bf16"));
}

TEST(AttentionExplainTest, PairsAreWholeNumbers) {
  EXPECT_THAT(plan({.heads = 8, .queries = 4096, .head_dim = 64}, {.mask = causal()}).to_string(),
              HasSubstr("  67125248 allowed pairs, "));
}

// Pairs are those of the mask, and those of the runs of keys that the kernel goes through.
TEST(AttentionExplainTest, CountsThePairsOfBlocks) {
  if (kernels::current_isa() == kernels::Isa::baseline) GTEST_SKIP() << "the plain loops have no blocks";
  const Tensor flags = Tensor::zeros({2, 5, 19}, Dtype::boolean);
  flags.data<bool>()[19 + 3] = flags.data<bool>()[19 + 4] = flags.data<bool>()[5 * 19 + 18] = true;
  const Tensor x = Tensor::ones({1, 2, 300, 16});
  const AttentionExplanation e = explain(x, x, x, {.mask = blocks(flags, 64, 16)});
  EXPECT_EQ(e.useful_pairs, 64 * 32 + 64 * 12);
  EXPECT_EQ(e.computed_pairs, 64 * 32 + 64 * 12);
  EXPECT_THAT(e.to_string(), HasSubstr("keys that no query of a tile of 64 sees are skipped, 16 at a time"));
  const Tensor fine = Tensor::zeros({2, 300, 60}, Dtype::boolean);
  fine.data<bool>()[3] = fine.data<bool>()[4] = fine.data<bool>()[(300 + 299) * 60 + 18] = true;
  const AttentionExplanation one = explain(x, x, x, {.mask = blocks(fine, 1, 5)});
  EXPECT_EQ(one.useful_pairs, 3 * 5);
  EXPECT_EQ(one.computed_pairs, 16 * 32 + 44 * 16) << "keys 15 to 24, 16 rows at a time, and 90 to 94";
  const Tensor narrow = Tensor::zeros({4, 16}, Dtype::boolean);
  for (int64_t i = 0; i < 4; ++i) narrow.data<bool>()[i * 16 + 4 * i] = true;
  const Tensor q = Tensor::ones({1, 2, 64, 16}), k = Tensor::ones({1, 2, 256, 16});
  EXPECT_EQ(explain(q, k, k, {.mask = blocks(narrow, 16, 16)}).computed_pairs, 2 * 4 * 16 * 16)
      << "16 rows at a time see as much as they use";
}

TEST(AttentionExplainTest, PlansFromSizesWithoutMemory) {
  reset_peak_memory();
  const int64_t before = memory_stats().peak_bytes;
  const AttentionExplanation p =
      plan({.batch = 4, .heads = 32, .kv_heads = 8, .queries = 65536, .head_dim = 128},
           {.mask = causal() & window(4095, 0)});
  EXPECT_LT(memory_stats().peak_bytes - before, 4096);
  EXPECT_EQ(p.output_bytes, int64_t{4} * 32 * 65536 * 129 * 4);
  EXPECT_EQ(p.score_matrix_bytes, int64_t{4} * 32 * 65536 * 65536 * 4);
  EXPECT_LT(p.workspace_bytes, int64_t{64} << 20);
  EXPECT_THROW(plan({.heads = 3, .kv_heads = 2, .queries = 4, .head_dim = 8}), ShapeError);
  EXPECT_THROW(plan({.heads = 3, .queries = -4, .head_dim = 8}), ValueError);
  const AttentionShape swapped = {
      .batch = 2, .heads = 3, .queries = 5, .keys = 7, .head_dim = 4, .value_dim = 6};
  EXPECT_EQ(plan(swapped, {.layout = Layout::bthd}).output_bytes, plan(swapped).output_bytes);
}

// One sample and head stand for all that are alike; samples with lengths are looked at one by one.
TEST(AttentionExplainTest, PlansOfManySamplesCountWhatPlansOfFewDo) {
  for (const int64_t queries : {1, 7, 64, 200, 700}) {
    for (const bool is_causal : {false, true}) {
      const AttentionShape shape = {
          .batch = 3, .heads = 6, .kv_heads = 2, .queries = queries, .head_dim = 16};
      const Mask mask = is_causal ? causal() : Mask();
      const Tensor full = Tensor::of<int64_t>({3}, {queries, queries, queries});
      const AttentionExplanation a = plan(shape, {.mask = mask}),
                                 b = plan(shape, {.mask = mask & lengths(full)});
      EXPECT_EQ(a.tasks, b.tasks) << queries;
      EXPECT_EQ(a.key_splits, b.key_splits) << queries;
      EXPECT_EQ(a.useful_pairs, b.useful_pairs) << queries;
      EXPECT_EQ(a.computed_pairs, b.computed_pairs) << queries;
      EXPECT_EQ(a.workspace_bytes, b.workspace_bytes) << queries;
    }
  }
}

TEST(AttentionExplainTest, HugePlansAreQuick) {
  const double seconds = testing::processor_seconds([] {
    const AttentionExplanation wide =
        plan({.batch = 1'000'000'000, .heads = 8, .queries = 64, .head_dim = 64});
    EXPECT_EQ(wide.useful_pairs, 8e9 * 64 * 64);
    EXPECT_GE(wide.tasks, 8'000'000'000 / 4);
    const AttentionExplanation most =
        plan({.batch = 1'000'000, .heads = 1'000, .queries = 10'000'000, .head_dim = 8});
    EXPECT_EQ(most.score_matrix_bytes, std::numeric_limits<int64_t>::max());
    EXPECT_EQ(plan({.queries = 10'000'000, .head_dim = 64}).useful_pairs, 1e14);
  });
  EXPECT_LT(seconds, 5 * testing::kSlowdown);
}

TEST(AttentionExplainTest, RefusesWhatAttentionRefuses) {
  const Tensor x = Tensor::ones({1, 2, 8, 4});
  EXPECT_THROW(explain(x, Tensor::ones({1, 2, 8, 5}), x), ShapeError);
  EXPECT_THROW(explain(x, x, x, {.dropout_p = 2}), ValueError);
}

}  // namespace
}  // namespace multihead
