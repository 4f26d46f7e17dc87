// Register tiles of attention: C[MR x NV·lanes] (op)= Σ_k A(m, k) · B(k, :), columns in lanes, A broadcast.
//
// One loop serves scores, values and the five products of the backward pass: A has free strides, so neither
// probabilities nor their gradients are ever transposed. Each element of C is one chain of FMAs in order of
// k. 6x4 vectors (10 loads per 24 FMAs) for full tiles on AVX-512; 8x3, 12x2, 12x1 where queries were
// dropped. On Zen 5 (two 512-bit FMA pipes) 6x4, 8x3 and 12x2 all reach .98-.99 of the FMA peak for k = 32 …
// 512 with operands in L1/L2; unrolling k by 2 or 4 changes nothing; 12x1 reaches .89 (2026-11).

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_TILE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_TILE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "multihead/kernels/attention_tiles.h"

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

// What happens to the sums at the end of a tile.
enum class End {
  store,       // C = sum
  store_max,   // C = sum; max[column] = max(max[column], sum)
  bias_max,    // C = C + sum, the rest as store_max
  alibi_max,   // C = sum - slope[column] · |place[column] - key|, the rest as store_max
  accumulate,  // the chain starts from C
  merge,       // C = C · alpha[row] + sum · beta[row]
};

struct TileArgs {
  const float* a;
  int64_t a_row, a_step;  // one of them is 1
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t k;
  float* max;          // store_max: per column
  const float* alpha;  // merge: per row
  const float* beta;
  const float* ahead;  // rows of another operand to fetch into the caches, one per row of A; may be null
  int64_t ahead_stride, ahead_columns;
  const float* slope;  // alibi_max: per column
  const float* place;
  int32_t key;  // alibi_max: of the first row
};

inline constexpr bool KeepsMax(End end) {
  return end == End::store_max || end == End::bias_max || end == End::alibi_max;
}

// Asks for one row of floats.
HWY_INLINE void FetchRow(const float* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 16) __builtin_prefetch(row + c, 0, 2);
}

// The score term of bias_max and alibi_max.
template <End kEnd, int MR, int NV>
HWY_INLINE void AddTerm(const TileArgs& t, Vec (&acc)[MR][NV]) {
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

template <End kEnd, bool kStepOne, int MR, int NV>
HWY_NOINLINE void Tile(const TileArgs& t) {
  const F d;
  Vec acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      if constexpr (kEnd == End::accumulate) {
        acc[i][j] = hn::LoadU(d, t.c + i * t.c_stride + j * kN);
      } else {
        acc[i][j] = hn::Zero(d);
      }
    }
  }
  const float* HWY_RESTRICT a = t.a;
  const float* HWY_RESTRICT b = t.b;
  const int64_t a_row = kStepOne ? t.a_row : 1, a_step = kStepOne ? 1 : t.a_step, b_stride = t.b_stride;
  for (int64_t k = t.k; k > 0; --k) {
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
    if constexpr (kEnd == End::merge) {
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

// Rows [0, rows) in steps of MR, then 4, 2, 1.
template <End kEnd, bool kStepOne, int MR, int NV>
HWY_INLINE void TileRows(TileArgs t, int64_t rows) {
  // The rows of A that the next tile reads come from L2 or beyond, and so does what the caller names.
  const auto fetch = [&t](int64_t n) HWY_ATTR {
    if (!t.ahead) return;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kStepOne) FetchRow(t.a + (n + i) * t.a_row, t.k);
      FetchRow(t.ahead + i * t.ahead_stride, t.ahead_columns);
    }
    t.ahead += n * t.ahead_stride;
  };
  const auto advance = [&t](int64_t n) HWY_ATTR {
    t.a += n * (kStepOne ? t.a_row : 1);
    t.c += n * t.c_stride;
    if constexpr (kEnd == End::merge) t.alpha += n, t.beta += n;
    if constexpr (kEnd == End::alibi_max) t.key += static_cast<int32_t>(n);
  };
  for (; rows >= MR; rows -= MR) {
    fetch(MR);
    Tile<kEnd, kStepOne, MR, NV>(t);
    advance(MR);
  }
  for (; rows >= 4; rows -= 4) {
    fetch(4);
    Tile<kEnd, kStepOne, 4, NV>(t);
    advance(4);
  }
  if (rows >= 2) {
    Tile<kEnd, kStepOne, 2, NV>(t);
    advance(2);
    rows -= 2;
  }
  if (rows >= 1) Tile<kEnd, kStepOne, 1, NV>(t);
}

// All rows and `columns` (a multiple of 16) columns.
template <End kEnd, bool kStepOne>
HWY_INLINE void Product(TileArgs t, int64_t rows, int64_t columns) {
  if constexpr (kMaxVecs == 4) {
    while (columns > 0) {
      const int64_t now = std::min<int64_t>(columns, 64);
      switch (now / 16) {
        case 4:
          TileRows<kEnd, kStepOne, 6, 4>(t, rows);
          break;
        case 3:
          TileRows<kEnd, kStepOne, 8, 3>(t, rows);
          break;
        case 2:
          TileRows<kEnd, kStepOne, 12, 2>(t, rows);
          break;
        default:
          TileRows<kEnd, kStepOne, 12, 1>(t, rows);
      }
      t.b += now, t.c += now, t.max += now, columns -= now, t.ahead = nullptr;
      if constexpr (kEnd == End::alibi_max) t.slope += now, t.place += now;
    }
  } else {
    for (; columns > 0; columns -= 2 * kN) {
      TileRows<kEnd, kStepOne, 6, 2>(t, rows);
      t.b += 2 * kN, t.c += 2 * kN, t.max += 2 * kN, t.ahead = nullptr;
      if constexpr (kEnd == End::alibi_max) t.slope += 2 * kN, t.place += 2 * kN;
    }
  }
}

// 2^x for x <= 127 to 1.7e-7 (6.6e-8 rms); exactly 1 at 0, exactly +0 at -inf and below -127, NaN for NaN.
//
// x = n + f with f in [-1/2, 1/2] by adding 1.5 · 2^23; a minimax polynomial of degree 5 (9.1e-8); n goes
// into the exponent as an integer. Below 2^-126 the sum runs linearly through the denormals to zero. On Zen
// this beats vrndscale + vscalef: the additions run on pipes that the FMAs leave free.
HWY_INLINE Vec Exp2(F d, Vec x) {
  const I di;
  x = hn::Max(hn::Set(d, -127.0f), x);  // the second operand is returned for NaN
  const Vec magic = hn::Set(d, 12582912.0f);
  const Vec t = hn::Add(x, magic);
  const Vec f = hn::Sub(x, hn::Sub(t, magic));
  Vec y = hn::MulAdd(hn::Set(d, 0.00132647273f), f, hn::Set(d, 0.00967151299f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.0555073358f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.240222424f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.693147004f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, t))));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
