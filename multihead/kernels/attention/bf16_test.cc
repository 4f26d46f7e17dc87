// Attention on bf16 storage: accuracy, equal bits, and what must not leak.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/testing/attention_case.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/sanitizers.h"

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
  const kernels::AttentionInput in = c.input(q, k, v);
  const kernels::AttentionOutput to = c.output(r.out, r.lse);
  kernels::attention_forward(c.problem, c.terms<float>(), in, to);
  kernels::AttentionGradient g;
  g.out = to.out, g.lse = to.lse, g.d_out = {d_out.data(), c.out_strides};
  g.d_lse = c.d_lse.empty() ? nullptr : c.d_lse.data();
  g.d_query = {r.d_query.data(), c.query_strides}, g.d_key = {r.d_key.data(), c.key_strides};
  g.d_value = {r.d_value.data(), c.value_strides};
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

std::vector<CaseOptions> bf16_cases() {
  std::vector<CaseOptions> list;
  for (uint32_t seed = 1; seed <= 24; seed += multihead::testing::kCaseStep) {
    CaseOptions o;
    o.seed = seed, o.batch = 2, o.kv_heads = 2, o.heads = seed % 3 == 0 ? 2 : 4;
    const int64_t queries[] = {1, 3, 67, 130}, keys[] = {97, 300, 515}, dims[] = {16, 31, 40, 64, 80, 128};
    o.queries = queries[seed % 4], o.keys = keys[seed % 3], o.head_dim = dims[seed % 6];
    o.value_dim = dims[seed / 2 % 6], o.causal = seed % 2 == 0;
    if (seed % 5 == 0) o.window_left = 71;
    if (seed % 7 == 0) o.alibi = true, o.softcap = 5;
    if (seed % 8 == 0) o.keep = Keep::per_sample;
    if (seed % 11 == 0) o.dropout = 0.25;
    if (seed % 4 == 1) o.layout = testing::Layout::bthd;
    if (seed % 6 == 1) o.key_lengths = true;
    o.lse_gradient = seed % 3 == 1;
    list.push_back(o);
  }
  return list;
}

// Inputs rounded to bf16, so that f64 computes from the same numbers: what is left are the roundings of the
// output and, with dots, of the probabilities. Gradients get three more.
TEST(AttentionBf16Test, AsAccurateAsItsRoundings) {
  for (const CaseOptions& o : bf16_cases()) {
    SCOPED_TRACE(concat("seed ", o.seed));
    AttentionCase c(o);
    for (auto* x : {&c.query, &c.key, &c.value, &c.d_out}) {
      for (float& v : *x) v = static_cast<float>(BFloat16(v));
    }
    const auto exact = c.reference<double>(true);
    const Bf16Result r = run(c);
    const auto expect_near = [](const std::vector<BFloat16>& x, const std::vector<double>& y, double ulps) {
      const std::vector<float> wide(x.begin(), x.end());
      const auto d = testing::distance(wide, y);
      EXPECT_LE(d.max, ulps * 0x1p-8 * testing::largest(y));
      EXPECT_LE(d.rms, ulps * 0x1p-9 * testing::largest(y));
    };
    expect_near(r.out, exact.out, 1.5);
    expect_near(r.d_query, exact.d_query, 3), expect_near(r.d_key, exact.d_key, 3);
    expect_near(r.d_value, exact.d_value, 3);
    EXPECT_LE(testing::distance(r.lse, exact.lse).max, 1e-5 * std::max(1.0, testing::largest(exact.lse)));
  }
}

TEST(AttentionBf16Test, AnyNumberOfThreads) {
  const testing::EverywhereScope scope;
  for (const CaseOptions& o : bf16_cases()) {
    AttentionCase c(o);
    set_num_threads(1);
    const Bf16Result one = run(c);
    for (int threads : {2, 3, 8}) {
      set_num_threads(threads);
      const Bf16Result more = run(c);
      expect_equal(more.out, one.out, "out"), expect_equal(more.d_query, one.d_query, "d_query");
      expect_equal(more.d_key, one.d_key, "d_key"), expect_equal(more.d_value, one.d_value, "d_value");
      EXPECT_EQ(more.lse, one.lse);
    }
  }
}

