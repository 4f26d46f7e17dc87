// The backward pass of attention on tiles, with the plain loops in place of the instructions: accuracy on
// every option, equal bits, and what must not leak.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/testing-inl.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/testing/attention_poison.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/sanitizers.h"

namespace multihead::kernels {
namespace {

using multihead::testing::AttentionCase;
using multihead::testing::AttentionResult;
using multihead::testing::Bias;
using multihead::testing::CaseOptions;
using multihead::testing::ExcludedBy;
using multihead::testing::kEveryExclusion;
using multihead::testing::kTilePrecisions;
using multihead::testing::PoisonedTwins;
using multihead::testing::same_bits;
using Result = AttentionResult<float>;

// Forward and backward of `p`, which has the case's strides; outputs poisoned.
Result run_f32(AttentionCase& c, const AttentionProblem& p, MatmulPrecision precision,
               TileUnit unit = TileUnit::emulated) {
  Result r = c.poisoned<float>();
  attention_forward_on_tiles(p, c.terms<float>(), c.input<float>(), c.output(r), precision, unit);
  attention_backward_on_tiles(p, c.terms<float>(), c.input<float>(), c.gradient(r), precision, unit);
  return r;
}

std::vector<BFloat16> narrow(const std::vector<float>& x) { return {x.begin(), x.end()}; }

std::vector<float> widen(const std::vector<BFloat16>& x) { return {x.begin(), x.end()}; }

// The inputs of a case, and its results, in bf16.
struct Bf16Case {
  explicit Bf16Case(AttentionCase& c)
      : query(narrow(c.query)), key(narrow(c.key)), value(narrow(c.value)), d_out(narrow(c.d_out)) {
    const BFloat16 nan(std::nanf(""));
    out.assign(d_out.size(), nan), d_query.assign(query.size(), nan);
    d_key.assign(key.size(), nan), d_value.assign(value.size(), nan);
    in = c.input(query, key, value);
    terms = c.poisoned<float>();
    const AttentionOutput to = c.output(out, terms.lse);
    g.out = to.out, g.lse = to.lse, g.d_out = {d_out.data(), c.out_strides};
    g.d_lse = c.d_lse.empty() ? nullptr : c.d_lse.data();
    g.d_query = {d_query.data(), c.query_strides}, g.d_key = {d_key.data(), c.key_strides};
    g.d_value = {d_value.data(), c.value_strides};
    const auto pointer = [](std::vector<float>& x) { return x.empty() ? nullptr : x.data(); };
    g.d_bias = pointer(terms.d_bias), g.d_relative_bias = pointer(terms.d_relative_bias);
    g.d_alibi_slopes = pointer(terms.d_alibi_slopes);
  }
  AttentionOutput output() const { return {g.out, g.lse}; }
  Result result() {
    terms.out = widen(out), terms.d_query = widen(d_query), terms.d_key = widen(d_key);
    terms.d_value = widen(d_value);
    return terms;
  }

