// bf16 in memory, f32 in registers. Rounds to nearest even, as BFloat16 does.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_BF16_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_BF16_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_BF16_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "multihead/core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> LoadVector(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadVector(D d, const BFloat16* from) {
  const hn::RebindToUnsigned<D> wide;
  const hn::Rebind<uint16_t, D> narrow;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, &from->bits))));
}

template <class D>
HWY_INLINE void StoreVector(hn::Vec<D> v, D d, float* to) {
  hn::StoreU(v, d, to);
}

template <class D>
HWY_INLINE void StoreVector(hn::Vec<D> v, D, BFloat16* to) {
  const hn::RebindToUnsigned<D> wide;
  const auto bits = hn::BitCast(wide, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(wide, 0x7fffu)), odd);
  const auto number = hn::RebindMask(wide, hn::Eq(v, v));
  const auto result = hn::IfThenElse(number, rounded, hn::Or(bits, hn::Set(wide, 0x400000u)));
#if HWY_TARGET == HWY_AVX3
  const hn::Repartition<uint16_t, D> halves;
  const auto odds = hn::BitCast(halves, result);
  hn::StoreU(hn::LowerHalf(hn::ConcatOdd(halves, odds, odds)), hn::Half<decltype(halves)>(), &to->bits);
#else
  const hn::RebindToSigned<D> packs;
  const hn::Rebind<uint16_t, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(packs, hn::ShiftRight<16>(result))), narrow, &to->bits);
#endif
}

// The first `count` lanes, and zeros.
template <class D>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const BFloat16* from, size_t count) {
  alignas(64) BFloat16 lanes[hn::MaxLanes(D())];
  std::memcpy(lanes, from, count * sizeof(BFloat16));
  return LoadVector(d, lanes);
}

template <class D>
HWY_INLINE void StoreFirst(hn::Vec<D> v, D d, BFloat16* to, size_t count) {
  alignas(64) BFloat16 lanes[hn::MaxLanes(D())];
  StoreVector(v, d, lanes);
  std::memcpy(to, lanes, count * sizeof(BFloat16));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