// A whole prefill, chunks and single tokens, with a window whose ends fall inside pairs of keys.
TEST(AttentionBf16Test, PrefillChunksAndSingleTokens) {
  for (int64_t window : {-1, 291}) {
    CaseOptions o;
    o.batch = 2, o.heads = 6, o.kv_heads = 2, o.queries = o.keys = 1100, o.head_dim = 48, o.value_dim = 80;
    o.causal = true, o.window_left = window;
    AttentionCase c(o);
    const Bf16Result whole = run(c);
    const auto narrow = [](const std::vector<float>& x) { return std::vector<BFloat16>(x.begin(), x.end()); };
    const auto q = narrow(c.query), k = narrow(c.key), v = narrow(c.value);
    for (int64_t chunk : {1, 7, 300}) {
      for (int64_t first = chunk == 1 ? 1040 : 0; first < o.queries; first += chunk) {
        const int64_t count = std::min(chunk, o.queries - first);
        kernels::AttentionProblem p = c.problem;
        p.queries = count, p.keys = first + count, p.diagonal = first;
        std::vector<BFloat16> out(static_cast<size_t>(12 * count * 80), BFloat16(std::nanf("")));
        kernels::AttentionInput in = c.input(q, k, v);
        in.query = multihead::testing::from_element<BFloat16>(in.query, first * 48);
        kernels::attention_forward(p, c.terms<float>(), in,
                                   {{out.data(), {6 * count * 80, count * 80, 80}}, {}});
        for (int64_t bh = 0; bh < 12; ++bh) {
          ASSERT_EQ(0, std::memcmp(out.data() + bh * count * 80, whole.out.data() + (bh * 1100 + first) * 80,
                                   static_cast<size_t>(count * 80) * sizeof(BFloat16)))
              << "chunk " << chunk << " at " << first << " head " << bh << " window " << window;
        }
      }
    }
  }
}

// Probabilities become pairs of keys while they are computed, or, with dropout (here of nothing), after it:
// blocks and windows that begin and end at odd keys, within a chain of 16 or not.
TEST(AttentionBf16Test, PairsMadeAtOnceOrAfterwards) {
  for (int64_t queries : {1, 3, 67}) {
    for (int64_t window : {1, 4, 15, 16, 17, 18, 33, 70, 255, 256, 291}) {
      for (int64_t keys : {301, 512, 521}) {
        SCOPED_TRACE(concat("queries ", queries, " window ", window, " keys ", keys));
        CaseOptions o;
        o.heads = o.kv_heads = 2, o.queries = queries, o.keys = keys, o.head_dim = o.value_dim = 24;
        o.window_left = window, o.causal = true, o.alibi = window % 2 == 0;
        AttentionCase c(o);
        const Bf16Result at_once = run(c);
        c.problem.dropout_p = 1e-30;
        const Bf16Result afterwards = run(c);
        expect_equal(at_once.out, afterwards.out, "out");
        EXPECT_EQ(at_once.lse, afterwards.lse);
      }
    }
  }
}

// NaN and Inf in keys and values that no query may see, by lengths, a dense mask and a window.
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
  uint8_t keep[37] = {};  // of the longest sequence there may be
  std::fill_n(keep, 13, uint8_t{1});
  for (AttentionCase* c : {&clean, &dirty}) {
    c->problem.batch = 1, c->problem.sequences = one;
    c->problem.keep = keep, c->problem.keep_strides = {0, 0, 0, 1};
    c->query_strides = {0, 41 * 16, 16}, c->key_strides = c->value_strides = {0, 37 * 16, 16};
    c->out_strides = {0, 41 * 16, 16}, c->lse_strides = {0, 41, 1};
  }
  for (int64_t j = 4 + 13; j < 37; ++j) {
    dirty.value[static_cast<size_t>(j * 16 + 1)] = dirty.key[static_cast<size_t>(j * 16)] = std::nanf("");
  }
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
