// The engine of f32: a word is a number, products are fused multiply-adds. bf16 is widened.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_ENGINE_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_ENGINE_F32_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_ENGINE_F32_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_ENGINE_F32_INL_H_
#endif

#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/simd/bf16-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

struct Floats {
  using Real = float;
  using Args = EngineArgs;
  static constexpr int64_t kDepth = 1;   // numbers of a word
  static constexpr bool kRounds = true;  // to a bf16 C

  static WordsInPlace<float> InPlace(const float* x, const BFloat16*, int64_t stride, bool /*along*/,
                                     int64_t) {
    return {x, stride};
  }

  static HWY_INLINE TileVec MulAdd(TileVec a, TileVec b, TileVec sum) { return hn::MulAdd(a, b, sum); }

  static HWY_INLINE void StoreRounded(TileVec x, BFloat16* to) { StoreVector(x, TileFloats(), to); }
  static HWY_INLINE void StoreRounded(TileVec low, TileVec high, BFloat16* to) {
    StoreRounded(low, to);
    StoreRounded(high, to + kLanes);
  }

  template <class T>
  static HWY_INLINE TileVec Across(const T* from, int64_t /*stride*/, int64_t /*left*/) {
    return LoadVector(TileFloats(), from);
  }
  static HWY_INLINE TileVec FirstAcross(const float* from, int64_t, int64_t, size_t count) {
    const TileFloats d;
    return LoadLanes(hn::FirstN(d, count), d, from);
  }
  static HWY_INLINE TileVec FirstAcross(const BFloat16* from, int64_t, int64_t, size_t count) {
    return LoadFirst(TileFloats(), from, count);
  }
  template <class T>
  static HWY_INLINE TileVec Along(const T* from) {
    return LoadVector(TileFloats(), from);
  }
  template <class T>
  static HWY_INLINE float Word(const T* from, int64_t /*left*/) {
    return static_cast<float>(*from);
  }
};

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
