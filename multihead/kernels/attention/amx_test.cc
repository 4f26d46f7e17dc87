// Attention on tiles, with the plain loops in place of the instructions: accuracy on every option, equal
// bits, and what must not leak.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
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
using multihead::testing::CaseOptions;
using multihead::testing::ExcludedBy;
using multihead::testing::kEveryExclusion;
using multihead::testing::kTilePrecisions;
using multihead::testing::PoisonedTwins;
using multihead::testing::same_bits;
using Result = multihead::testing::AttentionResult<float>;

Result run_f32(AttentionCase& c, MatmulPrecision precision, TileUnit unit = TileUnit::emulated) {
  Result r{std::vector<float>(c.d_out.size(), std::nanf("")), c.poisoned<float>().lse};
  attention_forward_on_tiles(c.problem, c.terms<float>(), c.input<float>(), c.output(r.out, r.lse), precision,
                             unit);
  return r;
}

Result run_bf16(AttentionCase& c, TileUnit unit = TileUnit::emulated) {
  const auto narrow = [](const std::vector<float>& x) { return std::vector<BFloat16>(x.begin(), x.end()); };
  const auto q = narrow(c.query), k = narrow(c.key), v = narrow(c.value);
  std::vector<BFloat16> out(c.d_out.size(), BFloat16(std::nanf("")));
  Result r{{}, c.poisoned<float>().lse};
  attention_forward_on_tiles(c.problem, c.terms<float>(), c.input(q, k, v), c.output(out, r.lse),
                             MatmulPrecision::highest, unit);
  for (BFloat16 x : out) r.out.push_back(static_cast<float>(x));
  return r;
}

// Every precision, and bf16.
void each_kind(
    const std::function<void(const std::string&, const std::function<Result(AttentionCase&)>&)>& f) {
  for (MatmulPrecision p : kTilePrecisions) {
    f(std::string(precision_name(p)), [p](AttentionCase& c) { return run_f32(c, p); });
  }
  f("bf16", [](AttentionCase& c) { return run_bf16(c); });
}

std::vector<CaseOptions> forward_cases() {
  std::vector<CaseOptions> list;
  for (uint32_t seed = 1; seed <= 32; seed += multihead::testing::kCaseStep) {
    list.push_back(multihead::testing::tile_options(seed, 515));
  }
  return list;
}

// The engine of tiles is compiled where a CPU may have them.
class AttentionAmxTest : public ::testing::Test {
  void SetUp() override {
    if (best_isa() != Isa::avx512) GTEST_SKIP() << "needs AVX-512";
  }
};

TEST_F(AttentionAmxTest, AsAccurateAsItsParts) {
  for (const CaseOptions& o : forward_cases()) {
    SCOPED_TRACE(concat("seed ", o.seed));
    AttentionCase c(o);
    const auto exact = c.reference<double>(false);
    const auto naive = c.reference<float>(false);
    const double top = multihead::testing::largest(exact.out);
    const auto rms = [&](const std::vector<float>& x) {
      return multihead::testing::distance(x, exact.out).rms / top;
    };
    const double f32 = multihead::testing::distance(naive.out, exact.out).rms / top;
    const Result six = run_f32(c, MatmulPrecision::highest_tiles);
    EXPECT_LE(rms(six.out), 1.5 * f32 + 1e-7);
    EXPECT_LE(multihead::testing::distance(six.lse, exact.lse).max,
              1e-5 * std::max(1.0, multihead::testing::largest(exact.lse)));
    EXPECT_LE(rms(run_f32(c, MatmulPrecision::high).out), 1e-5);
    EXPECT_LE(rms(run_f32(c, MatmulPrecision::medium).out), 5e-3);
    for (auto* x : {&c.query, &c.key, &c.value}) {
      for (float& v : *x) v = static_cast<float>(BFloat16(v));
    }
    const auto rounded = c.reference<double>(false);
    const Result half = run_bf16(c);
    EXPECT_LE(multihead::testing::distance(half.out, rounded.out).max,
              1.5 * 0x1p-8 * multihead::testing::largest(rounded.out));
    EXPECT_LE(multihead::testing::distance(half.out, rounded.out).rms,
              1.5 * 0x1p-9 * multihead::testing::largest(rounded.out));
    EXPECT_LE(multihead::testing::distance(half.lse, rounded.lse).max,
              1e-5 * std::max(1.0, multihead::testing::largest(rounded.lse)));
  }
}

