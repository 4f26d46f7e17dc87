// Same bits whatever the threads, vector width, batch, padding or chunking; nothing leaks from what is
// excluded.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/testing/attention_case.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/sanitizers.h"

namespace multihead {
namespace {

using kernels::Isa;
using testing::AttentionCase;
using testing::AttentionResult;
using testing::Bias;
using testing::CaseOptions;
using testing::Keep;
using testing::Layout;
using testing::same_bits;

void expect_same(const AttentionResult<float>& a, const AttentionResult<float>& b) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same_bits(a.d_query, b.d_query)) << "d_query";
  EXPECT_TRUE(same_bits(a.d_key, b.d_key)) << "d_key";
  EXPECT_TRUE(same_bits(a.d_value, b.d_value)) << "d_value";
  EXPECT_TRUE(same_bits(a.d_bias, b.d_bias)) << "d_bias";
  EXPECT_TRUE(same_bits(a.d_relative_bias, b.d_relative_bias)) << "d_relative_bias";
  EXPECT_TRUE(same_bits(a.d_alibi_slopes, b.d_alibi_slopes)) << "d_alibi_slopes";
  EXPECT_TRUE(same_bits(a.d_relative_key, b.d_relative_key)) << "d_relative_key";
}

// Shapes that take every way through the drivers: many heads, one head, few queries with many keys.
std::vector<CaseOptions> shapes() {
  std::vector<CaseOptions> list;
  CaseOptions o;
  o.batch = 3, o.heads = 4, o.kv_heads = 2, o.queries = 131, o.keys = 300, o.head_dim = 40, o.value_dim = 24;
  list.push_back(o);
  o = {};
  o.batch = 1, o.heads = o.kv_heads = 1, o.queries = 517, o.keys = 517, o.head_dim = 64, o.value_dim = 64;
  o.causal = true;
  list.push_back(o);
  o = {};
  o.batch = 1, o.heads = 8, o.kv_heads = 2, o.queries = 3, o.keys = 1741, o.head_dim = 32, o.value_dim = 32;
  o.causal = true;
  list.push_back(o);
  for (CaseOptions x : std::vector<CaseOptions>(list)) {
    x.alibi = true;  // one term alone is added by the product
    list.push_back(x);
    x.alibi = false, x.relative_key = 333;
    list.push_back(x);
    x.relative_key = 20, x.relative_key_shared = true, x.window_left = 150, x.softcap = 9;
    list.push_back(x);
    x.relative_key = 0, x.window_left = -1, x.softcap = 0;
    x.alibi = false, x.bias = Bias::per_head, x.keep = Keep::per_sample;
    list.push_back(x);
    x.keep = Keep::none;
    x.dropout = 0.2, x.alibi = x.relative_bias = true, x.softcap = 9;
    x.keep = Keep::per_sample, x.window_left = 200, x.layout = Layout::bthd;
    list.push_back(x);
    x.bias = Bias::key_only, x.keep = Keep::none, x.key_lengths = x.score_function = true;
    list.push_back(x);
  }
  return list;
}

TEST(AttentionBitsTest, AnyNumberOfThreads) {
  const testing::EverywhereScope scope;
  for (const CaseOptions& o : shapes()) {
    AttentionCase c(o);
    set_num_threads(1);
    const auto one = c.fused(true);
    for (int threads : {2, 3, 4, 16}) {
      set_num_threads(threads);
      SCOPED_TRACE(threads);
      expect_same(one, c.fused(true));
    }
  }
}

TEST(AttentionBitsTest, Avx2AndAvx512) {
  if (kernels::best_isa() < Isa::avx512) GTEST_SKIP() << "needs AVX-512";
  const testing::EverywhereScope scope;
  for (const CaseOptions& o : shapes()) {
    AttentionCase c(o);
    kernels::set_isa(Isa::avx512);
    const auto wide = c.fused(true);
    kernels::set_isa(Isa::avx2);
    expect_same(wide, c.fused(true));
  }
}

