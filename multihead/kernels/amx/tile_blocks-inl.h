// Blocks of C on tiles: 32 rows by 32 columns, whose two by two tiles share two tiles of X and two of Y.
// Internal.
//
// X is the operand whose lines are rows of tiles, Y the one whose lines are columns. The sums of a block stay
// in registers until the next block has begun: they are stored tile by tile between its first products, and
// their rows finished, a few at each of its other steps, while it multiplies (a block of 12 steps takes 600
// cycles instead of 950, Xeon with AMX, 2026-11). One after another, 4 KiB of sums serve all blocks.
#pragma once

#include <cstdint>

#include "multihead/kernels/amx/amx-inl.h"

namespace multihead::kernels {

inline constexpr int64_t kTileBytes = 2 * kAmxWords;
inline constexpr int64_t kBlockLines = 2 * kAmxLines;  // of C: of X, and of Y
inline constexpr int64_t kBlockSums = kBlockLines * kBlockLines;
inline constexpr int64_t kWideStride = 4 * kAmxLines;  // of the sums of a wide block

/// Products of parts of X and Y, in the order in which they are added: small ones first, and of two neighbours one
/// operand is the same.
struct PartProduct {
  int x, y;
};
template <int kParts>
inline constexpr PartProduct kProducts[1] = {{0, 0}};
template <>
inline constexpr PartProduct kProducts<2>[3] = {{1, 0}, {0, 0}, {0, 1}};
template <>
inline constexpr PartProduct kProducts<3>[6] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};

/// Two tiles of every step of k, and of every part of their numbers, by distances in bytes. A step is 64
/// bytes of each line: 32 numbers of bf16 or 64 of int8.
struct TileOperand {
  const char* first = nullptr;
  int64_t row = 64, tile = kTileBytes, step = 2 * kTileBytes, part = 2 * kTileBytes;
  const char* last = nullptr;  ///< the last step, if it lies elsewhere: two tiles, packed
};

constexpr int64_t block_share(int64_t steps) {
  return steps > 1 ? (kBlockLines + steps - 2) / (steps - 1) : kBlockLines;
}

struct TileBlock {
  TileOperand x, y;
  int64_t steps = 0;            ///< one or more
  int64_t share = kBlockLines;  ///< rows to finish, and lines to fetch, at each step but the first
  const float* from = nullptr;  ///< the sums it continues, if any
  int64_t from_stride = kBlockLines;
  const char* fetch = nullptr;  ///< lines to be prefetched to L2 meanwhile
  int64_t fetch_lines = 0, fetch_stride = 0;
};

/// Rows of sums on their way into C: as f32, or int32 times their scales; + bias; rounded if C is bf16
/// (numbers below the smallest normal one to zero).
struct TileRows {
  const float* sums = nullptr;
  void* to = nullptr;
  int64_t stride = 0;  ///< bytes
  int64_t rows = 0, columns = kBlockLines;
  const float* bias = nullptr;
  bool bf16 = false;
  int64_t sums_stride = kBlockLines;
  const float *x_scales = nullptr, *y_scales = nullptr;  ///< of each row and each column, if sums are int32
};
void finish_tile_rows(const TileRows& rows, TileUnit unit);

/// This thread's tile registers while blocks are multiplied.
class TileBlocks {
 public:
  /// `parts` of bf16, or 0 for int8, whose sums are int32 in the place of floats. `swapped`: X is the right
  /// operand of a product; the parts' products are added in the same order.
  TileBlocks(TileUnit unit, int parts, bool swapped)
      : unit_(unit), parts_(parts), swapped_(swapped), registers_(unit == TileUnit::amx) {}

  /// Stores the sums of the block before to `previous` unless that is null, finishes `rows`, which may be
  /// those sums, and multiplies a block, whose sums stay in the registers.
  void multiply(const TileBlock& block, float* previous, const TileRows& rows);
  /// Stores the sums of the last block.
  void store(float* to);
  /// to[16][16 · tiles], rows kWideStride apart: one tile of X times one to four of Y. Of one part, or int8.
  void multiply_wide(const TileBlock& block, int tiles, float* to);

 private:
  template <int kParts, bool kSwapped>
  void multiply_as(const TileBlock& block, float* previous, const TileRows& rows);
  template <int kParts>
  void multiply_wide_as(const TileBlock& block, int tiles, float* to);

  TileUnit unit_;
  int parts_;
  bool swapped_;
  AmxRegisters registers_;
  alignas(64) float emulated_[kBlockSums];
};

}  // namespace multihead::kernels
