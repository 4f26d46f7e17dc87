// Copies of operands in the order the register tile reads them.
//
// B becomes panels [k][NV·lanes], zero-filled past the last column; a transposed B goes through blocks of
// lanes x lanes words transposed in registers. A transposed A becomes slivers [k][rows of a tile]. The engine
// makes the words (widens bf16, rounds f32 …):
//   Across       of `lanes` columns of one row, or of a row and those below it
//   FirstAcross  of the first columns, then zeros
//   Along, Word  of numbers that follow each other: a vector, one

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_PACK_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_PACK_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_PACK_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"
#include "multihead/kernels/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
template <class Real = float>
HWY_INLINE void TransposeSquare(TileVecOf<Real> (&)[kLanesOf<Real>]) {}
#else
// Transposes a square of lanes x lanes words in place.
template <class Real = float>
HWY_INLINE void TransposeSquare(TileVecOf<Real> (&square)[kLanesOf<Real>]) {
  const TileTag<Real> d;
  constexpr int n = 16 / sizeof(Real);  // words of a block of 128 bits
  constexpr int kBlocks = static_cast<int>(kLanesOf<Real> / n);
  TileVecOf<Real> part[kLanesOf<Real>];  // part[n g + j], block b: column n b + j of the n rows from n g on
#pragma GCC unroll 4
  for (int g = 0; g < kBlocks; ++g) TransposeWithinBlocks(d, square + n * g, part + n * g);
#pragma GCC unroll 4
  for (int j = 0; j < n; ++j) {
    if constexpr (kBlocks == 1) {
      square[j] = part[j];
    }
#if HWY_TARGET == HWY_AVX2
    square[j] = hn::ConcatLowerLower(d, part[n + j], part[j]);
    square[n + j] = hn::ConcatUpperUpper(d, part[n + j], part[j]);
#elif HWY_TARGET == HWY_AVX3
    const auto even01 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(part[n + j]), part[j]);
    const auto odd01 = hn::OddEvenBlocks(part[n + j], hn::SwapAdjacentBlocks(part[j]));
    const auto even23 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(part[3 * n + j]), part[2 * n + j]);
    const auto odd23 = hn::OddEvenBlocks(part[3 * n + j], hn::SwapAdjacentBlocks(part[2 * n + j]));
    square[j] = hn::ConcatLowerLower(d, even23, even01);
    square[n + j] = hn::ConcatLowerLower(d, odd23, odd01);
    square[2 * n + j] = hn::ConcatUpperUpper(d, even23, even01);
    square[3 * n + j] = hn::ConcatUpperUpper(d, odd23, odd01);
#endif
  }
}
#endif  // HWY_SCALAR

// to[0..columns) = the words of as many columns, from the row at `from` and, where a word is deeper, those
// that follow it; `left` of them exist.
template <class Engine, class T>
HWY_INLINE void CopyAcross(const T* from, int64_t stride, int64_t left, int64_t columns,
                           typename Engine::Real* to) {
  constexpr int64_t lanes = kLanesOf<typename Engine::Real>;
  const TileTag<typename Engine::Real> d;
  int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) hn::StoreU(Engine::Across(from + j, stride, left), d, to + j);
  if (j == columns) return;
  const auto count = static_cast<size_t>(columns - j);
  StoreLanes(Engine::FirstAcross(from + j, stride, left, count), hn::FirstN(d, count), d, to + j);
}

// to = the words of `count` numbers that follow each other.
template <class Engine, class T>
HWY_INLINE void CopyAlong(const T* from, int64_t count, typename Engine::Real* to) {
  constexpr int64_t lanes = kLanesOf<typename Engine::Real>, kStep = lanes * Engine::kDepth;
  const TileTag<typename Engine::Real> d;
  for (; count >= kStep; count -= kStep, from += kStep, to += lanes) hn::StoreU(Engine::Along(from), d, to);
  for (; count > 0; count -= Engine::kDepth, from += Engine::kDepth) *to++ = Engine::Word(from, count);
}

// to[word][0..lanes) = the words of from[0..rows)[0..count); lanes past `rows` are zero.
template <class Engine, class T>
HWY_NOINLINE void PackTransposed(const T* from, int64_t stride, int64_t rows, int64_t count,
                                 typename Engine::Real* to, int64_t to_stride) {
  using Real = typename Engine::Real;
  constexpr int64_t lanes = kLanesOf<Real>, kStep = lanes * Engine::kDepth;
  const TileTag<Real> d;
  TileVecOf<Real> square[lanes];
  int64_t k = 0;
  if (rows == lanes) {
    for (; k + kStep <= count; k += kStep) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < lanes; ++i) square[i] = Engine::Along(from + i * stride + k);
      TransposeSquare<Real>(square);
#pragma GCC unroll 16
      for (int64_t i = 0; i < lanes; ++i, to += to_stride) hn::StoreU(square[i], d, to);
    }
  }
  for (; k < count; k += Engine::kDepth, to += to_stride) {
    for (int64_t i = 0; i < rows; ++i) to[i] = Engine::Word(from + i * stride + k, count - k);
    std::fill(to + rows, to + lanes, Real{0});
  }
}

