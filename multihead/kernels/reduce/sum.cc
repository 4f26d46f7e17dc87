// Sums of whole arrays and along one axis: bound by memory, in an order that the shape alone decides.
#include "multihead/kernels/reduce/sum.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/reduce/sum.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/reduce/blocked_sum-inl.h"
#include "multihead/kernels/reduce/chains-inl.h"
#include "multihead/kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr int64_t kTileColumns = 1024;  // whose sums stay in L1
inline constexpr int64_t kSumRows = 8192;      // of a column, before f64 takes over

// Of one chain. Four arrays, `stride` elements apart, at a time: a chain of additions waits for each.
template <class T>
HWY_INLINE float SumChain(const T* x, int64_t count) {
  Pack total = Set(0);
  ForPacks(count, [&](int64_t i, auto at) HWY_ATTR { total = Add(total, at.Load(x + i)); });
  return Sum(total);
}
template <class T>
HWY_INLINE void AddFourChains(const T* x, int64_t count, int64_t stride, double* totals) {
  Pack a = Set(0), b = Set(0), c = Set(0), d = Set(0);
  ForPacks(count, [&](int64_t i, auto at) HWY_ATTR {
    a = Add(a, at.Load(x + i)), b = Add(b, at.Load(x + stride + i));
    c = Add(c, at.Load(x + 2 * stride + i)), d = Add(d, at.Load(x + 3 * stride + i));
  });
  totals[0] += Sum(a), totals[1] += Sum(b), totals[2] += Sum(c), totals[3] += Sum(d);
}

// Of `runs` arrays of `count` elements that follow each other.
template <class T>
void SumRuns(const T* x, int64_t count, int64_t runs, float* sums) {
  for (; runs >= 4; runs -= 4, x += 4 * count, sums += 4) {
    double totals[4] = {};  // exact, of one chain
    for (int64_t begin = 0; begin < count; begin += kSumChain)
      AddFourChains(x + begin, HWY_MIN(kSumChain, count - begin), count, totals);
    for (int i = 0; i < 4; ++i) sums[i] = static_cast<float>(totals[i]);
  }
  for (; runs > 0; --runs, x += count, ++sums)
    *sums = SumOfChains(count, [&](int64_t at, int64_t n) HWY_ATTR { return SumChain(x + at, n); });
}

// Columns of Σ_n x[n, i]: chains of 8 rows, added up per 64, those per kSumRows, and the rest in f64, because the error
// of a chain grows with its length. Eight rows at a time go through all columns: memory is read in long runs.
template <class T>
void SumTile(const T* x, float* y, const AxisSum& s, int64_t columns) {
  alignas(64) float block[kTileColumns] = {};
  double total[kTileColumns];
  const bool is_long = s.axis > kSumRows;
  if (is_long) std::fill(total, total + columns, 0.0);
  std::fill(y, y + columns, 0.0f);
  for (int64_t n = 0; n < s.axis;) {
    const int64_t begin = n;
    n = HWY_MIN(n + 8, s.axis);
    const bool ends = n % 64 == 0 || n == s.axis;
    ForPacks(columns, [&](int64_t i, auto at) HWY_ATTR {
      Pack chain = Set(0);
      for (int64_t row = begin; row < n; ++row) chain = Add(chain, at.Load(x + row * s.inner + i));
      chain = Add(Load(block + i), chain);
      Store(ends ? Set(0) : chain, block + i);
      if (ends) at.Store(Add(at.Load(y + i), chain), y + i);
    });
    if (!is_long || (n % kSumRows != 0 && n < s.axis)) continue;
    for (int64_t i = 0; i < columns; ++i) {
      total[i] += y[i];
      y[i] = n < s.axis ? 0.0f : static_cast<float>(total[i]);
    }
  }
}

template <class T>
void SumColumns(const T* x, float* y, const AxisSum& s, int64_t begin, int64_t end) {
  for (; begin < end; begin += kTileColumns) {
    SumTile(x + begin, y + begin, s, HWY_MIN(kTileColumns, end - begin));
  }
}

void SumRunsOfF32(const float* x, int64_t count, int64_t runs, float* sums) { SumRuns(x, count, runs, sums); }
void SumRunsOfBf16(const BFloat16* x, int64_t count, int64_t runs, float* sums) {
  SumRuns(x, count, runs, sums);
}
void SumColumnsOfF32(const float* x, float* y, const AxisSum& s, int64_t begin, int64_t end) {
  SumColumns(x, y, s, begin, end);
}
void SumColumnsOfBf16(const BFloat16* x, float* y, const AxisSum& s, int64_t begin, int64_t end) {
  SumColumns(x, y, s, begin, end);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements
constexpr int64_t kParts = 64;    // of the sum of an array

HWY_EXPORT(SumRunsOfF32);
HWY_EXPORT(SumRunsOfBf16);
HWY_EXPORT(SumColumnsOfF32);
HWY_EXPORT(SumColumnsOfBf16);

// `rows` sums rows, `columns` some columns of a matrix.
template <class T, class Rows, class Columns>
void sum_axis_by(const T* x, float* y, const AxisSum& s, Rows rows, Columns columns) {
  if (s.inner == 1) {
    parallel_ranges(
        s.outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(s.axis, 1)),
        [&](int64_t begin, int64_t end) { rows(x + begin * s.axis, s.axis, end - begin, y + begin); });
    return;
  }
  // A task takes a multiple of 64 columns of one outer index.
  constexpr int64_t kStrip = 64;
  const int64_t packs = (s.inner + kStrip - 1) / kStrip;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(kStrip * s.axis, 1));
  parallel_ranges(s.outer * packs, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t outer = begin / packs, first = begin % packs;
      const int64_t last = std::min(packs, first + end - begin);
      columns(x + outer * s.axis * s.inner, y + outer * s.inner, s, first * kStrip,
              std::min(last * kStrip, s.inner));
      begin += last - first;
    }
  });
}

}  // namespace

double sum(const float* x, int64_t count) {
  return blocked_sum<float, kParts, 1024, 16>(x, count, HWY_DYNAMIC_DISPATCH(SumRunsOfF32));
}
double sum(const BFloat16* x, int64_t count) {
  return blocked_sum<float, kParts, 1024, 16>(x, count, HWY_DYNAMIC_DISPATCH(SumRunsOfBf16));
}
double sum(const double* x, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += x[i];
  return total;
}

void sum_axis(const float* x, float* y, const AxisSum& s) {
  sum_axis_by(x, y, s, HWY_DYNAMIC_DISPATCH(SumRunsOfF32), HWY_DYNAMIC_DISPATCH(SumColumnsOfF32));
}
void sum_axis(const BFloat16* x, float* y, const AxisSum& s) {
  sum_axis_by(x, y, s, HWY_DYNAMIC_DISPATCH(SumRunsOfBf16), HWY_DYNAMIC_DISPATCH(SumColumnsOfBf16));
}
void sum_axis(const double* x, double* y, const AxisSum& s) {
  for (int64_t o = 0; o < s.outer; ++o) {
    double* to = y + o * s.inner;
    std::fill(to, to + s.inner, 0.0);
    for (int64_t n = 0; n < s.axis; ++n) {
      for (int64_t i = 0; i < s.inner; ++i) to[i] += x[(o * s.axis + n) * s.inner + i];
    }
  }
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
