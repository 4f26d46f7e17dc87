// The micro-kernel of attention: C[MR x NV·lanes] (op)= Σ_k A(m, k) · B(k, :), columns in lanes, A broadcast.
//
// One loop serves scores, values and the five products of the backward pass: A has free strides, so neither
// probabilities nor their gradients are ever transposed. Each element of C is a sum of chains of FMAs in
// order of k: short ones, because the error of a chain grows with the root of its length. 6x4 vectors (10
// loads per 24 FMAs) for full tiles on AVX-512; 8x3, 8x2, 16x1 where queries were dropped: they divide the 16
// rows that are done at a time there, and a tile of 4 rows has too few sums to hide an FMA's latency (rows of
// A with a stride of their own: 8x1, for want of pointers). On Zen 5 (two 512-bit FMA pipes) 6x4 and 8x3
// reach .98-.99 of the FMA peak for k = 32 … 512 with operands in L1/L2; unrolling k by 2 or 4 changes
// nothing (2026-11).

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_MICRO_KERNEL_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_MICRO_KERNEL_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_MICRO_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "multihead/kernels/attention/schedule-inl.h"
#include "multihead/kernels/simd/lookup-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using Vec = hn::Vec<F>;
using I = hn::RebindToSigned<F>;
using VecI = hn::Vec<I>;
inline constexpr int kN = static_cast<int>(hn::MaxLanes(F()));
inline constexpr int kGroupVecs = kGroupRows / kN;  // vectors in 16 columns

#if HWY_TARGET == HWY_AVX3
inline constexpr int kMaxVecs = 4;
#else
inline constexpr int kMaxVecs = 2;
#endif

// The last step of the sums.
enum class End {
  store,      // C = sum
  store_max,  // C = sum; max[column] = max(max[column], sum)
  bias_max,   // C = C + sum, the rest as store_max
  alibi_max,  // C = sum - slope[column] · |place[column] - key|, the rest as store_max
  add,        // C = C + sum
  merge,      // C = C · alpha[row] + sum · beta[row]
  add_merge,  // C = C · alpha[row] + (partial + sum) · beta[row]
  add_both,   // C = C + (partial + sum)
};
inline constexpr bool Merges(End end) { return end == End::merge || end == End::add_merge; }
inline constexpr bool HasPartial(End end) { return end == End::add_merge || end == End::add_both; }

// Sums over keys are cut at multiples of 64: whatever part of the keys a tile looks at, the same keys share a
// chain, and the chains are added in order. Sums over the queries of a tile, and over columns, are cut in
// two. An error of .7-.8 of the uncut sums' for 1.4 % of the time (d = 64, 1024 keys).
inline constexpr int kKeyChain = 64;
inline constexpr int kQueryChain = 32;
HWY_INLINE int KeyChainRest(int key) { return kKeyChain - key % kKeyChain; }
HWY_INLINE int QueryChainRest(int query) { return kQueryChain - query % kQueryChain; }
HWY_INLINE int64_t ColumnChain(int64_t dim) { return std::max<int64_t>(32, (dim / 2 + 15) / 16 * 16); }

struct ProductArgs {
  const float* a;
  int64_t a_row, a_step;  // one of them is 1
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t k;
  int64_t first_chain, chain;  // steps up to the first cut, and between the others
  float* max;                  // store_max: per column
  const float* alpha;          // merge: per row
  const float* beta;
  const float* partial;   // add_merge, add_both: the sum of the chains before, rows of kPartialColumns
  const float* prefetch;  // rows of another operand to fetch into the caches, one per row of A; may be null
  int64_t prefetch_stride, prefetch_columns;
  const float* slope;  // alibi_max: per column
  const float* place;
  int32_t key;  // alibi_max: of the first row
};

inline constexpr int kPartialColumns = 64;

inline constexpr bool KeepsMax(End end) {
  return end == End::store_max || end == End::bias_max || end == End::alibi_max;
}

// Prefetches one row of floats.
HWY_INLINE void PrefetchRow(const float* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 16) __builtin_prefetch(row + c, 0, 2);
}

