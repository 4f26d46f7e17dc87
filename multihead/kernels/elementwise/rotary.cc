// Without FMAs, so that every CPU has the same bits.
#include "multihead/kernels/elementwise/rotary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/rotary.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE void RotatePairs(D d, const float* x, float* y, const float* cos, const float* sin, int64_t i,
                            const HalfRotation& r) {
  const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + r.pairs + i), c = hn::LoadU(d, cos + i),
             s = hn::Mul(hn::Set(d, r.sign), hn::LoadU(d, sin + i));
  hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, y + i);
  hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, y + r.pairs + i);
}

void RotateHalves(const float* x, float* y, const float* cos, const float* sin, const HalfRotation& r) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t head = 0; head < r.heads; ++head, x += r.x_stride, y += r.y_stride) {
    int64_t i = 0;
    for (; i + lanes <= r.pairs; i += lanes) RotatePairs(d, x, y, cos, sin, i, r);
    for (; i < r.pairs; ++i) RotatePairs(hn::CappedTag<float, 1>(), x, y, cos, sin, i, r);
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(RotateHalves);

void rotate_halves(const float* x, float* y, const float* cos, const float* sin,
                   const HalfRotation& rotation) {
  HWY_DYNAMIC_DISPATCH(RotateHalves)(x, y, cos, sin, rotation);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