// Rounded as if the maximum of each row were known beforehand, so that its largest probability is exact.
std::vector<float> rounded_from_exact_maxima(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  std::vector<float> out(c.d_out.size());
  std::vector<double> s(static_cast<size_t>(p.keys)), sums(static_cast<size_t>(p.value_dim));
  for (int64_t row = 0; row < p.heads * p.queries; ++row) {
    const float* key = c.key.data() + row / p.queries * p.keys * p.head_dim;
    const float* value = c.value.data() + row / p.queries * p.keys * p.value_dim;
    for (int64_t k = 0; k < p.keys; ++k) {
      s[k] = 0;
      for (int64_t i = 0; i < p.head_dim; ++i) {
        s[k] += double{c.query[row * p.head_dim + i]} * key[k * p.head_dim + i] * p.scale;
      }
    }
    const double max = *std::max_element(s.begin(), s.end());
    double total = 0;
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t k = 0; k < p.keys; ++k) {
      const double x = std::exp(s[k] - max), weight = static_cast<float>(BFloat16(static_cast<float>(x)));
      total += x;
      for (int64_t i = 0; i < p.value_dim; ++i) sums[i] += weight * value[k * p.value_dim + i];
    }
    for (int64_t i = 0; i < p.value_dim; ++i) {
      out[row * p.value_dim + i] = static_cast<float>(BFloat16(static_cast<float>(sums[i] / total)));
    }
  }
  return out;
}

TEST_F(AttentionAmxTest, PeakedScoresLoseNothing) {
  CaseOptions o;
  o.batch = 1, o.heads = o.kv_heads = 2, o.queries = 128, o.keys = 1024, o.head_dim = o.value_dim = 64;
  for (float peak : {1.0f, 3.0f}) {
    AttentionCase c(o);
    for (float& x : c.query) x *= peak;
    for (auto* x : {&c.query, &c.key, &c.value}) {
      for (float& v : *x) v = static_cast<float>(BFloat16(v));
    }
    const auto exact = c.reference<double>(false).out;
    const double bound = multihead::testing::distance(rounded_from_exact_maxima(c), exact).rms;
    EXPECT_LE(multihead::testing::distance(run_bf16(c).out, exact).rms, bound) << peak;
  }
}

// The figures that docs/performance.md gives: rms of the error over rms of the result.
TEST_F(AttentionAmxTest, ErrorsOfTheWords) {
  CaseOptions o;
  o.batch = 1, o.heads = o.kv_heads = 2, o.queries = o.keys = 512, o.head_dim = o.value_dim = 64;
  AttentionCase c(o);
  const auto exact = c.reference<double>(false);
  double size = 0;
  for (double x : exact.out) size += x * x;
  size = std::sqrt(size / static_cast<double>(exact.out.size()));
  const auto error = [&](MatmulPrecision p) {
    const double e = multihead::testing::distance(run_f32(c, p).out, exact.out).rms / size;
    RecordProperty(std::string(precision_name(p)), ::testing::PrintToString(e));
    return e;
  };
  EXPECT_LE(error(MatmulPrecision::highest_tiles), 1e-6);
  const double high = error(MatmulPrecision::high);
  EXPECT_LE(high, 1e-5);
  EXPECT_GE(high, 1e-6);  // it is not the six products
  EXPECT_LE(error(MatmulPrecision::medium), 5e-3);
}

TEST_F(AttentionAmxTest, AnyNumberOfThreads) {
  const int before = num_threads();
  for (const CaseOptions& o : forward_cases()) {
    if (o.seed % 3 != 0) continue;
    AttentionCase c(o);
    each_kind([&](const std::string& kind, const auto& run) {
      set_num_threads(1);
      const Result one = run(c);
      for (int threads : {2, 3, 8}) {
        set_num_threads(threads);
        const Result more = run(c);
        EXPECT_TRUE(same_bits(one.out, more.out)) << kind << " " << o.seed << " " << threads;
        EXPECT_TRUE(same_bits(one.lse, more.lse)) << kind << " " << o.seed << " " << threads;
      }
    });
  }
  set_num_threads(before);
}

