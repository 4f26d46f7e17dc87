// Register tile of the matrix product: C[MR x NV·lanes] += A[MR x k] · B[k x NV·lanes], columns in lanes.
//
// The operands are words, and an engine says what a word is and how two are multiplied: an f32
// (engine_f32-inl.h), an f64 (engine_f64-inl.h), or two bf16 that are neighbours in k (engine_pairs-inl.h).
// k counts words here. `Real` is what sums are made of, and as large as a word.
//
// Every element of C is a sum of chains of MulAdds in order of k, one for each kChain values of k: the error
// of a chain grows with the root of its length. B is a row of vectors per k, A is broadcast word by word.
//
// Tiles are as large as the registers allow (32 on AVX-512 and NEON, 16 else): MR·NV accumulators, NV vectors of B and
// a broadcast. 6x4 vectors need 10 loads for 24 FMAs.
//
// An engine whose instruction takes two rows of A and two columns of B at once has Squares(), which makes as many steps
// of a chain as it can.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_MICRO_KERNEL_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_MICRO_KERNEL_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_MICRO_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Real>
using TileTag = hn::ScalableTag<Real>;
template <class Real>
using TileVecOf = hn::Vec<TileTag<Real>>;
template <class Real>
inline constexpr int64_t kLanesOf = static_cast<int64_t>(hn::MaxLanes(TileTag<Real>()));

using TileFloats = TileTag<float>;
using TileVec = TileVecOf<float>;
inline constexpr int64_t kLanes = kLanesOf<float>;

#if HWY_TARGET == HWY_AVX3
inline constexpr int kMaxVectors = 4;
// Rows of a full tile whose widest panel has 1, 2, 3, 4 vectors.
inline constexpr int kTileRows[5] = {0, 12, 12, 8, 6};
#elif HWY_TARGET == HWY_NEON
inline constexpr int kMaxVectors = 4;
inline constexpr int kTileRows[5] = {0, 12, 8, 8, 6};  // two vectors of 12 rows leave no room for squares
#elif HWY_TARGET == HWY_SCALAR
inline constexpr int kMaxVectors = 2;
inline constexpr int kTileRows[5] = {0, 4, 4, 0, 0};
#else
inline constexpr int kMaxVectors = 2;
inline constexpr int kTileRows[5] = {0, 8, 6, 0, 0};
#endif

// The words of a matrix where they lie, if they do as the engine multiplies them.
template <class Real>
struct WordsInPlace {
  const Real* first = nullptr;
  int64_t stride = 0;  // between rows, as in memory
};

// In all lanes the word at `from`, which need not be a number of that type.
template <class Real>
HWY_INLINE TileVecOf<Real> Broadcast(const Real* from) {
  Real word;
  std::memcpy(&word, from, sizeof(word));
  return hn::Set(TileTag<Real>(), word);
}

inline constexpr int kMostTileRows = 12;

// Longest chain, cut at multiples of it wherever a block of k begins.
inline constexpr int64_t kChain = 128;

// One line to prefetch with every step of k, into L2: spread like this it costs nothing, in a burst it blocks
// the loads after it.
template <class Real>
struct Stream {
  const Real* from;
  int64_t step;
};

template <class Real>
struct TileArgs {
  const Real* a;
  int64_t a_stride;  // between rows if A is row-major, between columns (steps of k) if not
  const Real* b;
  int64_t b_stride;
  Real* c;
  int64_t c_stride;
  int64_t k;
  int64_t last_lanes;  // of the last vector, those that are columns of C
  bool add_c;          // add to C, else overwrite it
  Stream<Real> next_a, next_b;
  const Real* begin;  // Prefetch::rows: where the chain begins, like C; null for zero
  int64_t begin_stride;
};
using GemmTileArgs = TileArgs<float>;

// A tile prefetches nothing, its streams, or each row of B a fixed distance ahead, where the next tile
// reads on in the same rows.
enum class Prefetch { nothing, streams, rows };
inline constexpr int kRowsAhead = 256;  // floats; half and twice of it are no better

template <int MR, int NV, class V>
HWY_INLINE void ZeroTile(V (&acc)[MR][NV]) {
  const hn::DFromV<V> d;
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j] = hn::Zero(d);
  }
}

