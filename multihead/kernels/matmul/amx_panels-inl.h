// Panels of X times pairs of tiles of Y: what gemm_amx.cc and quantized/panels_on_tiles.cc share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "multihead/kernels/matmul/amx_product-inl.h"

namespace multihead::kernels {

/// Most steps of k of a block: the panel of X that it reads is 24 KiB, half of an L1 (32 with two parts, 5 % faster).
inline int64_t block_steps(const TileProduct& p) { return p.scheme.parts == 2 ? 8 : 12 / p.scheme.parts; }

/// 32 lines of X: all steps, and where the next panel lies: rows of so many cache lines.
struct XPanel {
  TileOperand operand;
  const char* next = nullptr;
  int64_t next_stride = 0, next_lines = 0;
  bool not_finite = false;
};

/// Floats of partial sums that a run over `pairs` needs.
inline int64_t panel_sums(const TileProduct& p, int64_t pairs) {
  return p.steps() > block_steps(p) ? pairs * kBlockSums : 0;
}

struct PanelRun {
  const TileProduct& p;
  BlockWriter& out;
  float* sums;  ///< panel_sums()

  /// X, whose first line is `line`, times the pairs from `begin` to `end`; point_y(operand, pair, step).
  template <class PointY>
  void multiply(const XPanel& x, int64_t line, int64_t begin, int64_t end, const PointY& point_y) {
    const int64_t steps = p.steps(), blocks = ceil_div(steps, block_steps(p)), count = end - begin;
    Fetch fetch{x, blocks * count};
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = steps * b / blocks, last = steps * (b + 1) / blocks;
      TileBlock block;
      block.steps = last - first, block.share = block_share(block.steps);
      block.x = x.operand;
      block.x.first += first * x.operand.step;
      if (last < steps) block.x.last = nullptr;
      for (int64_t j = begin; j < end; ++j) {
        point_y(block.y, j, first);
        if (last < steps) block.y.last = nullptr;
        fetch.next(block);
        out.multiply(block, line, j * kBlockLines, {b == 0, last == steps}, sums + (j - begin) * kBlockSums);
      }
    }
  }

 private:
  // Spreads the next panel over the blocks, a cache line of all rows at a time.
  struct Fetch {
    const XPanel& x;
    int64_t blocks, done = 0, due = 0;

    void next(TileBlock& block) {
      block.fetch_lines = 0;
      due += x.next_lines;
      if (due < blocks) return;
      block.fetch = x.next + 64 * done, block.fetch_lines = kBlockLines, block.fetch_stride = x.next_stride;
      while (due >= blocks) due -= blocks, ++done;
    }
  };
};

}  // namespace multihead::kernels