// to[word][0..NV·lanes) = the words of from[0..count)[0..columns), then zeros.
template <class Engine, int NV, class T>
HWY_INLINE void PackRows(const T* from, int64_t stride, int64_t count, int64_t columns,
                         typename Engine::Real* to) {
  using Real = typename Engine::Real;
  constexpr int64_t lanes = kLanesOf<Real>, width = NV * lanes;
  const TileTag<Real> d;
  const int64_t step = Engine::kDepth * stride;
  if (columns == width) {
    for (int64_t k = 0; k < count; k += Engine::kDepth, from += step, to += width) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j)
        hn::StoreU(Engine::Across(from + j * lanes, stride, count - k), d, to + j * lanes);
    }
    return;
  }
  for (int64_t k = 0; k < count; k += Engine::kDepth, from += step, to += width) {
    CopyAcross<Engine>(from, stride, count - k, columns, to);
    std::fill(to + columns, to + width, Real{0});
  }
}

// A part of op(B): `count` values of k, `columns` <= vectors·lanes columns. `from` is the first of them.
template <class T>
struct PartOfB {
  const T* from;
  int64_t stride;
  bool transposed;
  int64_t count, columns;
  int vectors;
};

template <class Engine, class T>
HWY_INLINE void PackB(const PartOfB<T>& b, typename Engine::Real* to) {
  constexpr int64_t lanes = kLanesOf<typename Engine::Real>;
  if (b.transposed) {
    for (int64_t j = 0; j < b.vectors; ++j) {
      const int64_t rows = std::min(b.columns - j * lanes, lanes);
      PackTransposed<Engine>(b.from + j * lanes * b.stride, b.stride, rows, b.count, to + j * lanes,
                             b.vectors * lanes);
    }
    return;
  }
  switch (b.vectors) {
    case 1:
      return PackRows<Engine, 1>(b.from, b.stride, b.count, b.columns, to);
    case 2:
      return PackRows<Engine, 2>(b.from, b.stride, b.count, b.columns, to);
    case 3:
      return PackRows<Engine, 3>(b.from, b.stride, b.count, b.columns, to);
    default:
      return PackRows<Engine, 4>(b.from, b.stride, b.count, b.columns, to);
  }
}

// Columns of a transposed A ([k, m] in memory) in slivers [word][kSliver]. A sliver is a multiple of every
// tile height, so that one layout serves all tiles, and its rows are 96 bytes, which copies faster than the
// 24 or 32 of a tile. The last sliver holds the rest as well, so that no tile straddles two.
inline constexpr int64_t kSliver = 24;

struct Slivers {
  explicit Slivers(int64_t rows)
      : count(std::max<int64_t>(rows / kSliver, 1)), last(rows - (count - 1) * kSliver) {}
  int64_t of(int64_t row) const { return std::min(row / kSliver, count - 1); }
  int64_t width(int64_t sliver) const { return sliver + 1 == count ? last : kSliver; }

  int64_t count, last;
};

// A few k at a time go to all slivers, so that memory is read in order.
template <class Engine, class T>
HWY_NOINLINE void PackA(const T* from, int64_t stride, int64_t rows, int64_t count,
                        typename Engine::Real* to) {
  using Real = typename Engine::Real;
  constexpr int64_t kStep = 8 * Engine::kDepth;
  constexpr bool kPlain = Engine::kDepth == 1 && std::is_same_v<T, Real>;  // words as they lie in memory
  const int64_t words = (count + Engine::kDepth - 1) / Engine::kDepth;
  const Slivers slivers(rows);
  for (int64_t first = 0; first < count; first += kStep) {
    const int64_t end = std::min(first + kStep, count);
    const T* column = from;
    Real* sliver = to;
    for (int64_t i = 0; i < slivers.count; ++i, column += kSliver, sliver += words * kSliver) {
      const int64_t width = slivers.width(i);
      Real* line = sliver + first / Engine::kDepth * width;
      for (int64_t k = first; k < end; k += Engine::kDepth, line += width) {
        const T* row = column + k * stride;
        if (kPlain && width == kSliver) {
          std::memcpy(line, row, kSliver * sizeof(Real));
        } else {
          CopyAcross<Engine>(row, stride, count - k, width, line);
        }
      }
    }
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
