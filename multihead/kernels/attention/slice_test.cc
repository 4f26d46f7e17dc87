// Chunks of queries against chunks of keys, with the running sums between them: the bits of one call.
#include <gtest/gtest.h>

#include <functional>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/testing/attention_case.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/sanitizers.h"

namespace multihead::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionResult;
using testing::CaseOptions;
using testing::same_bits;

Operand rows_from(const Operand& x, int64_t row) {
  return {static_cast<float*>(x.data) + row * x.strides.token, x.strides};
}

// A chunk of queries against a chunk of keys; an empty one comes last.
struct Piece {
  AttentionSlice slice;
  AttentionProblem problem;
  Piece(const AttentionProblem& p, int64_t query, int64_t key, int64_t chunk, bool no_keys = false)
      : slice{query, key, p.queries, p.keys, -1}, problem(p) {
    problem.queries = std::min(chunk, p.queries - query);
    problem.keys = no_keys ? 0 : std::min(chunk, p.keys - key);
    problem.slice = &slice;
  }
};

void forward_in_pieces(AttentionCase& c, int64_t chunk, AttentionResult<float>& r) {
  const AttentionProblem& p = c.problem;
  const AttentionInput in = c.input<float>();
  const AttentionOutput to = c.output(r);
  std::fill(r.out.begin(), r.out.end(), 0.0f);
  std::fill(r.lse.begin(), r.lse.end(), -std::numeric_limits<float>::infinity());
  std::vector<float> sum(r.lse.size(), 0.0f);
  for (int64_t q = 0; q < p.queries; q += chunk) {
    const auto state = [&] {
      return AttentionState{rows_from(to.lse, q), rows_from({sum.data(), to.lse.strides}, q),
                            rows_from(to.out, q)};
    };
    for (int64_t k = 0; k < p.keys; k += chunk) {
      const Piece piece(p, q, k, chunk);
      attention_forward(piece.problem, c.terms<float>(),
                        {rows_from(in.query, q), rows_from(in.key, k), rows_from(in.value, k)},
                        {{}, {}, state()});
    }
    const Piece end(p, q, 0, chunk, true);
    attention_forward(end.problem, c.terms<float>(), {rows_from(in.query, q), {}, {}},
                      {rows_from(to.out, q), rows_from(to.lse, q), state()});
  }
}

void scale(std::vector<float>& x, double factor) {
  for (float& value : x) value *= static_cast<float>(factor);
}

// Gradients of the queries keys by keys, then those of the keys, head after head of a group and queries by
// queries.
void backward_in_pieces(AttentionCase& c, int64_t chunk, AttentionResult<float>& r) {
  const AttentionProblem& p = c.problem;
  const AttentionInput in = c.input<float>();
  AttentionGradient all = c.gradient<float>(r);
  for (auto* x : {&r.d_query, &r.d_key, &r.d_value}) std::fill(x->begin(), x->end(), 0.0f);
  std::vector<float> delta(r.lse.size(), 0.0f);
  const auto run = [&](int64_t q, int64_t k, int64_t head) {
    Piece piece(p, q, k, chunk);
    piece.slice.head = head;
    AttentionInput x = {rows_from(in.query, q), rows_from(in.key, k), rows_from(in.value, k)};
    AttentionGradient g;
    g.partial = true;
    g.lse = rows_from(all.lse, q), g.d_out = rows_from(all.d_out, q);
    g.delta = delta.data() + q;
    if (head < 0) {
      g.out = rows_from(all.out, q), g.d_query = rows_from(all.d_query, q);
      if (all.d_lse) g.d_lse = static_cast<const float*>(all.d_lse) + q;
    } else {
      g.d_key = rows_from(all.d_key, k), g.d_value = rows_from(all.d_value, k);
      const auto of_head = [&](Operand& operand) {  // one head of each group
        operand.data = static_cast<float*>(operand.data) + head * operand.strides.head;
        operand.strides.head *= p.group();
      };
      g.delta = delta.data() + q + head * g.lse.strides.head;
      of_head(x.query), of_head(g.d_out), of_head(g.lse);
    }
    attention_backward(piece.problem, c.terms<float>(), x, g);
  };
  for (int64_t q = 0; q < p.queries; q += chunk) {
    for (int64_t k = 0; k < p.keys; k += chunk) run(q, k, -1);
  }
  for (int64_t head = 0; head < p.group(); ++head) {
    for (int64_t q = 0; q < p.queries; q += chunk) {
      for (int64_t k = 0; k < p.keys; k += chunk) run(q, k, head);
    }
  }
  scale(r.d_query, p.scale), scale(r.d_key, p.scale);
}

CaseOptions sizes(int64_t queries, int64_t keys) {
  CaseOptions o;
  o.batch = 2, o.heads = 3, o.kv_heads = 1, o.queries = queries, o.keys = keys;
  o.head_dim = 12, o.value_dim = 20;
  return o;
}

class SliceOptionsTest
    : public ::testing::TestWithParam<std::pair<const char*, std::function<void(CaseOptions&)>>> {};