// The score term of bias_max and alibi_max.
template <End kEnd, int MR, int NV>
HWY_INLINE void AddTerm(const ProductArgs& t, Vec (&acc)[MR][NV]) {
  const F d;
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    if constexpr (kEnd == End::bias_max) {
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        acc[i][j] = hn::Add(acc[i][j], hn::LoadU(d, t.c + i * t.c_stride + j * kN));
      }
    }
    if constexpr (kEnd == End::alibi_max) {
      const Vec slope = hn::LoadU(d, t.slope + j * kN), place = hn::LoadU(d, t.place + j * kN);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        const Vec distance = hn::Abs(hn::Sub(place, hn::Set(d, static_cast<float>(t.key + i))));
        acc[i][j] = hn::NegMulAdd(slope, distance, acc[i][j]);
      }
    }
  }
}

// acc = Σ_k A(m, k) · B(k, :), one chain; A and B move on.
template <bool kStepOne, int MR, int NV>
HWY_INLINE void Chain(const ProductArgs& t, int64_t steps, const float*& from_a, const float*& from_b,
                      Vec (&acc)[MR][NV]) {
  const F d;
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j] = hn::Zero(d);
  }
  const float* HWY_RESTRICT a = from_a;
  const float* HWY_RESTRICT b = from_b;
  const int64_t a_row = kStepOne ? t.a_row : 1, a_step = kStepOne ? 1 : t.a_step, b_stride = t.b_stride;
  for (int64_t k = steps; k > 0; --k) {
    Vec vb[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) vb[j] = hn::LoadU(d, b + j * kN);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const Vec va = hn::Set(d, a[i * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = hn::MulAdd(va, vb[j], acc[i][j]);
    }
    a += a_step;
    b += b_stride;
  }
  from_a = a, from_b = b;
}

// Sums of earlier chains stay in memory. GCC 12 would else keep them in the registers of the next chain, and
// move those through the stack, its loop's pointer included (1.00-1.01 of a call's time).
HWY_INLINE void KeepInMemory(const float* sums) { asm volatile("" : : "r"(sums) : "memory"); }

// kCut: k goes beyond the first chain.
template <End kEnd, bool kStepOne, bool kCut, int MR, int NV>
HWY_NOINLINE void MicroKernel(const ProductArgs& t) {
  const F d;
  Vec acc[MR][NV];
  const float *a = t.a, *b = t.b;
  Chain<kStepOne>(t, kCut ? t.first_chain : t.k, a, b, acc);
  if constexpr (kCut) {
    alignas(64) float sums[MR * NV * kN];
    const auto keep = [&]() HWY_ATTR {
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) hn::Store(acc[i][j], d, sums + (i * NV + j) * kN);
      }
      KeepInMemory(sums);
    };
    const auto add_kept = [&]() HWY_ATTR {
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) acc[i][j] = hn::Add(hn::Load(d, sums + (i * NV + j) * kN), acc[i][j]);
      }
    };
    keep();
    for (int64_t left = t.k - t.first_chain;;) {
      const int64_t now = std::min(left, t.chain);
      Chain<kStepOne>(t, now, a, b, acc);
      add_kept();
      if ((left -= now) <= 0) break;
      keep();
    }
  }
  AddTerm<kEnd>(t, acc);
  if constexpr (KeepsMax(kEnd)) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      Vec max = hn::LoadU(d, t.max + j * kN);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) max = hn::Max(max, acc[i][j]);
      hn::StoreU(max, d, t.max + j * kN);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    float* HWY_RESTRICT c = t.c + i * t.c_stride;
    if constexpr (HasPartial(kEnd)) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        acc[i][j] = hn::Add(hn::LoadU(d, t.partial + i * kPartialColumns + j * kN), acc[i][j]);
      }
    }
    if constexpr (kEnd == End::add || kEnd == End::add_both) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = hn::Add(hn::LoadU(d, c + j * kN), acc[i][j]);
    }
    if constexpr (Merges(kEnd)) {
      const Vec alpha = hn::Set(d, t.alpha[i]), beta = hn::Set(d, t.beta[i]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        acc[i][j] = hn::MulAdd(acc[i][j], beta, hn::Mul(hn::LoadU(d, c + j * kN), alpha));
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) hn::StoreU(acc[i][j], d, c + j * kN);
  }
}

