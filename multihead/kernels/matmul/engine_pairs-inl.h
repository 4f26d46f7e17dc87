// The engine of bf16: a word is a pair of neighbours in k, and one instruction (AVX512_BF16; bfdot of ARM) multiplies
// two pairs and adds both products to an f32 sum: twice the rate of f32 where its vectors are full (Zen 4, 5).
// f32 is rounded to nearest even. Numbers below the smallest normal count as zero. ARM's bfmmla takes two rows and two
// columns of two pairs at once, with the sums of bfdot.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_ENGINE_PAIRS_INL_H_
#endif

#include <bit>
#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/simd/dot_pairs-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

struct PairWords {
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

  template <class T>
  static HWY_INLINE float Word(const T* from, int64_t left) {
    const uint32_t low = BFloat16(from[0]).bits, high = left > 1 ? BFloat16(from[1]).bits : 0;
    return std::bit_cast<float>(high << 16 | low);
  }
};

#if HWY_TARGET == HWY_AVX3

struct Pairs : PairWords {
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

#elif HWY_TARGET == HWY_NEON

struct Pairs : PairWords {
  static HWY_INLINE TileVec MulAdd(TileVec a, TileVec b, TileVec sum) { return DotPairs(sum, a, b); }

  // Two steps at a time; returns how many are left.
  template <bool kRowMajorA, int MR, int NV>
  static HWY_INLINE int64_t Squares(const GemmTileArgs& t, TilePlace<float>& at, int64_t steps,
                                    TileVec (&acc)[MR][NV]) {
    if constexpr (MR == 1) return steps;
    SwapSquaresAndRows(acc);
    for (; steps >= 2; steps -= 2) {
      TileVec two[(MR + 1) / 2];  // rows; the last of an odd number alone
#pragma GCC unroll 8
      for (int i = 0; i < MR; i += 2) two[i / 2] = TwoRows<kRowMajorA>(t, at.a, i, i + 1 < MR);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        const TileVec first = hn::LoadU(TileFloats(), at.b + j * kLanes);
        const TileVec second = hn::LoadU(TileFloats(), at.b + t.b_stride + j * kLanes);
        const TileVec left(vzip1q_f32(first.raw, second.raw)), right(vzip2q_f32(first.raw, second.raw));
#pragma GCC unroll 8
        for (int i = 0; i + 1 < MR; i += 2) {
          acc[i][j] = SquareOfPairs(acc[i][j], two[i / 2], left);
          acc[i + 1][j] = SquareOfPairs(acc[i + 1][j], two[i / 2], right);
        }
        if constexpr (MR % 2 != 0) {
          const TileVec last = two[MR / 2];
          acc[MR - 1][j] = MulAdd(TileVec(vdupq_laneq_f32(last.raw, 0)), first, acc[MR - 1][j]);
          acc[MR - 1][j] = MulAdd(TileVec(vdupq_laneq_f32(last.raw, 1)), second, acc[MR - 1][j]);
        }
      }
      at.a += 2 * (kRowMajorA ? 1 : t.a_stride);
      at.b += 2 * t.b_stride;
    }
    SwapSquaresAndRows(acc);
    return steps;
  }

  static HWY_INLINE void StoreRounded(TileVec x, BFloat16* to) { vst1_u16(&to->bits, RoundFour(x)); }
  static HWY_INLINE void StoreRounded(TileVec low, TileVec high, BFloat16* to) {
    vst1q_u16(&to->bits, vcombine_u16(RoundFour(low), RoundFour(high)));
  }

  template <class T>
  static HWY_INLINE TileVec Across(const T* from, int64_t stride, int64_t left) {
    return Interleave(Four(from), left > 1 ? Four(from + stride) : vdup_n_u16(0));
  }
  template <class T>
  static HWY_INLINE TileVec FirstAcross(const T* from, int64_t stride, int64_t left, size_t count) {
    return Interleave(First(from, count), left > 1 ? First(from + stride, count) : vdup_n_u16(0));
  }
  template <class T>
  static HWY_INLINE TileVec Along(const T* from) {
    return TileVec(vreinterpretq_f32_u16(vcombine_u16(Four(from), Four(from + kLanes))));
  }

 private:
  static HWY_INLINE uint16x4_t Four(const float* from) { return RoundFour(hn::LoadU(TileFloats(), from)); }
  static HWY_INLINE uint16x4_t Four(const BFloat16* from) { return vld1_u16(&from->bits); }
  // The first `count` of them, then zeros.
  template <class T>
  static HWY_INLINE uint16x4_t First(const T* from, size_t count) {
    T four[kLanes] = {};
    std::memcpy(static_cast<void*>(four), from, count * sizeof(T));
    return Four(four);
  }
  static HWY_INLINE TileVec Interleave(uint16x4_t row, uint16x4_t next) {
    return TileVec(vreinterpretq_f32_u16(vcombine_u16(vzip1_u16(row, next), vzip2_u16(row, next))));
  }
  // Two words of row i and of the next.
  template <bool kRowMajorA>
  static HWY_INLINE TileVec TwoRows(const GemmTileArgs& t, const float* a, int64_t i, bool next) {
    if constexpr (kRowMajorA) {
      const float* row = a + i * t.a_stride;
      const float32x2_t first = vld1_f32(row);
      return TileVec(vcombine_f32(first, next ? vld1_f32(row + t.a_stride) : first));
    }
    const auto load = [&](const float* from) { return next ? vld1_f32(from) : vld1_dup_f32(from); };
    const float32x2_t first = load(a + i), second = load(a + t.a_stride + i);
    return TileVec(vcombine_f32(vzip1_f32(first, second), vzip2_f32(first, second)));
  }
  // Two rows of four sums <-> the squares of their left and right halves.
  template <int MR, int NV>
  static HWY_INLINE void SwapSquaresAndRows(TileVec (&acc)[MR][NV]) {
#pragma GCC unroll 8
    for (int i = 0; i + 1 < MR; i += 2) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        const float64x2_t a = vreinterpretq_f64_f32(acc[i][j].raw),
                          b = vreinterpretq_f64_f32(acc[i + 1][j].raw);
        acc[i][j] = TileVec(vreinterpretq_f32_f64(vzip1q_f64(a, b)));
        acc[i + 1][j] = TileVec(vreinterpretq_f32_f64(vzip2q_f64(a, b)));
      }
    }
  }
};

#endif  // HWY_NEON

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