  std::vector<BFloat16> query, key, value, d_out, out, d_query, d_key, d_value;
  AttentionInput in;
  AttentionGradient g;
  Result terms;  // those that stay f32
};

Result run_bf16(AttentionCase& c, const AttentionProblem& p, TileUnit unit = TileUnit::emulated) {
  Bf16Case x(c);
  attention_forward_on_tiles(p, c.terms<float>(), x.in, x.output(), MatmulPrecision::highest, unit);
  attention_backward_on_tiles(p, c.terms<float>(), x.in, x.g, MatmulPrecision::highest, unit);
  return x.result();
}

// Every precision, and bf16.
using Runner = std::function<Result(AttentionCase&, const AttentionProblem&)>;
void each_kind(const std::function<void(const Runner&)>& f) {
  for (MatmulPrecision p : kTilePrecisions) {
    SCOPED_TRACE(precision_name(p));
    f([p](AttentionCase& c, const AttentionProblem& problem) { return run_f32(c, problem, p); });
  }
  SCOPED_TRACE("bf16");
  f([](AttentionCase& c, const AttentionProblem& problem) { return run_bf16(c, problem); });
}

// The gradients of a result by name.
template <class T, class F>
void each_gradient(const AttentionResult<T>& r, F&& f) {
  f("d_query", r.d_query), f("d_key", r.d_key), f("d_value", r.d_value), f("d_bias", r.d_bias);
  f("d_relative_bias", r.d_relative_bias), f("d_alibi_slopes", r.d_alibi_slopes);
}

void expect_same(const Result& a, const Result& b) {
  std::vector<const std::vector<float>*> others;
  each_gradient(b, [&](const char*, const std::vector<float>& x) { others.push_back(&x); });
  size_t n = 0;
  each_gradient(a, [&](const char* what, const std::vector<float>& x) {
    EXPECT_TRUE(same_bits(x, *others[n++])) << what;
  });
}

std::vector<CaseOptions> backward_cases() {
  std::vector<CaseOptions> list;
  for (uint32_t seed = 1; seed <= 40; seed += multihead::testing::kCaseStep) {
    CaseOptions o = multihead::testing::tile_options(seed, 259);
    if (seed % 9 == 4) o.bias = Bias::per_head, o.relative_bias = true;
    if (seed % 15 == 2) o.ragged = true;
    o.lse_gradient = seed % 5 == 2;
    if (seed % 12 == 5) o.empty_row = EmptyRow::uniform, o.query_lengths = true;
    list.push_back(o);
  }
  return list;
}

double rms(const std::vector<double>& x) {
  return multihead::testing::distance(x, std::vector<double>(x.size(), 0.0)).rms;
}

// Root-mean-square error over the size of the gradient, each gradient by itself. Sums over positions cancel:
// their scale is that of their terms.
std::vector<double> errors(const Result& ours, const AttentionResult<double>& exact, const CaseOptions& o) {
  std::vector<const std::vector<float>*> results;
  each_gradient(ours, [&](const char*, const std::vector<float>& x) { results.push_back(&x); });
  const double terms = std::sqrt(static_cast<double>(o.batch * o.queries * o.value_dim));
  const double scales[] = {0, 0, 0, 0, terms, terms * static_cast<double>(o.queries + o.keys)};
  std::vector<double> list;
  each_gradient(exact, [&](const char*, const std::vector<double>& x) {
    const size_t n = list.size();
    const double size = std::max({rms(x), scales[n], 1e-30});
    list.push_back(x.empty() ? 0 : multihead::testing::distance(*results[n], x).rms / size);
  });
  return list;
}

// The engine of tiles is compiled where a CPU may have them.
class AttentionBackwardAmxTest : public ::testing::Test {
  void SetUp() override {
    if (best_isa() != Isa::avx512) GTEST_SKIP() << "needs AVX-512";
  }
};

TEST_F(AttentionBackwardAmxTest, AsAccurateAsItsParts) {
  for (CaseOptions o : backward_cases()) {
    SCOPED_TRACE(concat("seed ", o.seed));
    if (o.seed % 4 != 0) o.batch = 1, o.heads = std::min<int64_t>(o.heads, 4);
    AttentionCase c(o);
    const auto exact = c.reference<double>(true);
    const auto naive = errors(c.reference<float>(true), exact, o);
    const auto six = errors(run_f32(c, c.problem, MatmulPrecision::highest_tiles), exact, o);
    for (size_t i = 0; i < six.size(); ++i) EXPECT_LE(six[i], 1.5 * naive[i] + 2e-7) << i;
    const double luck = o.queries < 16 ? 3 : 1;  // few values, or gradients that cancel
    for (double e : errors(run_f32(c, c.problem, MatmulPrecision::high), exact, o)) {
      EXPECT_LE(e, luck * 2e-5);
    }
    for (double e : errors(run_f32(c, c.problem, MatmulPrecision::medium), exact, o)) {
      EXPECT_LE(e, luck * 1e-2);
    }
    for (auto* x : {&c.query, &c.key, &c.value, &c.d_out}) *x = widen(narrow(*x));
    for (double e : errors(run_bf16(c, c.problem), c.reference<double>(true), o)) {
      EXPECT_LE(e, luck * 1e-2);
    }
  }
}

// The figures that docs/performance.md gives.
TEST_F(AttentionBackwardAmxTest, ErrorsOfTheWords) {
  CaseOptions o;
  o.batch = 1, o.heads = o.kv_heads = 1, o.queries = o.keys = 512, o.head_dim = o.value_dim = 64;
  AttentionCase c(o);
  const auto exact = c.reference<double>(true);
  const auto worst = [&](MatmulPrecision p) {
    const auto all = errors(run_f32(c, c.problem, p), exact, o);
    const double e = *std::max_element(all.begin(), all.end());
    RecordProperty(std::string(precision_name(p)), ::testing::PrintToString(e));
    return e;
  };
  EXPECT_LE(worst(MatmulPrecision::highest_tiles), 1e-6);
  const double high = worst(MatmulPrecision::high);
  EXPECT_LE(high, 1.2e-5);
  EXPECT_GE(high, 1e-6);  // it is not the six products
  EXPECT_LE(worst(MatmulPrecision::medium), 6e-3);
}

TEST_F(AttentionBackwardAmxTest, AnyNumberOfThreads) {
  const int before = num_threads();
  std::vector<CaseOptions> list = backward_cases();
  CaseOptions one_head;
  one_head.batch = one_head.heads = one_head.kv_heads = 1, one_head.queries = one_head.keys = 517;
  one_head.head_dim = one_head.value_dim = 64, one_head.causal = true;
  list.push_back(one_head);
  for (const CaseOptions& o : list) {
    if (o.seed % 7 != 1 && o.batch > 1) continue;
    SCOPED_TRACE(concat("seed ", o.seed));
    AttentionCase c(o);
    each_kind([&](const Runner& run) {
      set_num_threads(1);
      const Result one = run(c, c.problem);
      for (int threads : {2, 3, 8}) {
        set_num_threads(threads);
        expect_same(one, run(c, c.problem));
      }
    });
  }
  set_num_threads(before);
}

// Rows [0, count) of every head of sample `b` in `all` are those of sample 0 in `alone`.
void expect_rows(const Result& alone, const Result& all, const CaseOptions& o, int64_t b, int64_t count) {
  const auto same = [&](const std::vector<float>& x, const std::vector<float>& y, int64_t heads, int64_t dim,
                        const char* what) {
    for (int64_t h = 0; h < heads; ++h) {
      EXPECT_EQ(0, std::memcmp(x.data() + h * o.keys * dim, y.data() + (b * heads + h) * o.keys * dim,
                               static_cast<size_t>(count * dim) * sizeof(float)))
          << what << " of sample " << b << " with " << count << " rows";
    }
  };
  same(alone.d_query, all.d_query, o.heads, o.head_dim, "d_query");
  same(alone.d_key, all.d_key, o.kv_heads, o.head_dim, "d_key");
  same(alone.d_value, all.d_value, o.kv_heads, o.value_dim, "d_value");
}

// Padded to a common length in a batch, or alone; heads that fill a tile, and grouped ones that do not.
TEST_F(AttentionBackwardAmxTest, PaddedAndAlone) {
  CaseOptions o;
  o.batch = multihead::testing::kSanitized ? 2 : 5, o.heads = 6, o.kv_heads = 2;
  o.queries = o.keys = 150, o.head_dim = 32, o.value_dim = 48;
  const int64_t lengths[] = {150, 77, 1, 130, 37};
  for (bool causal : {false, true}) {
    o.causal = causal;
    AttentionCase c(o);
    AttentionProblem padded = c.problem;
    padded.key_lengths = padded.query_lengths = lengths;
    each_kind([&](const Runner& run) {
      const Result all = run(c, padded);
      for (int64_t b = 0; b < o.batch; ++b) {
        CaseOptions first = o;
        first.batch = 1;
        AttentionCase one(first);
        const auto copy = [b](const std::vector<float>& from, std::vector<float>& to) {
          std::copy_n(from.begin() + b * static_cast<int64_t>(to.size()), to.size(), to.begin());
        };
        copy(c.query, one.query), copy(c.key, one.key), copy(c.value, one.value), copy(c.d_out, one.d_out);
        AttentionProblem alone = one.problem;
        alone.queries = alone.keys = lengths[b];
        expect_rows(run(one, alone), all, o, b, lengths[b]);
      }
    });
  }
}

TEST_F(AttentionBackwardAmxTest, SizesOfZero) {
  for (int which = 0; which < 4; ++which) {
    SCOPED_TRACE(which);
    CaseOptions o;
    o.queries = which == 0 ? 0 : 35, o.keys = which == 1 ? 0 : 70;
    o.head_dim = which == 2 ? 0 : 24, o.value_dim = which == 3 ? 0 : 40;
    AttentionCase c(o);
    const auto exact = c.reference<double>(true);
    const Result r = run_f32(c, c.problem, MatmulPrecision::highest_tiles);
    EXPECT_LE(multihead::testing::distance(r.d_query, exact.d_query).max, 1e-5);
    EXPECT_LE(multihead::testing::distance(r.d_key, exact.d_key).max, 1e-5);
    EXPECT_LE(multihead::testing::distance(r.d_value, exact.d_value).max, 1e-5);
  }
}

// A gradient that is not requested is not written, and the others keep their bits.
TEST_F(AttentionBackwardAmxTest, OnlyWhatIsWanted) {
  CaseOptions o;
  o.queries = 67, o.keys = 131, o.head_dim = 24, o.value_dim = 40, o.causal = true;
  AttentionCase c(o);
  const Result all = run_f32(c, c.problem, MatmulPrecision::high);
  for (int wanted = 0; wanted < 8; ++wanted) {
    Result r = c.poisoned<float>();
    r.out = all.out, r.lse = all.lse;
    auto g = c.gradient(r);
    if (!(wanted & 1)) g.d_query = {};
    if (!(wanted & 2)) g.d_key = {};
    if (!(wanted & 4)) g.d_value = {};
    attention_backward_on_tiles(c.problem, c.terms<float>(), c.input<float>(), g, MatmulPrecision::high,
                                TileUnit::emulated);
    const auto expect = [&](const std::vector<float>& x, const std::vector<float>& y, bool want) {
      if (want) {
        EXPECT_TRUE(same_bits(x, y)) << wanted;
      } else {
        for (float v : x) ASSERT_TRUE(std::isnan(v)) << wanted;
      }
    };
    expect(r.d_query, all.d_query, wanted & 1), expect(r.d_key, all.d_key, wanted & 2);
    expect(r.d_value, all.d_value, wanted & 4);
  }
}

// NaN and Inf in rows that no query may see, by lengths, a dense mask, a window and a bias of -inf: the
// gradients are those without them but for rounding, because such a head is repeated by the specification.
TEST_F(AttentionBackwardAmxTest, NothingExcludedLeaks) {
  const float inf = std::numeric_limits<float>::infinity();
  uint32_t cases = 0;
  for (const ExcludedBy by : kEveryExclusion) {
    for (float poison : {std::nanf(""), inf}) {
      if (cases++ % multihead::testing::kCaseStep != 0) continue;
      SCOPED_TRACE(concat("excluded by ", static_cast<int>(by), " poison ", poison));
      PoisonedTwins twins(by, 70, poison);
      AttentionCase &clean = twins.clean, &dirty = twins.dirty;
      const int64_t query_lengths[] = {61, 70};
      if (by == ExcludedBy::lengths) {
        clean.problem.query_lengths = dirty.problem.query_lengths = query_lengths;
        dirty.query[69 * 32] = dirty.d_out[69 * 48] = poison;  // an excluded query
      }
      each_kind([&](const Runner& run) {
        const Result a = run(clean, clean.problem), z = run(dirty, dirty.problem);
        const auto expect = [&](const std::vector<float>& x, const std::vector<float>& y, const char* what) {
          for (float v : x) ASSERT_TRUE(std::isfinite(v)) << what;
          EXPECT_LE(multihead::testing::distance(x, y).max, 0x1p-6 * multihead::testing::largest(y)) << what;
        };
        expect(z.d_query, a.d_query, "d_query"), expect(z.d_key, a.d_key, "d_key");
        expect(z.d_value, a.d_value, "d_value");
      });
    }
  }
}

// Where they may be seen, NaN and Inf arise in the elements in which the specification in f32 has them.
TEST_F(AttentionBackwardAmxTest, SeenNanAndInfAreThoseOfTheSpecification) {
  const float inf = std::numeric_limits<float>::infinity();
  for (bool causal : {false, true}) {
    CaseOptions o;
    o.batch = 1, o.heads = o.kv_heads = 4, o.queries = o.keys = 70, o.head_dim = 40, o.value_dim = 24;
    o.causal = causal;
    AttentionCase c(o);
    c.value[(0 * 70 + 33) * 24 + 3] = inf, c.query[(1 * 70 + 11) * 40] = inf;
    c.key[(2 * 70 + 20) * 40 + 1] = -inf, c.d_out[(3 * 70 + 5) * 24 + 7] = std::nanf("");
    for (MatmulPrecision precision : kTilePrecisions) {
      const Result r = run_f32(c, c.problem, precision);
      Result expected = r;  // the same forward
      reference_attention_backward<float>(c.problem, c.terms<float>(), c.input<float>(),
                                          c.gradient(expected));
      const auto expect = [&](const std::vector<float>& x, const std::vector<float>& y, const char* what) {
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(std::isnan(x[i]), std::isnan(y[i])) << what << i << precision_name(precision);
          ASSERT_EQ(std::isinf(x[i]), std::isinf(y[i])) << what << i << precision_name(precision);
        }
      };
      expect(r.d_query, expected.d_query, "d_query"), expect(r.d_key, expected.d_key, "d_key");
      expect(r.d_value, expected.d_value, "d_value");
    }
  }
}

// Small, so that an emulator gets through. The entry points must come here by themselves.
TEST_F(AttentionBackwardAmxTest, TheCpuDoesWhatTheLoopsDo) {
  if (!has_tiles()) GTEST_SKIP() << "needs AMX";
  for (CaseOptions o : backward_cases()) {
    SCOPED_TRACE(concat("seed ", o.seed));
    o.batch = 1, o.heads = 2, o.kv_heads = 1 + o.seed % 2;
    AttentionCase c(o);
    for (MatmulPrecision p : kTilePrecisions) {
      SCOPED_TRACE(precision_name(p));
      const Result loops = run_f32(c, c.problem, p);
      expect_same(loops, run_f32(c, c.problem, p, TileUnit::amx));
      set_float32_matmul_precision(p);
      expect_same(loops, c.fused(true));
      set_float32_matmul_precision(MatmulPrecision::highest);
    }
    expect_same(run_bf16(c, c.problem), run_bf16(c, c.problem, TileUnit::amx));
    Bf16Case entry(c);
    attention_forward(c.problem, c.terms<float>(), entry.in, entry.output());
    attention_backward(c.problem, c.terms<float>(), entry.in, entry.g);
    expect_same(run_bf16(c, c.problem), entry.result());
  }
}

}  // namespace
}  // namespace multihead::kernels