// Whole vectors only.
template <int MR, int NV, class Real>
HWY_INLINE void BeginTile(const TileArgs<Real>& t, TileVecOf<Real> (&acc)[MR][NV]) {
  const TileTag<Real> d;
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j] = hn::LoadU(d, t.begin + i * t.begin_stride + j * kLanesOf<Real>);
  }
}

// acc += C.
template <int MR, int NV, class Real>
HWY_INLINE void AddTile(const TileArgs<Real>& t, TileVecOf<Real> (&acc)[MR][NV]) {
  constexpr int64_t lanes = kLanesOf<Real>;
  const TileTag<Real> d;
  const auto mask = hn::FirstN(d, static_cast<size_t>(t.last_lanes));
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    const Real* row = t.c + i * t.c_stride;
#pragma GCC unroll 4
    for (int j = 0; j + 1 < NV; ++j) acc[i][j] = hn::Add(hn::LoadU(d, row + j * lanes), acc[i][j]);
    const Real* last = row + (NV - 1) * lanes;
    acc[i][NV - 1] =
        hn::Add(t.last_lanes == lanes ? hn::LoadU(d, last) : LoadLanes(mask, d, last), acc[i][NV - 1]);
  }
}

template <int MR, int NV, class Real>
HWY_INLINE void StoreTile(const TileArgs<Real>& t, const TileVecOf<Real> (&acc)[MR][NV]) {
  constexpr int64_t lanes = kLanesOf<Real>;
  const TileTag<Real> d;
  if (t.last_lanes == lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) hn::StoreU(acc[i][j], d, t.c + i * t.c_stride + j * lanes);
    }
    return;
  }
  const auto mask = hn::FirstN(d, static_cast<size_t>(t.last_lanes));
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    Real* row = t.c + i * t.c_stride;
#pragma GCC unroll 4
    for (int j = 0; j + 1 < NV; ++j) hn::StoreU(acc[i][j], d, row + j * lanes);
    StoreLanes(acc[i][NV - 1], mask, d, row + (NV - 1) * lanes);
  }
}

// Where a tile has got to in its operands and in what it prefetches.
template <class Real>
struct TilePlace {
  const Real *a, *b, *next_a, *next_b;
};

// acc += A(:, k) · B(k, :).
template <class Engine, bool kRowMajorA, int MR, int NV, Prefetch kPrefetch>
HWY_INLINE void Step(const TileArgs<typename Engine::Real>& t, TilePlace<typename Engine::Real>& at,
                     TileVecOf<typename Engine::Real> (&acc)[MR][NV]) {
  using Vec = TileVecOf<typename Engine::Real>;
  constexpr int64_t lanes = kLanesOf<typename Engine::Real>;
  const TileTag<typename Engine::Real> d;
  if constexpr (kPrefetch == Prefetch::streams) {
    __builtin_prefetch(at.next_a, 0, 2);
    __builtin_prefetch(at.next_b, 0, 2);
    at.next_a += t.next_a.step;
    at.next_b += t.next_b.step;
  }
  Vec vb[NV];
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    vb[j] = hn::LoadU(d, at.b + j * lanes);
    if constexpr (kPrefetch == Prefetch::rows) __builtin_prefetch(at.b + j * lanes + kRowsAhead);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    const Vec va = Broadcast(at.a + i * (kRowMajorA ? t.a_stride : 1));
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j] = Engine::MulAdd(va, vb[j], acc[i][j]);
  }
  at.a += kRowMajorA ? 1 : t.a_stride;
  at.b += t.b_stride;
}

// One chain, from `at` on. A function of its own: with the loop over chains around it, the compiler takes
// accumulators of pairs to memory and back (.5 of the dots' peak instead of .9).
template <class Engine, bool kRowMajorA, int MR, int NV, Prefetch kPrefetch>
HWY_NOINLINE void Chain(const TileArgs<typename Engine::Real>& args, TilePlace<typename Engine::Real>& place,
                        int64_t steps, bool add) {
  using Real = typename Engine::Real;
  const TileArgs<Real> t = args;  // nothing that is stored changes it
  TilePlace<Real> at = place;
  TileVecOf<Real> acc[MR][NV];
  ZeroTile<MR, NV>(acc);
  if constexpr (kPrefetch == Prefetch::rows) {
    if (t.begin != nullptr) BeginTile<MR, NV>(t, acc);
  }
  if constexpr (requires { Engine::template Squares<kRowMajorA>(t, at, steps, acc); }) {
    steps = Engine::template Squares<kRowMajorA>(t, at, steps, acc);
  }
  for (; steps > 0; --steps) Step<Engine, kRowMajorA, MR, NV, kPrefetch>(t, at, acc);
  place = at;
  if (add) AddTile<MR, NV>(t, acc);
  StoreTile<MR, NV>(t, acc);
}

