// y += x: bound by memory, so ranges of 32 KiB go to the threads and the lanes are whatever the CPU has.
#include "multihead/kernels/elementwise/accumulate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/accumulate.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void Accumulate(T* HWY_RESTRICT y, const T* HWY_RESTRICT x, int64_t count) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  for (; i < count; ++i) y[i] += x[i];
}

void AccumulateF32(float* y, const float* x, int64_t count) { Accumulate(y, x, count); }
void AccumulateF64(double* y, const double* x, int64_t count) { Accumulate(y, x, count); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

constexpr int64_t kGrain = 8192;

HWY_EXPORT(AccumulateF32);
HWY_EXPORT(AccumulateF64);

void accumulate(float* y, const float* x, int64_t count) {
  const auto add = HWY_DYNAMIC_DISPATCH(AccumulateF32);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) { add(y + begin, x + begin, end - begin); });
}

void accumulate(double* y, const double* x, int64_t count) {
  const auto add = HWY_DYNAMIC_DISPATCH(AccumulateF64);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) { add(y + begin, x + begin, end - begin); });
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