// A whole prefill, chunks and single tokens; many threads also split the keys of single tokens.
TEST_F(AttentionAmxTest, PrefillChunksAndSingleTokens) {
  const int before = num_threads();
  for (int64_t window : {-1, 291}) {
    CaseOptions o;
    o.batch = 1, o.heads = 4, o.kv_heads = 2, o.queries = o.keys = 1100, o.head_dim = 48, o.value_dim = 80;
    o.causal = true, o.window_left = window;
    AttentionCase c(o);
    for (MatmulPrecision precision : {MatmulPrecision::high, MatmulPrecision::medium}) {
      set_num_threads(1);
      const Result whole = run_f32(c, precision);
      set_num_threads(window < 0 ? 8 : 1);
      for (int64_t chunk : {1, 7, 300}) {
        for (int64_t first = chunk == 1 ? 1085 : chunk == 7 ? 1040 : 0; first < o.queries; first += chunk) {
          const int64_t count = std::min(chunk, o.queries - first);
          AttentionProblem p = c.problem;
          p.queries = count, p.keys = first + count, p.diagonal = first;
          std::vector<float> out(static_cast<size_t>(4 * count * 80), std::nanf(""));
          AttentionInput in = c.input<float>();
          in.query = multihead::testing::from_element<float>(in.query, first * 48);
          attention_forward_on_tiles(p, c.terms<float>(), in,
                                     {{out.data(), {4 * count * 80, count * 80, 80}}, {}}, precision,
                                     TileUnit::emulated);
          for (int64_t h = 0; h < 4; ++h) {
            ASSERT_EQ(0, std::memcmp(out.data() + h * count * 80, whole.out.data() + (h * 1100 + first) * 80,
                                     static_cast<size_t>(count * 80) * sizeof(float)))
                << "chunk " << chunk << " at " << first << " head " << h << " window " << window;
          }
        }
      }
    }
  }
  set_num_threads(before);
}

// NaN and Inf in keys and values that no query may see, by lengths, a dense mask, a window and a bias of
// -inf.
TEST_F(AttentionAmxTest, NothingExcludedLeaks) {
  const float inf = std::numeric_limits<float>::infinity();
  uint32_t cases = 0;
  for (const ExcludedBy by : kEveryExclusion) {
    for (int64_t queries : {1, 70}) {
      for (float poison : {std::nanf(""), inf}) {
        if (cases++ % multihead::testing::kCaseStep != 0) continue;
        PoisonedTwins twins(by, queries, poison);
        each_kind([&](const std::string& name, const auto& run) {
          const Result a = run(twins.clean), z = run(twins.dirty);
          for (float x : a.out) ASSERT_TRUE(std::isfinite(x));
          EXPECT_TRUE(same_bits(a.out, z.out))
              << name << " excluded by " << static_cast<int>(by) << " poison " << poison;
          EXPECT_TRUE(same_bits(a.lse, z.lse))
              << name << " excluded by " << static_cast<int>(by) << " poison " << poison;
        });
      }
    }
  }
}

// Where they may be seen, NaN and Inf arise in the elements in which the f32 kernel has them.
TEST_F(AttentionAmxTest, SeenNanAndInfAreThoseOfF32) {
  const float inf = std::numeric_limits<float>::infinity();
  CaseOptions o;
  o.batch = 1, o.heads = o.kv_heads = 2, o.queries = 70, o.keys = 290, o.head_dim = 40, o.value_dim = 24;
  o.causal = true;
  AttentionCase c(o);
  c.value[5 * 24 + 3] = inf, c.value[280 * 24 + 7] = std::nanf("");
  c.query[static_cast<size_t>((70 + 11) * 40)] = inf, c.key[static_cast<size_t>((290 + 283) * 40 + 1)] = -inf;
  Result f32{std::vector<float>(c.d_out.size()), c.poisoned<float>().lse};
  attention_forward(c.problem, c.terms<float>(), c.input<float>(), c.output(f32.out, f32.lse));
  each_kind([&](const std::string& kind, const auto& run) {
    const Result r = run(c);
    for (size_t i = 0; i < r.out.size(); ++i) {
      ASSERT_EQ(std::isnan(r.out[i]), std::isnan(f32.out[i])) << kind << " " << i;
      ASSERT_EQ(std::isinf(r.out[i]), std::isinf(f32.out[i])) << kind << " " << i;
    }
  });
}