TEST(AttentionBitsTest, BaselineIsTheSpecification) {
  const testing::EverywhereScope scope;
  AttentionCase c(shapes()[0]);
  kernels::set_isa(Isa::baseline);
  expect_same(c.fused(true), c.reference<float>(true));
}

// Queries [first, first + count) of a case, against its keys [0, keys).
std::vector<float> part(AttentionCase& c, int64_t first, int64_t count, int64_t keys) {
  kernels::AttentionProblem p = c.problem;
  auto in = c.input<float>();
  in.query = multihead::testing::from_element<float>(in.query, first * in.query.strides.token);
  p.queries = count, p.keys = keys;
  p.diagonal = c.problem.diagonal + first;
  std::vector<float> out(static_cast<size_t>(p.batch * p.heads * count * p.value_dim), std::nanf(""));
  const kernels::Strides3 s{p.heads * count * p.value_dim, count * p.value_dim, p.value_dim};
  kernels::attention_forward(p, c.terms<float>(), in, {{out.data(), s}, {}});
  return out;
}

TEST(AttentionBitsTest, PrefillChunksAndSingleTokens) {
  const testing::EverywhereScope scope;
  for (int options : {0, 1, 2}) {
    CaseOptions o;
    o.batch = 2, o.heads = 6, o.kv_heads = 2, o.queries = o.keys = 1100, o.head_dim = 48, o.value_dim = 32;
    o.causal = true;
    if (options == 1) o.alibi = true, o.softcap = 20, o.window_left = 700;
    if (options == 2) o.relative_key = 900, o.head_dim = 41;
    AttentionCase c(o);
    const auto whole = part(c, 0, o.queries, o.keys);
    for (int threads : {1, 3}) {
      set_num_threads(threads);
      for (int64_t chunk : {1, 7, 300}) {
        for (int64_t first = chunk == 1 ? 1040 : 0; first < o.queries; first += chunk) {
          const int64_t count = std::min(chunk, o.queries - first);
          const auto piece = part(c, first, count, first + count);  // the cache ends at the last query
          for (int64_t bh = 0; bh < o.batch * o.heads; ++bh) {
            ASSERT_EQ(0, std::memcmp(piece.data() + bh * count * o.value_dim,
                                     whole.data() + (bh * o.queries + first) * o.value_dim,
                                     static_cast<size_t>(count * o.value_dim) * sizeof(float)))
                << "chunk " << chunk << " at " << first << " threads " << threads;
          }
        }
      }
    }
  }
}

// The same sequences padded to a common length, packed, and one by one.
void expect_padding_changes_nothing(int64_t relative_key) {
  CaseOptions o;
  o.batch = 4, o.heads = 4, o.kv_heads = 2, o.queries = o.keys = 150, o.head_dim = 32, o.value_dim = 48;
  o.relative_key = relative_key;
  AttentionCase c(o);
  const int64_t lengths[] = {150, 1, 77, 130};
  kernels::AttentionProblem p = c.problem;
  p.key_lengths = p.query_lengths = lengths;
  auto padded = c.poisoned<float>();
  kernels::attention_forward(p, c.terms<float>(), c.input<float>(), c.output(padded));
  kernels::attention_backward(p, c.terms<float>(), c.input<float>(), c.gradient(padded));
  for (int64_t b = 0; b < o.batch; ++b) {
    kernels::AttentionProblem one = c.problem;
    one.batch = 1, one.queries = one.keys = lengths[b];
    auto in = c.input<float>();
    const auto sample = [b](const kernels::Operand& x) {
      return multihead::testing::from_element<float>(x, b * x.strides.batch);
    };
    in = {sample(in.query), sample(in.key), sample(in.value)};
    auto r = c.poisoned<float>();
    auto out = c.output(r);
    kernels::attention_forward(one, c.terms<float>(), in, out);
    auto g = c.gradient(r);
    g.d_out = sample(g.d_out);
    kernels::attention_backward(one, c.terms<float>(), in, g);
    const auto expect_rows = [&](const std::vector<float>& alone, const std::vector<float>& all,
                                 int64_t heads, int64_t dim, const char* what) {
      for (int64_t h = 0; h < heads; ++h) {
        EXPECT_EQ(0, std::memcmp(alone.data() + h * 150 * dim, all.data() + (b * heads + h) * 150 * dim,
                                 static_cast<size_t>(lengths[b] * dim) * sizeof(float)))
            << what << " of sample " << b;
      }
    };
    expect_rows(r.out, padded.out, o.heads, o.value_dim, "out");
    expect_rows(r.d_query, padded.d_query, o.heads, o.head_dim, "d_query");
    expect_rows(r.d_key, padded.d_key, o.kv_heads, o.head_dim, "d_key");
    expect_rows(r.d_value, padded.d_value, o.kv_heads, o.value_dim, "d_value");
  }
}

