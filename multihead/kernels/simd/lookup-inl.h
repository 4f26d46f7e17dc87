// Small tables in registers.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_LOOKUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_LOOKUP_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_LOOKUP_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_LOOKUP_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Each lane's number of eight, by the last three bits of its index.
template <class D, class VI, class V = hn::Vec<D>>
HWY_INLINE V LookupEight(D d, const hn::TFromD<D>* numbers, VI index) {
  const hn::RebindToSigned<D> di;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  if constexpr (sizeof(V) == 32) {
    const auto table = hn::BitCast(di, hn::LoadU(d, numbers));
    return hn::BitCast(d, VI{_mm256_permutevar8x32_epi32(table.raw, index.raw)});
  }
#endif
  if constexpr (sizeof(V) == 16) {
    const auto lane = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, 3)));
    const auto upper = hn::Lt(hn::ShiftLeft<29>(index), hn::Zero(di));
    return hn::IfThenElse(hn::RebindMask(d, upper), hn::TableLookupLanes(hn::LoadU(d, numbers + 4), lane),
                          hn::TableLookupLanes(hn::LoadU(d, numbers), lane));
  } else {
    return hn::GatherIndex(d, numbers, hn::And(index, hn::Set(di, 7)));
  }
}

// The same of sixteen, by the last four bits.
template <class D, class VI, class V = hn::Vec<D>>
HWY_INLINE V Lookup(D d, const hn::TFromD<D>* numbers, VI index) {
  const hn::RebindToSigned<D> di;
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(V) == 64) {
    const auto table = hn::BitCast(di, hn::LoadU(d, numbers));
    return hn::BitCast(d, VI{_mm512_permutexvar_epi32(index.raw, table.raw)});
  }
#endif
  if constexpr (sizeof(V) == 16 || sizeof(V) == 32) {
    const auto upper = hn::Lt(hn::ShiftLeft<28>(index), hn::Zero(di));
    return hn::IfThenElse(hn::RebindMask(d, upper), LookupEight(d, numbers + 8, index),
                          LookupEight(d, numbers, index));
  } else {
    return hn::GatherIndex(d, numbers, hn::And(index, hn::Set(di, 15)));
  }
}

// 2^(i/8), less i in the exponent's upper bits; twice, for a vector of sixteen.
alignas(64) inline constexpr int32_t kEighthPowers[16] = {
    0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7, 0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7,
    0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7, 0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};

template <class DI, class VI>
HWY_INLINE VI EighthPower(DI di, VI n) {
  if constexpr (sizeof(VI) == 64) return Lookup(di, kEighthPowers, n);
  return LookupEight(di, kEighthPowers, n);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
