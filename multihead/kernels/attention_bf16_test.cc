// Attention on bf16 storage: what must not leak.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/kernels/attention.h"
#include "multihead/testing/attention_case.h"

namespace multihead {
namespace {

using testing::AttentionCase;
using testing::CaseOptions;
using testing::Keep;

struct Bf16Result {
  std::vector<BFloat16> out, d_query, d_key, d_value;
  std::vector<float> lse;
};

// Forward and backward of a case rounded to bf16; outputs poisoned.
Bf16Result run(AttentionCase& c) {
  const auto narrow = [](const std::vector<float>& x) { return std::vector<BFloat16>(x.begin(), x.end()); };
  const auto q = narrow(c.query), k = narrow(c.key), v = narrow(c.value), d_out = narrow(c.d_out);
  const BFloat16 nan(std::nanf(""));
  Bf16Result r{std::vector<BFloat16>(d_out.size(), nan), std::vector<BFloat16>(q.size(), nan),
               std::vector<BFloat16>(k.size(), nan), std::vector<BFloat16>(v.size(), nan),
               c.poisoned<float>().lse};
  const kernels::AttentionInput<BFloat16> in{q.data(),        k.data(),      v.data(),
                                             c.query_strides, c.key_strides, c.value_strides};
  kernels::attention_forward(
      c.problem, c.terms<float>(), in,
      kernels::AttentionOutput<BFloat16, float>{r.out.data(), c.out_strides, r.lse.data(), c.lse_strides});
  kernels::AttentionGradient<BFloat16, float> g;
  g.out = r.out.data(), g.out_strides = c.out_strides, g.lse = r.lse.data(), g.lse_strides = c.lse_strides;
  g.d_out = d_out.data(), g.d_out_strides = c.out_strides;
  g.d_query = r.d_query.data(), g.d_query_strides = c.query_strides;
  g.d_key = r.d_key.data(), g.d_key_strides = c.key_strides;
  g.d_value = r.d_value.data(), g.d_value_strides = c.value_strides;
  kernels::attention_backward(c.problem, c.terms<float>(), in, g);
  return r;
}

// Two roundings to bf16 apart at most, relative to the largest value; NaN is far from everything.
void expect_close(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b, const char* what) {
  const std::vector<float> x(a.begin(), a.end()), y(b.begin(), b.end());
  for (float v : x) ASSERT_TRUE(std::isfinite(v)) << what;
  EXPECT_LE(testing::distance(x, y).max, 0x1p-6 * testing::largest(y)) << what;
}

void expect_equal(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i].bits, b[i].bits) << what << " " << i;
}

// NaN and Inf in keys and values that nobody may see, by lengths, a dense mask and a window.
TEST(AttentionBf16Test, NothingExcludedLeaks) {
  for (int kind = 0; kind < 3; ++kind) {
    for (int64_t queries : {1, 70}) {
      for (float poison : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        SCOPED_TRACE(concat("kind ", kind, " queries ", queries, " poison ", poison));
        CaseOptions o;
        o.batch = 2, o.heads = 4, o.kv_heads = 2, o.queries = queries, o.keys = 83;
        o.head_dim = 32, o.value_dim = 48, o.seed = 5 + static_cast<uint32_t>(kind);
        if (kind == 2) o.window_right = 0, o.diagonal = 82 - 30 - queries;  // the last queries see key 51
        AttentionCase clean(o), dirty(o);
        const int64_t lengths[] = {51, 40};
        std::vector<uint8_t> keep;
        for (int64_t b = 0; b < 2; ++b) {
          const int64_t seen = kind == 2 ? 53 : lengths[b];
          for (int64_t j = 0; j < o.keys; ++j) keep.push_back(j < seen);
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t j = seen; j < o.keys; ++j) {
              dirty.key[((b * 2 + h) * o.keys + j) * 32 + 2] = poison;
              dirty.value[((b * 2 + h) * o.keys + j) * 48 + 3] = poison;
            }
          }
        }
        for (AttentionCase* c : {&clean, &dirty}) {
          if (kind == 0) c->problem.key_lengths = lengths;
          if (kind == 1) c->problem.keep = keep.data(), c->problem.keep_strides = {o.keys, 0, 0, 1};
        }
        const Bf16Result a = run(clean), z = run(dirty);
        expect_equal(z.out, a.out, "out");
        for (size_t i = 0; i < a.lse.size(); ++i) ASSERT_EQ(a.lse[i], z.lse[i]) << i;
        expect_close(z.d_query, a.d_query, "d_query");
        expect_close(z.d_key, a.d_key, "d_key");
        expect_close(z.d_value, a.d_value, "d_value");
      }
    }
  }
}

// The same for packed sequences: the neighbours' rows hold the poison.
TEST(AttentionBf16Test, NeighboursInARaggedBatchDoNotLeak) {
  CaseOptions o;
  o.batch = 3, o.heads = 2, o.kv_heads = 1, o.queries = 41, o.keys = 37, o.head_dim = 16, o.value_dim = 16;
  AttentionCase clean(o), dirty(o);
  // Rows of [B, T, ...] read as one packed sequence: 41 · 3 queries and 37 · 3 keys of each head.
  const kernels::AttentionSequence one[] = {{5, 30, 4, 20}};
  uint8_t keep[20] = {};
  std::fill_n(keep, 13, uint8_t{1});
  for (AttentionCase* c : {&clean, &dirty}) {
    c->problem.batch = 1, c->problem.sequences = one;
    c->problem.keep = keep, c->problem.keep_strides = {0, 0, 0, 1};
    c->query_strides = {0, 41 * 16, 16}, c->key_strides = c->value_strides = {0, 37 * 16, 16};
    c->out_strides = {0, 41 * 16, 16}, c->lse_strides = {0, 41, 1};
  }
  for (int64_t j = 4 + 13; j < 37; ++j) dirty.value[static_cast<size_t>(j * 16 + 1)] = std::nanf("");
  const Bf16Result a = run(clean), z = run(dirty);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = (h * 41 + 5) * 16; i < (h * 41 + 35) * 16; ++i) {
      ASSERT_EQ(z.out[static_cast<size_t>(i)].bits, a.out[static_cast<size_t>(i)].bits);
      ASSERT_NEAR(static_cast<float>(z.d_query[static_cast<size_t>(i)]),
                  static_cast<float>(a.d_query[static_cast<size_t>(i)]), 0.02f);
    }
  }
  for (int64_t i = 4 * 16; i < 24 * 16; ++i) {
    ASSERT_NEAR(static_cast<float>(z.d_value[static_cast<size_t>(i)]),
                static_cast<float>(a.d_value[static_cast<size_t>(i)]), 0.04f);
    ASSERT_NEAR(static_cast<float>(z.d_key[static_cast<size_t>(i)]),
                static_cast<float>(a.d_key[static_cast<size_t>(i)]), 0.04f);
  }
}

}  // namespace
}  // namespace multihead