TEST(AttentionBitsTest, PaddedPackedAndAlone) {
  for (int64_t relative_key : {0, 90, 400}) expect_padding_changes_nothing(relative_key);
}

// Grouped heads of fewer queries than a tile holds, several to a tile: their sums do not depend on the
// padding.
TEST(AttentionBitsTest, ShortGroupedHeadsPaddedAndAlone) {
  CaseOptions o;
  o.batch = 1, o.heads = 6, o.kv_heads = 2, o.queries = o.keys = 150, o.head_dim = 32, o.value_dim = 48;
  for (int64_t length : {5, 21, 37, 63}) {
    o.relative_key = length % 2 == 0 ? 0 : 3 * length;
    AttentionCase c(o);
    const int64_t lengths[] = {length};
    kernels::AttentionProblem padded = c.problem, alone = c.problem;
    padded.key_lengths = padded.query_lengths = lengths;
    alone.queries = alone.keys = length;
    const auto run = [&](const kernels::AttentionProblem& p) {
      auto r = c.poisoned<float>();
      kernels::attention_forward(p, c.terms<float>(), c.input<float>(), c.output(r));
      kernels::attention_backward(p, c.terms<float>(), c.input<float>(), c.gradient(r));
      return r;
    };
    const auto a = run(padded), b = run(alone);
    const auto expect_rows = [&](const std::vector<float>& x, const std::vector<float>& y, int64_t heads,
                                 int64_t dim, const char* what) {
      for (int64_t h = 0; h < heads; ++h) {
        EXPECT_EQ(0, std::memcmp(x.data() + h * 150 * dim, y.data() + h * 150 * dim,
                                 static_cast<size_t>(length * dim) * sizeof(float)))
            << what << " of " << length;
      }
    };
    expect_rows(a.d_query, b.d_query, o.heads, o.head_dim, "d_query");
    expect_rows(a.d_key, b.d_key, o.kv_heads, o.head_dim, "d_key");
    expect_rows(a.d_value, b.d_value, o.kv_heads, o.value_dim, "d_value");
    EXPECT_TRUE(same_bits(a.d_relative_key, b.d_relative_key)) << length;
  }
}

// NaN in rows of a table of relative keys that no query meets with a key it may see, and in queries without
// any key.
TEST(AttentionBitsTest, RelativeKeysOfExcludedPairsDoNotLeak) {
  for (int64_t dim : {32, 17}) {
    CaseOptions o;
    o.batch = 2, o.heads = 4, o.kv_heads = 2, o.queries = 90, o.keys = 90, o.head_dim = dim, o.value_dim = 32;
    o.relative_key = 150, o.causal = true, o.window_left = 40;  // rows 60 to 100 are met
    AttentionCase clean(o), dirty(o);
    const int64_t lengths[] = {90, 71};
    clean.problem.query_lengths = dirty.problem.query_lengths = lengths;
    for (int64_t row = 0; row < o.heads * o.relative_key; ++row) {
      const int64_t r = row % o.relative_key;
      if (r < 60 || r > 100)
        dirty.relative_key[static_cast<size_t>(row * (dim + 3) + r % dim)] = std::nanf("");
    }
    for (int64_t row = 0; row < o.heads * o.queries; ++row) {
      if (row % o.queries < lengths[1]) continue;
      dirty.query[static_cast<size_t>((o.heads * o.queries + row) * dim)] = std::nanf("");
    }
    const auto a = clean.fused(true), z = dirty.fused(true), exact = clean.reference<float>(true);
    EXPECT_TRUE(same_bits(a.out, z.out));
    for (const auto* g : {&z.d_query, &z.d_key, &z.d_value, &z.d_relative_key}) {
      for (float x : *g) ASSERT_TRUE(std::isfinite(x)) << g - &z.d_query;
    }
    EXPECT_LE(testing::distance(z.d_relative_key, exact.d_relative_key).max, 1e-4);
    EXPECT_LE(testing::distance(z.d_query, exact.d_query).max, 1e-4);
  }
}