// Rows [0, rows) in steps of MR, then 4, 2, 1. `t` moves along with them and back: copying it would stall on
// the stores that have just filled it (a tenth of a call on 64 tokens).
template <End kEnd, bool kStepOne, bool kCut, int MR, int NV>
HWY_INLINE void ProductRows(ProductArgs& t, int64_t rows) {
  const float *const a = t.a, *const alpha = t.alpha, *const beta = t.beta, *const partial = t.partial;
  float* const c = t.c;
  const int32_t key = t.key;
  // The rows of A that the next tile reads come from L2 or beyond, and so does what the caller names.
  const auto fetch = [&t](int64_t n) HWY_ATTR {
    if (!t.prefetch) return;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kStepOne) PrefetchRow(t.a + (n + i) * t.a_row, t.k);
      PrefetchRow(t.prefetch + i * t.prefetch_stride, t.prefetch_columns);
    }
    t.prefetch += n * t.prefetch_stride;
  };
  const auto advance = [&t](int64_t n) HWY_ATTR {
    t.a += n * (kStepOne ? t.a_row : 1);
    t.c += n * t.c_stride;
    if constexpr (Merges(kEnd)) t.alpha += n, t.beta += n;
    if constexpr (HasPartial(kEnd)) t.partial += n * kPartialColumns;
    if constexpr (kEnd == End::alibi_max) t.key += static_cast<int32_t>(n);
  };
  for (; rows >= MR; rows -= MR) {
    fetch(MR);
    MicroKernel<kEnd, kStepOne, kCut, MR, NV>(t);
    advance(MR);
  }
  for (; rows >= 4; rows -= 4) {
    fetch(4);
    MicroKernel<kEnd, kStepOne, kCut, 4, NV>(t);
    advance(4);
  }
  if (rows >= 2) {
    MicroKernel<kEnd, kStepOne, kCut, 2, NV>(t);
    advance(2);
    rows -= 2;
  }
  if (rows >= 1) MicroKernel<kEnd, kStepOne, kCut, 1, NV>(t);
  t.a = a, t.c = c;
  if constexpr (Merges(kEnd)) t.alpha = alpha, t.beta = beta;
  if constexpr (HasPartial(kEnd)) t.partial = partial;
  if constexpr (kEnd == End::alibi_max) t.key = key;
}

// All rows and `columns` (a multiple of 16) columns.
template <End kEnd, bool kStepOne, bool kCut>
HWY_INLINE void ProductColumns(ProductArgs& t, int64_t rows, int64_t columns) {
  if constexpr (kMaxVecs == 4) {
    while (columns > 0) {
      const int64_t now = std::min<int64_t>(columns, 64);
      switch (now / 16) {
        case 4:
          ProductRows<kEnd, kStepOne, kCut, 6, 4>(t, rows);
          break;
        case 3:
          ProductRows<kEnd, kStepOne, kCut, 8, 3>(t, rows);
          break;
        case 2:
          ProductRows<kEnd, kStepOne, kCut, 8, 2>(t, rows);
          break;
        default:
          ProductRows<kEnd, kStepOne, kCut, kStepOne ? 8 : 16, 1>(t, rows);
      }
      t.b += now, t.c += now, t.max += now, columns -= now, t.prefetch = nullptr;
      if constexpr (HasPartial(kEnd)) t.partial += now;
      if constexpr (kEnd == End::alibi_max) t.slope += now, t.place += now;
    }
  } else {
    constexpr int kVecs = HWY_TARGET == HWY_NEON ? kGroupVecs : 2,
                  kStep = kVecs * kN;  // NEON has 32 registers
    for (; columns > 0; columns -= kStep) {
      ProductRows<kEnd, kStepOne, kCut, 6, kVecs>(t, rows);
      t.b += kStep, t.c += kStep, t.max += kStep, t.prefetch = nullptr;
      if constexpr (HasPartial(kEnd)) t.partial += kStep;
      if constexpr (kEnd == End::alibi_max) t.slope += kStep, t.place += kStep;
    }
  }
}

// The product; b, c, max, prefetch, slope and place of `t` are moved past the last column.
template <End kEnd, bool kStepOne>
HWY_INLINE void Product(ProductArgs& t, int64_t rows, int64_t columns) {
  if (t.k > t.first_chain) {
    ProductColumns<kEnd, kStepOne, true>(t, rows, columns);
  } else {
    ProductColumns<kEnd, kStepOne, false>(t, rows, columns);
  }
}