// Up to eight rows go without tiles where sizes are multiples of 32, and have the bits of a whole prefill.
TEST_F(AttentionAmxTest, FewRowsHaveTheBitsOfManyRows) {
  for (const int64_t heads : {2, 6, 8}) {
    CaseOptions o;
    o.batch = 1, o.heads = heads, o.kv_heads = 2, o.queries = o.keys = 700, o.head_dim = 64,
    o.value_dim = 160;
    o.causal = true, o.window_left = heads == 6 ? 391 : -1;
    AttentionCase c(o);
    c.value[size_t{600} * 160 + 3] = std::nanf("");  // seen by the last rows of a head only
    for (size_t i = 0; heads == 8 && i < c.query.size(); ++i) c.query[i] = 100;
    const auto narrow = [](const std::vector<float>& x) { return std::vector<BFloat16>(x.begin(), x.end()); };
    const Result whole = run_bf16(c);
    const auto q = narrow(c.query), k = narrow(c.key), v = narrow(c.value);
    for (const int64_t count : {1, 2, 3, 8}) {
      for (const int64_t first : {0, 31, 250, 255, 256, 400, 597, 692}) {
        AttentionProblem p = c.problem;
        p.queries = count, p.keys = first + count, p.diagonal = first;
        std::vector<BFloat16> out(static_cast<size_t>(heads * count * 160));
        AttentionInput in = c.input(q, k, v);
        in.query = multihead::testing::from_element<BFloat16>(in.query, first * 64);
        attention_forward_on_tiles(p, c.terms<float>(), in,
                                   {{out.data(), {heads * count * 160, count * 160, 160}}, {}},
                                   MatmulPrecision::highest, TileUnit::emulated);
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t i = 0; i < count * 160; ++i) {
            const float one = static_cast<float>(out[static_cast<size_t>(h * count * 160 + i)]);
            const float all = whole.out[static_cast<size_t>((h * 700 + first) * 160 + i)];
            ASSERT_TRUE(one == all || (std::isnan(one) && std::isnan(all)))
                << heads << " heads, " << count << " rows at " << first << ", head " << h << " element " << i;
          }
        }
      }
    }
  }
}

// Scores of odd rows grow by 2^300 within a block, so that the maximum of its first keys is far too low; those
// of even rows do not, and keep their bits whatever the others do.
TEST_F(AttentionAmxTest, ScoresThatGrowWithinABlock) {
  for (const bool causal : {false, true}) {
    CaseOptions o;
    o.batch = 1, o.heads = o.kv_heads = 1, o.queries = o.keys = 520, o.head_dim = o.value_dim = 64;
    o.causal = causal;
    AttentionCase c(o);
    for (size_t i = 0; i < c.key.size(); ++i) {
      c.key[i] = static_cast<float>(BFloat16(static_cast<float>(i / 64 % 256) * 0.0131f));
      c.query[i] = i / 64 % 2 == 1 ? 256.0f : 0.0625f * static_cast<float>(i % 5);
      c.value[i] = static_cast<float>(BFloat16(c.value[i]));
    }
    const auto exact = c.reference<double>(false);
    const Result r = run_bf16(c);
    EXPECT_LE(multihead::testing::distance(r.out, exact.out).max,
              1.5 * 0x1p-8 * multihead::testing::largest(exact.out));
    EXPECT_LE(multihead::testing::distance(r.lse, exact.lse).max,
              1e-5 * multihead::testing::largest(exact.lse));
    for (size_t i = 0; i < c.query.size(); ++i) {
      if (i / 64 % 2 == 1) c.query[i] = 0.5f;
    }
    const Result calm = run_bf16(c);
    for (size_t i = 0; i < r.out.size(); ++i) {
      if (i / 64 % 2 == 0) {
        ASSERT_EQ(r.out[i], calm.out[i]) << i;
      }
    }
    for (size_t i = 0; i < r.lse.size(); i += 2) ASSERT_EQ(r.lse[i], calm.lse[i]) << i;
  }
}