// Plants NaN and Inf in keys and values that no query may see, or only some.
TEST(AttentionBitsTest, ExcludedNanDoesNotLeak) {
  for (float poison : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    CaseOptions o;
    o.batch = 2, o.heads = 4, o.kv_heads = 2, o.queries = 90, o.keys = 90, o.head_dim = 32, o.value_dim = 32;
    o.causal = true;
    AttentionCase clean(o), dirty(o);
    const int64_t from = 50;  // keys from here on are poisoned, so queries from here on see poison
    for (int64_t b = 0; b < o.batch; ++b) {
      for (int64_t h = 0; h < o.kv_heads; ++h) {
        for (int64_t j = from; j < o.keys; ++j) {
          dirty.key[(b * o.kv_heads + h) * o.keys * 32 + j * 32 + 3] = poison;
          dirty.value[(b * o.kv_heads + h) * o.keys * 32 + j * 32 + 5] = poison;
        }
      }
    }
    const auto a = clean.fused(true), z = dirty.fused(true);
    for (int64_t bh = 0; bh < o.batch * o.heads; ++bh) {
      for (int64_t i = 0; i < o.queries; ++i) {
        const float* x = a.out.data() + (bh * o.queries + i) * 32;
        const float* y = z.out.data() + (bh * o.queries + i) * 32;
        if (i < from) {
          EXPECT_EQ(0, std::memcmp(x, y, 32 * sizeof(float))) << "row " << i;
          EXPECT_TRUE(std::isfinite(z.d_query[(bh * o.queries + i) * 32])) << "row " << i;
        } else if (std::isnan(poison)) {
          EXPECT_TRUE(std::isnan(y[5])) << "a visible NaN must show, row " << i;
        }
      }
    }
  }
}

TEST(AttentionBitsTest, PaddingMayHoldAnything) {
  for (int kind = 0; kind < 3; ++kind) {
    CaseOptions o;
    o.batch = 3, o.heads = 2, o.kv_heads = 2, o.queries = 70, o.keys = 83, o.head_dim = 24, o.value_dim = 16;
    o.seed = 5 + static_cast<uint32_t>(kind);
    o.bias = kind == 1 ? Bias::key_only : Bias::none;
    AttentionCase clean(o), dirty(o);
    const int64_t lengths[] = {83, 40, 0};
    std::vector<uint8_t> keep;
    for (AttentionCase* c : {&clean, &dirty}) {
      if (kind == 0) c->problem.key_lengths = lengths;
      for (int64_t b = 0; b < o.batch; ++b) {
        for (int64_t j = 0; j < o.keys; ++j) {
          if (kind == 2) keep.push_back(j < lengths[b]);
          if (kind == 1 && j >= lengths[b]) {
            c->bias[static_cast<size_t>(b * o.keys + j)] = -std::numeric_limits<float>::infinity();
          }
          for (int64_t h = 0; c == &dirty && j >= lengths[b] && h < o.kv_heads; ++h) {
            const int64_t row = (b * o.kv_heads + h) * o.keys + j;
            if (kind != 1) dirty.key[row * 24 + 2] = std::nanf("");
            dirty.value[row * 16 + 3] = std::nanf("");
          }
        }
      }
    }
    if (kind == 2) {
      for (AttentionCase* c : {&clean, &dirty}) {
        c->problem.keep = keep.data(), c->problem.keep_strides = {o.keys, 0, 0, 1};
      }
    }
    const auto a = clean.fused(true), z = dirty.fused(true);
    EXPECT_TRUE(same_bits(a.out, z.out)) << kind;
    EXPECT_TRUE(same_bits(a.lse, z.lse)) << kind;
    for (const auto* g : {&z.d_query, &z.d_key, &z.d_value}) {
      for (float x : *g) EXPECT_TRUE(std::isfinite(x)) << kind;
    }
    for (int64_t i = 0; i < o.heads * o.queries * 16; ++i) {  // sample 2 sees nothing
      EXPECT_EQ(0.0f, z.out[2 * o.heads * o.queries * 16 + i]);
    }
    EXPECT_EQ(-std::numeric_limits<float>::infinity(), z.lse[2 * o.heads * o.queries]);
  }
}