// Powers below 2^-100 are zero. Beside the largest of a row, which is 1, nothing is lost, and no product of a
// probability with a value above 2^-26 is denormal: on Intel an FMA that meets such a number takes 125 cycles
// (Sapphire Rapids, November 2026; ALiBi's distant keys cost a quarter of a forward pass), on Zen 5 not one.
inline constexpr float kLeastExponent = -100.0f;

// 2^(i/8), twice, for vscalefps.
alignas(64) inline constexpr int32_t kPowersOfEighths[16] = {
    0x3f800000, 0x3f8b95c2, 0x3f9837f0, 0x3fa5fed7, 0x3fb504f3, 0x3fc5672a, 0x3fd744fd, 0x3feac0c7,
    0x3f800000, 0x3f8b95c2, 0x3f9837f0, 0x3fa5fed7, 0x3fb504f3, 0x3fc5672a, 0x3fd744fd, 0x3feac0c7};

// 2^(r + f) for f in [-1/16, 1/16] and r = n + i/8, where the last bits of t are n and i; exactly +0 for
// r < -100; NaN for NaN.
//
// 2^(i/8) comes from a table in a register, and n goes into its exponent as an integer (shifted along with n,
// i would get there as well, so the table holds that much less), or by vscalefps at the end, which costs one
// instruction less and gives the same bits; a minimax polynomial of degree 3 for 2^f - 1 (2.5e-8). Four
// instructions for the pipes that the products need: a polynomial of degree 6 over [-1/2, 1/2] takes six for
// the same error (3 % of a call on short rows), one of degree 5 has twice the error.
HWY_INLINE Vec PowerOfParts(F d, Vec t, Vec r, Vec f) {
  const VecI eighths = hn::BitCast(I(), t);
  const Vec least = hn::Set(d, kLeastExponent);
  Vec y = hn::MulAdd(hn::Set(d, 0.0554962218f), f, hn::Set(d, 0.24025763f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.693147214f));
#if HWY_TARGET == HWY_AVX3
  const Vec power = hn::BitCast(d, Lookup(I(), kPowersOfEighths, eighths));
  const Vec mantissa = hn::MulAdd(power, hn::Mul(y, f), power);
  return Vec{_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(r.raw, least.raw, _CMP_NLT_UQ), mantissa.raw, r.raw)};
#else
  const Vec power = hn::BitCast(d, hn::Add(EighthPower(I(), eighths), hn::ShiftLeft<20>(eighths)));
  return hn::IfThenZeroElse(hn::Lt(r, least), hn::MulAdd(power, hn::Mul(y, f), power));
#endif
}

inline constexpr float kEighths = 1572864.0f;  // 1.5 · 2^20: what is added to it loses all bits below 1/8
inline constexpr float kLog2e = 1.44269504088896341f;

// The larger and the smaller of a bound and x; NaN stays. x86 gives its second operand then, other CPUs the
// bound.
HWY_INLINE Vec AtLeast(Vec bound, Vec x) {
#if HWY_ARCH_X86
  return hn::Max(bound, x);
#else
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#endif
}
HWY_INLINE Vec AtMost(Vec bound, Vec x) {
#if HWY_ARCH_X86
  return hn::Min(bound, x);
#else
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
#endif
}

// 2^x for x <= 127 to 1.1e-7 (3.6e-8 rms); exactly 1 at 0, exactly +0 below 2^-100, NaN for NaN.
HWY_INLINE Vec Exp2(F d, Vec x) {
  const Vec magic = hn::Set(d, kEighths), t = hn::Add(x, magic), r = hn::Sub(t, magic);
  return PowerOfParts(d, t, r, hn::Sub(x, r));
}

// e^x likewise, for x <= 88: x · log2(e) is never rounded but to its parts.
HWY_INLINE Vec Exp(F d, Vec x) {
  const Vec magic = hn::Set(d, kEighths), log2e = hn::Set(d, kLog2e), t = hn::MulAdd(x, log2e, magic);
  const Vec r = hn::Sub(t, magic);
  return PowerOfParts(d, t, r, hn::MulSub(x, log2e, r));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
