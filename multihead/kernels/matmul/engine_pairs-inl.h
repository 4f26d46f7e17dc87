// The engine of bf16: a word is a pair of neighbours in k, and one instruction (AVX512_BF16) multiplies two
// pairs and adds both products to an f32 sum: twice the rate of f32 where its vectors are full (Zen 4, 5).
// f32 is rounded to nearest even. Numbers below the smallest normal count as zero.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_
#endif

#include <bit>

#include "multihead/core/dtype.h"
#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/simd/dot_pairs-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

struct Pairs {
  using Real = float;
  using Args = EngineArgs;
  static constexpr int64_t kDepth = 2;  // numbers of a word
  static constexpr bool kRounds = true;

  // Rows along k that begin and end with whole words.
  static WordsInPlace<float> InPlace(const float*, const BFloat16* x, int64_t stride, bool along, int64_t k) {
    const bool words = reinterpret_cast<uintptr_t>(x) % sizeof(float) == 0 && stride % 2 == 0 && k % 2 == 0;
    if (x == nullptr || !along || !words) return {};
    return {reinterpret_cast<const float*>(x), stride / 2};
  }

  static HWY_INLINE TileVec MulAdd(TileVec a, TileVec b, TileVec sum) { return DotPairs(sum, a, b); }

  static HWY_INLINE void StoreRounded(TileVec x, BFloat16* to) {
    __m256i rounded;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(x.raw));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  }

  static HWY_INLINE void StoreRounded(TileVec low, TileVec high, BFloat16* to) {
    _mm512_storeu_si512(to, RoundPairs(low, high));
  }

  static HWY_INLINE TileVec Across(const float* from, int64_t stride, int64_t left) {
    const TileFloats d;
    return Interleave(RoundPairs(hn::LoadU(d, from), left > 1 ? hn::LoadU(d, from + stride) : hn::Zero(d)));
  }
  static HWY_INLINE TileVec Across(const BFloat16* from, int64_t stride, int64_t left) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i high = left > 1 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + stride))
                                  : _mm256_setzero_si256();
    return Interleave(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }

  static HWY_INLINE TileVec FirstAcross(const float* from, int64_t stride, int64_t left, size_t count) {
    const TileFloats d;
    const auto mask = hn::FirstN(d, count);
    return Interleave(
        RoundPairs(LoadLanes(mask, d, from), left > 1 ? LoadLanes(mask, d, from + stride) : hn::Zero(d)));
  }
  static HWY_INLINE TileVec FirstAcross(const BFloat16* from, int64_t stride, int64_t left, size_t count) {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    const __m256i low = _mm256_maskz_loadu_epi16(mask, from);
    const __m256i high = left > 1 ? _mm256_maskz_loadu_epi16(mask, from + stride) : _mm256_setzero_si256();
    return Interleave(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }

  static HWY_INLINE TileVec Along(const float* from) {
    const TileFloats d;
    return TileVec{_mm512_castsi512_ps(RoundPairs(hn::LoadU(d, from), hn::LoadU(d, from + kLanes)))};
  }
  static HWY_INLINE TileVec Along(const BFloat16* from) {
    return TileVec{_mm512_castsi512_ps(_mm512_loadu_si512(from))};
  }
  template <class T>
  static HWY_INLINE float Word(const T* from, int64_t left) {
    const uint32_t low = BFloat16(from[0]).bits, high = left > 1 ? BFloat16(from[1]).bits : 0;
    return std::bit_cast<float>(high << 16 | low);
  }

 private:
  // 16 bf16 of `low`, then 16 of `high`.
  static HWY_INLINE __m512i RoundPairs(TileVec low, TileVec high) {
    __m512i both;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high.raw), "v"(low.raw));
    return both;
  }
  // 16 bf16 and 16 of the next row side by side.
  static HWY_INLINE TileVec Interleave(__m512i rows) {
    alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return TileVec{_mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), rows))};
  }
};

#endif  // HWY_AVX3

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
