// A product on tiles, and the way of its blocks into C. Internal: gemm_amx.cc and quantized/panels_on_tiles.cc.
#pragma once

#include <algorithm>
#include <cstdint>

#include "multihead/kernels/amx/tile_blocks-inl.h"
#include "multihead/kernels/matmul/blocking-inl.h"
#include "multihead/kernels/matmul/engine_args.h"

namespace multihead::kernels {

/// An operand by (line, k): a line is a row of A or a column of B.
struct TileLines {
  const float* wide = nullptr;
  const BFloat16* narrow = nullptr;
  int64_t line_stride = 1, k_stride = 1, lines = 0, k = 0;

  const void* at(int64_t line, int64_t first_k) const {
    const int64_t i = line * line_stride + first_k * k_stride;
    return narrow != nullptr ? static_cast<const void*>(narrow + i) : wide + i;
  }
  AmxOperand part(int64_t line, int64_t count, int64_t first_k, int64_t count_k) const {
    return {at(line, first_k), narrow != nullptr, line_stride, k_stride, count, count_k};
  }
};

/// C = X · Y, or with `swapped` its transpose; the bits are the same.
struct TileProduct {
  const EngineArgs& g;
  PartScheme scheme;
  TileUnit unit;
  TileLines x, y;
  bool swapped = false;
  /// Scales of the rows and the columns of C in products of int8, two of which take the place of a bf16.
  const float *row_scales = nullptr, *column_scales = nullptr;

  TileProduct(const EngineArgs& args, PartScheme of, TileUnit by);
  int64_t steps() const { return amx_steps(x.k); }
  int64_t pairs() const { return ceil_div(y.lines, kBlockLines); }   // of Y's tiles
  int64_t panels() const { return ceil_div(x.lines, kBlockLines); }  // of X's
  int64_t step_words() const { return 2 * kAmxWords * scheme.parts; }
  /// How values that are not finite are packed: only their first part is a number, so with several parts
  /// they are left out of the tiles and their products added by add_not_finite().
  NotFinite rule() const { return scheme.parts > 1 ? NotFinite::zero : NotFinite::keep; }
  /// Where lines of X and Y meet.
  Block in_c(int64_t x_line, int64_t x_lines, int64_t y_line, int64_t y_lines) const {
    if (swapped) return {y_line, y_lines, x_line, x_lines};
    return {x_line, x_lines, y_line, y_lines};
  }
  void swap() { std::swap(x, y), swapped = !swapped; }
};

/// Packed pairs of tiles: [pair][step][part][tile].
struct PackedTiles {
  uint16_t* words = nullptr;
  int64_t steps = 0, step_words = 0;  ///< of a pair; of a step

  AmxPlaces places(int64_t pair, int64_t step) const {
    return {words + (pair * steps + step) * step_words, steps * step_words, kAmxWords, step_words,
            2 * kAmxWords};
  }
  /// Fields that differ from pair to pair are written one by one: a copy of all of them would wait for that.
  void point(TileOperand& o, int64_t pair, int64_t step) const {
    o.first = reinterpret_cast<const char*>(words + (pair * steps + step) * step_words);
    o.step = 2 * step_words;
  }
  TileOperand operand(int64_t pair, int64_t step) const {
    TileOperand o;
    point(o, pair, step);
    return o;
  }
};

/// Which part of the product's k a block has. Between the first and the last the sums stay at `sums`.
struct PartOfK {
  bool first = true, last = true;
};

/// Multiplies blocks, and finishes each in C while the next one is multiplied.
class BlockWriter {
 public:
  explicit BlockWriter(const TileProduct& product);
  ~BlockWriter() { flush(); }
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  /// The block from lines x and y of X and Y on; its sums before and after, unless they begin and end here.
  void multiply(TileBlock& block, int64_t x, int64_t y, PartOfK part, float* sums);
  /// Whether C gets bare sums, for add_not_finite().
  void keep_sums(bool bare);
  void flush();
  /// Sums of a block of C that lie elsewhere.
  void finish(const Block& block) const;

  TileBlocks& tiles() { return tiles_; }

 private:
  Block in_c(int64_t x, int64_t y) const;
  void set_rows(TileRows& rows, const Block& block) const;
  const float* start_of(int64_t x, int64_t y, int64_t& stride);
  void wait_for(int64_t x, int64_t y);
  void finish_pending();

  const TileProduct& p_;
  TileBlocks tiles_;
  bool plain_, in_rows_;        // an epilogue of bias alone; rows go to C as they are
  bool bare_ = false;           // no epilogue yet
  float* stored_to_ = nullptr;  // where the sums in registers belong
  bool waits_ = false;          // they are those of the pending block, which is complete
  int64_t x_ = 0, y_ = 0;       // the pending block
  TileRows rows_;               // of it
  alignas(64) float sums_[kBlockSums];
  alignas(64) float turned_[kBlockSums];
  alignas(64) float start_[kBlockSums];
};

/// Completes a block of bare sums: adds the products that have a factor which is not finite, and finishes it.
void add_not_finite(const TileProduct& product, const Block& block);

}  // namespace multihead::kernels
