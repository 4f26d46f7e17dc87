// Vectors of which only the first lanes are there. Highway's masked loads and stores touch whole vectors on
// CPUs without masks, as NEON: they could read past the end of memory, and put back what another thread has
// changed meanwhile in the next row.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_FIRST_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_FIRST_LANES_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_FIRST_LANES_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_FIRST_LANES_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lanes of `mask`, which are the first ones, and zeros.
template <class D, class M>
HWY_INLINE hn::Vec<D> LoadLanes(M mask, D d, const hn::TFromD<D>* p) {
#if HWY_TARGET == HWY_NEON
  alignas(16) hn::TFromD<D> lanes[hn::MaxLanes(D())] = {};
  std::memcpy(lanes, p, hn::CountTrue(d, mask) * sizeof(hn::TFromD<D>));
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(mask, d, p);
#endif
}

template <class V, class D, class M>
HWY_INLINE void StoreLanes(V v, M mask, D d, hn::TFromD<D>* p) {
#if HWY_TARGET == HWY_NEON
  alignas(16) hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  std::memcpy(p, lanes, hn::CountTrue(d, mask) * sizeof(hn::TFromD<D>));
#else
  hn::BlendedStore(v, mask, d, p);
#endif
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
