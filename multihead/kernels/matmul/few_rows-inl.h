// Products of a few rows with a large matrix: every element of B is used once or a few times, so what counts
// is that memory is read in long runs and that nothing is written on the way.
//
// Row-major B: a few rows of it at a time, along all columns; chains stay in the caches and go on from there.
// Transposed B: lanes rows at a time, along all of k, transposed in registers; chains stay in registers.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Floats of each row of a transposed B to prefetch ahead; past the end of the rows the next ones are
// prefetched, for, which takes cold products of one row from .80 to .93 of the memory's rate and of four from
// .70 to .86 (k = 768).
inline constexpr int64_t kTransposedAhead = 128;

// A chain, or what is left of k, of `columns` <= lanes columns of C. B is [columns, k] in memory.
struct TransposedRowsArgs {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t columns, k;
  bool add_c;
  int64_t left;       // floats of the rows of B from b on
  int64_t distance;   // to prefetch ahead, at most the length of a row
  const float* next;  // the rows of B that are read next
  float* transposed;  // [k][lanes]: gets B for the rows of A that follow; may be null
};

// One value of k after the other from a square of B whose rows are k.
template <class Engine, int M>
HWY_INLINE void AddSquare(const float* a, int64_t a_stride, const TileVec (&square)[kLanes],
                          TileVec (&acc)[M]) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) acc[r] = Engine::MulAdd(Broadcast(a + r * a_stride + i), square[i], acc[r]);
  }
}

// The sum of the chains so far is kept in C.
template <class Engine, int M>
HWY_NOINLINE void TransposedRows(const TransposedRowsArgs& t) {
  const TileFloats d;
  TileVec acc[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) acc[r] = hn::Zero(d);

  const float* a = t.a;
  int64_t k = 0;
  TileVec square[kLanes];
  if (t.columns == kLanes) {
    for (; k + kLanes <= t.k; k += kLanes, a += kLanes) {
      const int64_t beyond = k + t.distance - t.left;
      const float* ahead = beyond < 0 ? t.b + k + t.distance : t.next + beyond;
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        square[i] = hn::LoadU(d, t.b + i * t.b_stride + k);
        __builtin_prefetch(ahead + i * t.b_stride);
      }
      TransposeSquare(square);
      AddSquare<Engine, M>(a, t.a_stride, square, acc);
      if (t.transposed == nullptr) continue;
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) hn::Store(square[i], d, t.transposed + (k + i) * kLanes);
    }
  }
  alignas(64) float lane[kLanes] = {};
  for (; k < t.k; ++k, ++a) {
    for (int64_t i = 0; i < t.columns; ++i) std::memcpy(lane + i, t.b + i * t.b_stride + k, sizeof(float));
    const TileVec vb = hn::Load(d, lane);
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) acc[r] = Engine::MulAdd(Broadcast(a + r * t.a_stride), vb, acc[r]);
    if (t.transposed != nullptr) hn::Store(vb, d, t.transposed + k * kLanes);
  }
  const auto mask = hn::FirstN(d, static_cast<size_t>(t.columns));
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
    float* c = t.c + r * t.c_stride;
    if (t.add_c) acc[r] = hn::Add(LoadLanes(mask, d, c), acc[r]);
    StoreLanes(acc[r], mask, d, c);
  }
}

// Up to 8 rows of C (6 of the widest panel on AVX2) times a panel of a row-major B; the next panel goes on
// in the same rows of B.
template <class Engine, int NV>
HWY_INLINE void RowsInPlace(int64_t rows, const GemmTileArgs& t) {
  switch (rows) {
    case 1:
      return Tile<Engine, true, 1, NV, Prefetch::rows>(t);
    case 2:
      return Tile<Engine, true, 2, NV, Prefetch::rows>(t);
    case 3:
      return Tile<Engine, true, 3, NV, Prefetch::rows>(t);
    case 4:
      return Tile<Engine, true, 4, NV, Prefetch::rows>(t);
    case 5:
      return Tile<Engine, true, 5, NV, Prefetch::rows>(t);
    case 6:
      return Tile<Engine, true, 6, NV, Prefetch::rows>(t);
  }
  if constexpr (NV < kMaxVectors || kMaxVectors == 4) {
    rows == 7 ? Tile<Engine, true, 7, NV, Prefetch::rows>(t) : Tile<Engine, true, 8, NV, Prefetch::rows>(t);
  }
}

using TransposedRowsFunction = void (*)(const TransposedRowsArgs&);

template <class Engine>
TransposedRowsFunction TransposedRowsOf(int64_t rows) {
  constexpr TransposedRowsFunction kTable[] = {nullptr,
                                               &TransposedRows<Engine, 1>,
                                               &TransposedRows<Engine, 2>,
                                               &TransposedRows<Engine, 3>,
                                               &TransposedRows<Engine, 4>,
                                               &TransposedRows<Engine, 5>,
                                               &TransposedRows<Engine, 6>,
                                               &TransposedRows<Engine, 7>,
                                               &TransposedRows<Engine, 8>};
  return kTable[rows];
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
