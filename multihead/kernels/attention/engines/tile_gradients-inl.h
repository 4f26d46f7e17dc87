// The inner loops of attention's gradients on tiles of bf16. Internal; needs AVX-512.
//
// Scores and their gradients are [key][query], rows of 64 floats. Probabilities and score gradients become
// tiles in the places in which the products want them: rows of A [strip of 16 keys][4 steps of 32 queries], and
// of score gradients also columns of B [step of 32 keys][4 strips of 16 queries].
#pragma once

#include "multihead/kernels/attention/engines/tile_rows-inl.h"

namespace multihead::kernels {

inline constexpr int64_t kLaneStride = 64;                 // floats of a row of scores
inline constexpr int64_t kStripTiles = 4, kStepTiles = 4;  // of a strip, and of a step of columns

/// 32 rows as columns of B along the rows: as pack_tile_values(), but what is not finite stays.
void pack_tile_columns(const TileSource& from, char* to, TileUnit unit);
/// 32 rows as rows of A along the rows: [part][strip of 16 columns] tiles.
void pack_tile_transposed(const TileSource& from, char* to, TileUnit unit);

/// to[32 rows][16 · strips] = A · B of `steps` steps; B by pack_tile_keys().
struct TileRowProduct {
  const char* a = nullptr;
  int64_t a_stride = 0, a_part = 0;  ///< bytes
  const char* b = nullptr;
  int64_t steps = 0;
  int strips = 0;  ///< even
  float* to = nullptr;
  int parts = 1;
};
void tile_row_product(const TileRowProduct& product, TileUnit unit);

/// Where a step of 32 keys lies among the tiles of weights, and how many bytes apart the parts are.
struct TileWeights {
  char* rows = nullptr;
  char* columns = nullptr;  ///< or null
  int parts = 1;
  int64_t row_part = 0, column_part = 0;
};
/// `keys` rows of weights of `queries` queries -> tiles, zeros beyond: lanes without a query may hold anything.
void pack_tile_weights(const float* from, int keys, int queries, const TileWeights& to, TileUnit unit);

/// Scores and probability gradients of 32 keys from `key` on -> probabilities and score gradients.
struct TileGradientRows {
  const float *s = nullptr, *dp = nullptr;
  float factor = 1;
  const float *lse = nullptr, *delta = nullptr;  ///< [64]; lse times log2(e)
  const int32_t *lo = nullptr, *hi = nullptr;    ///< [64] the keys that a query sees; null: all
  int key = 0, steps = 0;
  TileWeights p, ds;
};
void tile_gradient_rows(const TileGradientRows& rows, TileUnit unit);

/// c[32 rows][32 columns] += A · B; c in tiles. Distances in bytes.
struct TileSum {
  char* c = nullptr;
  int64_t c_row = 0, c_column = 0;
  const char* a = nullptr;
  int64_t a_row = 0, a_step = 0, a_part = 0;  ///< from strip to strip, step to step, and part to part
  const char* b = nullptr;
  int64_t b_column = 0, b_step = 0, b_part = 0;
  int64_t steps = 0;
  int parts = 1;
};
void tile_sum(const TileSum& sum, TileUnit unit);

}  // namespace multihead::kernels
