#include "multihead/kernels/reduce/next_above.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/reduce/next_above.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Four vectors at a time until one holds such a value, then one by one.
int64_t NextAbove(const float* x, int64_t begin, int64_t end, float threshold) {
  const hn::CappedTag<float, 16> d;
  const auto limit = hn::Set(d, threshold);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    const auto above = [&](int64_t j) HWY_ATTR { return hn::Gt(hn::LoadU(d, x + i + j * lanes), limit); };
    if (!hn::AllFalse(d, hn::Or(hn::Or(above(0), above(1)), hn::Or(above(2), above(3))))) break;
  }
  while (i < end && !(x[i] > threshold)) ++i;
  return i;
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(NextAbove);

int64_t next_above(const float* x, int64_t begin, int64_t end, float threshold) {
  return HWY_DYNAMIC_DISPATCH(NextAbove)(x, begin, end, threshold);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