// The same mask as an interval, a dense mask, and a bias of -inf; and dropout of nothing.
TEST_F(AttentionAmxTest, MasksOfAnyFormHaveTheSameBits) {
  CaseOptions o;
  o.batch = 1, o.heads = 4, o.kv_heads = 2, o.queries = 70, o.keys = 600, o.head_dim = 40, o.value_dim = 24;
  o.causal = true, o.window_left = 333;
  AttentionCase c(o);
  const Result intervals = run_bf16(c);
  AttentionCase dense(o);
  std::vector<uint8_t> keep;
  for (int64_t i = 0; i < o.queries; ++i) {
    for (int64_t j = 0; j < o.keys; ++j) {
      const int64_t last = i + c.problem.diagonal;
      keep.push_back(j <= last && j >= last - o.window_left);
    }
  }
  dense.problem.causal = false, dense.problem.window_left = -1;
  dense.problem.keep = keep.data(), dense.problem.keep_strides = {0, 0, o.keys, 1};
  const Result flags = run_bf16(dense);
  EXPECT_TRUE(same_bits(intervals.out, flags.out));
  EXPECT_TRUE(same_bits(intervals.lse, flags.lse));
  c.problem.dropout_p = 1e-30;
  EXPECT_TRUE(same_bits(intervals.out, run_bf16(c).out));
}

// A key whose scores are infinite or NaN reaches the rows that see it, and no others; subnormals are zero.
TEST_F(AttentionAmxTest, OnlyRowsThatSeeAnInfiniteScoreAreNan) {
  for (const float poison : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    CaseOptions o;
    o.batch = 1, o.heads = o.kv_heads = 1, o.queries = o.keys = 300, o.head_dim = o.value_dim = 32;
    o.causal = true;
    AttentionCase c(o);
    for (size_t i = 0; i < 32; ++i) c.query[i + size_t{7} * 32] = 1e-40f;
    const Result clean = run_bf16(c);
    for (size_t i = 0; i < 32; ++i) c.key[i + size_t{200} * 32] = poison;
    const Result r = run_bf16(c);
    for (size_t i = 0; i < r.out.size(); ++i) {
      if (i / 32 < 200) {
        ASSERT_EQ(r.out[i], clean.out[i]) << i;
      } else if (std::isnan(poison)) {
        ASSERT_TRUE(std::isnan(r.out[i])) << i;
      }
    }
    EXPECT_NEAR(clean.lse[7], std::log(8.0f), 1e-5);
  }
}

// Small, so that an emulator gets through. The entry points must come here by themselves.
TEST_F(AttentionAmxTest, TheCpuDoesWhatTheLoopsDo) {
  if (!has_tiles()) GTEST_SKIP() << "needs AMX";
  for (CaseOptions o : forward_cases()) {
    o.batch = 1, o.heads = 2, o.kv_heads = 1 + o.seed % 2, o.keys = std::min<int64_t>(o.keys, 300);
    AttentionCase c(o);
    for (MatmulPrecision p : kTilePrecisions) {
      const Result loops = run_f32(c, p);
      EXPECT_TRUE(same_bits(loops.out, run_f32(c, p, TileUnit::amx).out)) << o.seed << precision_name(p);
      set_float32_matmul_precision(p);
      Result entry{std::vector<float>(c.d_out.size()), c.poisoned<float>().lse};
      attention_forward(c.problem, c.terms<float>(), c.input<float>(), c.output(entry.out, entry.lse));
      set_float32_matmul_precision(MatmulPrecision::highest);
      EXPECT_TRUE(same_bits(loops.out, entry.out)) << o.seed << precision_name(p);
      EXPECT_TRUE(same_bits(loops.lse, entry.lse)) << o.seed << precision_name(p);
    }
    EXPECT_TRUE(same_bits(run_bf16(c).out, run_bf16(c, TileUnit::amx).out)) << o.seed;
  }
}

}  // namespace
}  // namespace multihead::kernels
