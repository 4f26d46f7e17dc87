// Sums of whole arrays and along one axis: bound by memory, in an order that the shape alone decides.
#include "multihead/kernels/reduce/sum.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/reduce/sum.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/reduce/blocked_sum-inl.h"
#include "multihead/kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

float SumRun(const float* x, int64_t count) {
  Pack total = Set(0);
  ForPacks(count, [&](int64_t i, auto at) HWY_ATTR { total = Add(total, at.Load(x + i)); });
  return Sum(total);
}

// kPacks packs of columns of Σ_n x[n, i]: chains of 8 rows, added up per 64 and then altogether, because the
// error of a chain grows with its length.
template <int kPacks, class Access>
HWY_INLINE void SumStrip(const float* x, float* y, const AxisSum& s, const Access& at) {
  const auto zero = [](Pack(&to)[kPacks]) HWY_ATTR {
    for (Pack& t : to) t = Set(0);
  };
  const auto add = [](Pack(&to)[kPacks], const Pack(&from)[kPacks]) HWY_ATTR {
    for (int j = 0; j < kPacks; ++j) to[j] = Add(to[j], from[j]);
  };
  Pack total[kPacks], block[kPacks], chain[kPacks];
  zero(total), zero(block);
  for (int64_t n = 0; n < s.axis;) {
    zero(chain);
    for (const int64_t stop = HWY_MIN(n + 8, s.axis); n < stop; ++n) {
      for (int j = 0; j < kPacks; ++j) chain[j] = Add(chain[j], at.Load(x + n * s.inner + j * kPack));
    }
    add(block, chain);
    if (n % 64 == 0) add(total, block), zero(block);
  }
  add(total, block);
  for (int j = 0; j < kPacks; ++j) at.Store(total[j], y + j * kPack);
}

// Columns [begin, end): strips of 256 bytes a row, which the prefetcher follows; single lines it does not.
void SumColumns(const float* x, float* y, const AxisSum& s, int64_t begin, int64_t end) {
  for (; begin + 4 * kPack <= end; begin += 4 * kPack) SumStrip<4>(x + begin, y + begin, s, FullAccess());
  ForPacks(end - begin,
           [&](int64_t i, auto at) HWY_ATTR { SumStrip<1>(x + begin + i, y + begin + i, s, at); });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements
constexpr int64_t kParts = 64;    // of the sum of an array

HWY_EXPORT(SumRun);
HWY_EXPORT(SumColumns);

}  // namespace

double sum(const float* x, int64_t count) {
  return blocked_sum<kParts, 1024, 16>(x, count, HWY_DYNAMIC_DISPATCH(SumRun));
}
double sum(const double* x, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += x[i];
  return total;
}

void sum_axis(const float* x, float* y, const AxisSum& s) {
  if (s.inner == 1) {
    const auto run = HWY_DYNAMIC_DISPATCH(SumRun);
    parallel_ranges(s.outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(s.axis, 1)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) y[i] = run(x + i * s.axis, s.axis);
                    });
    return;
  }
  const auto run = HWY_DYNAMIC_DISPATCH(SumColumns);
  // A task takes a multiple of 64 columns of one outer index.
  constexpr int64_t kStrip = 64;
  const int64_t packs = (s.inner + kStrip - 1) / kStrip;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(kStrip * s.axis, 1));
  parallel_ranges(s.outer * packs, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t outer = begin / packs, first = begin % packs;
      const int64_t last = std::min(packs, first + end - begin);
      run(x + outer * s.axis * s.inner, y + outer * s.inner, s, first * kStrip,
          std::min(last * kStrip, s.inner));
      begin += last - first;
    }
  });
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
