// Products of int8 in groups of 32 along k, of which every row of X and every column of Y has a scale.
// Internal.
#pragma once

#include <cstdint>

#include "multihead/kernels/amx/amx-inl.h"

namespace multihead::kernels {

inline constexpr int64_t kGroupBytes = 32;                           // along k: half a row of a tile
inline constexpr int64_t kGroupTileBytes = kGroupBytes * kAmxLines;  // of Y: [k / 4][16 columns][4]

/// y[row][column] = Σ over groups, in order, of (Σ x·w · y_scale + y_minimum · x_sum) · x_scale, without
/// FMAs. With halves, Σ x·w is the sum of the first 16 products times one factor and of the last times another,
/// integers below 2^24.
struct GroupBlock {
  const int8_t* x = nullptr;  ///< 16 rows, x_stride apart, of `groups` whole groups
  int64_t x_stride = 0;
  const float *x_scales = nullptr, *x_sums = nullptr;  ///< [group][16 rows]
  const int8_t* y = nullptr;                           ///< values of a group; bytes to the next one
  int64_t y_group = kGroupTileBytes;
  const float *y_scales = nullptr, *y_minima = nullptr;  ///< [group][16 columns]; no minima if null
  const float* y_halves = nullptr;  ///< [group][2][16 columns], integers; no factors if null
  int64_t groups = 0;
  bool short_minima = false;  ///< of at most 11 bits: their products with x_sums are exact
  float* to = nullptr;        ///< [16][16], rows to_stride apart
  int64_t to_stride = kAmxLines;
  const char* fetch = nullptr;  ///< lines to be prefetched to L2 meanwhile
  int64_t fetch_lines = 0;
};

/// This thread's tile registers, formed for groups, or for halves of them.
class GroupTiles {
 public:
  GroupTiles(TileUnit unit, bool halves);
  ~GroupTiles();
  GroupTiles(const GroupTiles&) = delete;
  GroupTiles& operator=(const GroupTiles&) = delete;

  void multiply(const GroupBlock& block) const;

 private:
  TileUnit unit_;
};

}  // namespace multihead::kernels
