// The engine of f64: a word is a number, products are fused multiply-adds, and what follows the sums is plain
// code, because its functions are those of the C library.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_ENGINE_F64_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_ENGINE_F64_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_ENGINE_F64_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_ENGINE_F64_INL_H_
#endif

#include "multihead/kernels/matmul/gemm.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

struct DoubleWords {
  using Real = double;
  // No operand is narrower.
  struct Args : GemmArgs<double> {
    static constexpr const double* a16 = nullptr;
    static constexpr const double* b16 = nullptr;
    static constexpr const double* c16 = nullptr;
  };
  using Vec = TileVecOf<double>;
  static constexpr int64_t kDepth = 1;
  static constexpr bool kRounds = false;

  static WordsInPlace<double> InPlace(const double* x, const double*, int64_t stride, bool, int64_t) {
    return {x, stride};
  }

  static HWY_INLINE Vec MulAdd(Vec a, Vec b, Vec sum) { return hn::MulAdd(a, b, sum); }
  static HWY_INLINE Vec Across(const double* from, int64_t, int64_t) {
    return hn::LoadU(TileTag<double>(), from);
  }
  static HWY_INLINE Vec FirstAcross(const double* from, int64_t, int64_t, size_t count) {
    const TileTag<double> d;
    return LoadLanes(hn::FirstN(d, count), d, from);
  }
  static HWY_INLINE Vec Along(const double* from) { return hn::LoadU(TileTag<double>(), from); }
  static HWY_INLINE double Word(const double* from, int64_t) { return *from; }
};

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