TEST_P(SliceOptionsTest, PiecesHaveTheBitsOfOneCall) {
  if (current_isa() == Isa::baseline) GTEST_SKIP() << "no vector instructions";
  std::vector<std::pair<int64_t, int64_t>> lengths = {{613, 1061}, {523, 523}, {37, 700}};
  if (testing::kSanitized) lengths = {{523, 523}};
  for (const auto& [queries, keys] : lengths) {
    CaseOptions o = sizes(queries, keys);
    GetParam().second(o);
    AttentionCase c(o);
    constexpr int64_t kChunk = 2 * attention_key_block;
    const AttentionResult<float> whole = c.fused(true);
    AttentionResult<float> pieces = c.poisoned<float>();
    forward_in_pieces(c, kChunk, pieces);
    EXPECT_TRUE(same_bits(pieces.out, whole.out)) << "out";
    EXPECT_TRUE(same_bits(pieces.lse, whole.lse)) << "lse";
    backward_in_pieces(c, kChunk, pieces);
    EXPECT_TRUE(same_bits(pieces.d_query, whole.d_query)) << "d_query";
    EXPECT_TRUE(same_bits(pieces.d_key, whole.d_key)) << "d_key";
    EXPECT_TRUE(same_bits(pieces.d_value, whole.d_value)) << "d_value";
  }
}

// The same on tiles of one part, where sums lie otherwise.
TEST(SliceTest, PiecesOnTilesHaveThem) {
  if (!has_tiles()) GTEST_SKIP() << "needs AMX";
  set_float32_matmul_precision(MatmulPrecision::medium);
  for (const bool causal : {false, true}) {
    CaseOptions o = sizes(613, 1061);
    o.causal = causal, o.alibi = !causal;
    AttentionCase c(o);
    const AttentionResult<float> whole = c.fused(true);
    AttentionResult<float> pieces = c.poisoned<float>();
    forward_in_pieces(c, 2 * attention_key_block, pieces);
    backward_in_pieces(c, 2 * attention_key_block, pieces);
    EXPECT_TRUE(same_bits(pieces.out, whole.out)) << "out";
    EXPECT_TRUE(same_bits(pieces.lse, whole.lse)) << "lse";
    EXPECT_TRUE(same_bits(pieces.d_query, whole.d_query)) << "d_query";
    EXPECT_TRUE(same_bits(pieces.d_key, whole.d_key)) << "d_key";
    EXPECT_TRUE(same_bits(pieces.d_value, whole.d_value)) << "d_value";
    EXPECT_GT(testing::distance(whole.out, c.reference<double>(false).out).rms, 1e-5);  // it was on tiles
  }
  set_float32_matmul_precision(MatmulPrecision::highest);
}

// Few rows: their key blocks are tasks of their own, and each call merges them into the state.
TEST(SliceTest, PiecesWithSplitKeysHaveThem) {
  if (current_isa() == Isa::baseline) GTEST_SKIP() << "no vector instructions";
  const int threads = num_threads();
  set_num_threads(8);
  AttentionCase c(sizes(70, 2900));
  const AttentionResult<float> whole = c.fused(false);
  AttentionResult<float> pieces = c.poisoned<float>();
  forward_in_pieces(c, 5 * attention_key_block, pieces);
  set_num_threads(threads);
  EXPECT_TRUE(same_bits(pieces.out, whole.out)) << "out";
  EXPECT_TRUE(same_bits(pieces.lse, whole.lse)) << "lse";
}

INSTANTIATE_TEST_SUITE_P(
    All, SliceOptionsTest,
    ::testing::Values(
        std::pair{"plain", [](CaseOptions&) {}}, std::pair{"causal", [](CaseOptions& o) { o.causal = true; }},
        std::pair{"window", [](CaseOptions& o) { o.window_left = 300, o.window_right = 70; }},
        std::pair{"diagonals", [](CaseOptions& o) { o.causal = o.diagonals = true; }},
        std::pair{"lengths", [](CaseOptions& o) { o.key_lengths = o.query_lengths = true; }},
        std::pair{"intervals", [](CaseOptions& o) { o.intervals = true; }},
        std::pair{"keep", [](CaseOptions& o) { o.keep = testing::Keep::full; }},
        std::pair{"mask_function", [](CaseOptions& o) { o.mask_function = true; }},
        std::pair{"bias", [](CaseOptions& o) { o.bias = testing::Bias::full, o.causal = true; }},
        std::pair{"alibi", [](CaseOptions& o) { o.alibi = o.causal = true; }},
        std::pair{"relative_bias", [](CaseOptions& o) { o.relative_bias = true; }},
        std::pair{"relative_key", [](CaseOptions& o) { o.relative_key = 65, o.head_dim = 16; }},
        std::pair{"score_function", [](CaseOptions& o) { o.score_function = true, o.softcap = 3; }},
        std::pair{"dropout", [](CaseOptions& o) { o.dropout = 0.3, o.causal = true; }},
        std::pair{"lse_gradient", [](CaseOptions& o) { o.lse_gradient = true; }},
        std::pair{"bthd", [](CaseOptions& o) { o.layout = testing::Layout::bthd, o.head_dim = 16; }}),
    [](const auto& param) { return std::string(param.param.first); });

}  // namespace
}  // namespace multihead::kernels