// The sum of the chains so far is kept in C, which is in L1 by the second of them.
template <class Engine, bool kRowMajorA, int MR, int NV, Prefetch kPrefetch = Prefetch::nothing>
void Tile(const TileArgs<typename Engine::Real>& t) {
  TilePlace<typename Engine::Real> at{t.a, t.b, t.next_a.from, t.next_b.from};
  bool add = t.add_c;
  for (int64_t left = t.k; left > 0; left -= kChain, add = true) {
    Chain<Engine, kRowMajorA, MR, NV, kPrefetch>(t, at, std::min(left, kChain), add);
  }
}

template <class Engine>
using TileFunction = void (*)(const TileArgs<typename Engine::Real>&);

// Heights for which there is a tile; the tallest keep all accumulators in registers.
constexpr bool HasTile(int64_t rows, int vectors) {
  if (kMaxVectors == 4) {
    return rows <= 6 || (rows == 7 && vectors == 1) || (rows == 8 && vectors <= 3) ||
           (rows == 12 && vectors <= 2);
  }
  return rows <= kTileRows[vectors];
}

template <class Engine, bool kRowMajorA, Prefetch kPrefetch, int NV>
TileFunction<Engine> TileOf(int64_t rows) {
// Tiles of one or two rows do not prefetch.
#define MULTIHEAD_TILE(MR)                                                        \
  case MR:                                                                        \
    if constexpr (HasTile(MR, NV) && (kPrefetch == Prefetch::nothing || MR >= 3)) \
      return &Tile<Engine, kRowMajorA, MR, NV, kPrefetch>;                        \
    if constexpr (HasTile(MR, NV)) return &Tile<Engine, kRowMajorA, MR, NV>;      \
    break
  switch (rows) {
    MULTIHEAD_TILE(1);
    MULTIHEAD_TILE(2);
    MULTIHEAD_TILE(3);
    MULTIHEAD_TILE(4);
    MULTIHEAD_TILE(5);
    MULTIHEAD_TILE(6);
    MULTIHEAD_TILE(7);
    MULTIHEAD_TILE(8);
    MULTIHEAD_TILE(12);
  }
#undef MULTIHEAD_TILE
  return nullptr;
}

template <class Engine, bool kRowMajorA, Prefetch kPrefetch>
TileFunction<Engine> TileOf(int64_t rows, int vectors) {
  switch (vectors) {
    case 1:
      return TileOf<Engine, kRowMajorA, kPrefetch, 1>(rows);
    case 2:
      return TileOf<Engine, kRowMajorA, kPrefetch, 2>(rows);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
    case 3:
      return TileOf<Engine, kRowMajorA, kPrefetch, 3>(rows);
    case 4:
      return TileOf<Engine, kRowMajorA, kPrefetch, 4>(rows);
#endif
  }
  return nullptr;
}

template <class Engine>
TileFunction<Engine> TileOf(bool row_major_a, bool streams, int64_t rows, int vectors) {
  if constexpr (HWY_TARGET != HWY_SCALAR && std::is_same_v<typename Engine::Real, float>) {
    if (streams && row_major_a) return TileOf<Engine, true, Prefetch::streams>(rows, vectors);
    if (streams) return TileOf<Engine, false, Prefetch::streams>(rows, vectors);
  }
  return row_major_a ? TileOf<Engine, true, Prefetch::nothing>(rows, vectors)
                     : TileOf<Engine, false, Prefetch::nothing>(rows, vectors);
}

// Height of the next tile when `rest` rows are left: full tiles, then two of about the same height, since a
// tile of one or two rows has too few chains to hide the latency of an FMA.
inline int64_t TileHeight(int64_t rest, int64_t full, int vectors) {
  if (rest >= 2 * full) return full;
  int64_t rows = rest <= full ? rest : (rest + 1) / 2;
  while (!HasTile(rows, vectors)) rows = rest <= full ? (rows + 1) / 2 : rows + 1;
  return rows;
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