std::vector<BFloat16> rounded(std::vector<float>& x) {
  std::vector<BFloat16> y(x.begin(), x.end());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(y[i]);
  return y;
}

bool equals_rounded(const std::vector<BFloat16>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].bits != BFloat16(b[i]).bits) return false;
  }
  return a.size() == b.size();
}

struct WithoutDots {
  WithoutDots() { kernels::set_bf16_dots(false); }
  ~WithoutDots() { kernels::set_bf16_dots(true); }
};

// Widened bf16 is f32 with one rounding at the end.
TEST(AttentionBitsTest, BrainFloatRoundsOnce) {
  const WithoutDots without;
  std::vector<CaseOptions> cases = shapes();
  cases.emplace_back();  // tasks of sixteen tiles
  cases.back().batch = 1, cases.back().heads = cases.back().kv_heads = 8, cases.back().causal = true;
  cases.back().queries = 1031, cases.back().keys = 701, cases.back().head_dim = cases.back().value_dim = 17;
  for (size_t i = 0; i < cases.size(); i += testing::kCaseStep) {
    AttentionCase c(cases[i]);
    const auto q = rounded(c.query), k = rounded(c.key), v = rounded(c.value), d_out = rounded(c.d_out);
    auto f = c.fused(false);
    const std::vector<float> out = f.out;
    const auto out16 = rounded(f.out);
    auto g = c.gradient(f);
    kernels::attention_backward(c.problem, c.terms<float>(), c.input<float>(), g);
    std::vector<BFloat16> o16(out16.size()), dq(q.size()), dk(k.size()), dv(v.size());
    std::vector<float> lse = f.lse;
    const kernels::AttentionInput in = c.input(q, k, v);
    const kernels::AttentionOutput to = c.output(o16, lse);
    kernels::attention_forward(c.problem, c.terms<float>(), in, to);
    EXPECT_TRUE(equals_rounded(o16, out));
    kernels::AttentionGradient h;
    h.out = to.out, h.lse = to.lse, h.d_out = {d_out.data(), c.out_strides};
    h.d_query = {dq.data(), c.query_strides}, h.d_key = {dk.data(), c.key_strides};
    h.d_value = {dv.data(), c.value_strides};
    kernels::attention_backward(c.problem, c.terms<float>(), in, h);
    EXPECT_TRUE(equals_rounded(dq, f.d_query));
    EXPECT_TRUE(equals_rounded(dk, f.d_key));
    EXPECT_TRUE(equals_rounded(dv, f.d_value));
  }
}

TEST(AttentionBitsTest, ValuesOfOnesGiveOnes) {
  CaseOptions o;
  o.queries = 37, o.keys = 311, o.logits = 3000;
  AttentionCase c(o);
  std::fill(c.value.begin(), c.value.end(), 1.0f);
  for (float x : c.fused(false).out) EXPECT_NEAR(x, 1.0f, 1e-6f);
}

TEST(AttentionBitsTest, LargeLogits) {
  CaseOptions o;
  o.queries = 67, o.keys = 290, o.head_dim = o.value_dim = 32, o.logits = 1e4;
  AttentionCase c(o);
  const auto exact = c.reference<double>(false);
  const auto naive = c.reference<float>(false), fused = c.fused(false);
  EXPECT_LE(testing::distance(fused.out, exact.out).rms, testing::distance(naive.out, exact.out).rms + 1e-6);
}

}  // namespace
}  // namespace multihead
