#include "multihead/kernels/attention/tile_height-inl.h"

#include <algorithm>

namespace multihead::kernels {

int tile_height(const AttentionProblem& p, const AttentionTask& task) {
  const int64_t first = task.row_begin;
  if (!p.mask_function.classify || task.row_end - first < kTileRows) return kTileRows;
  RowTile whole;
  make_row_tile(p, task.b, task.kv, first, first + kTileRows, whole);
  const int64_t begin = (whole.begin + whole.end) / 2 / attention_key_block * attention_key_block;
  const int64_t end = std::min<int64_t>(begin + attention_key_block, whole.end);
  int together = 0, apart = 0;
  for (int64_t k = std::max<int64_t>(begin, whole.begin); k < end; k += kRunGrain) {
    const int64_t last = std::min(k + kRunGrain, end);
    const auto seen = [&](int row, int rows) {
      return mask_class(p, whole, row, row + rows, k, last) != BlockClass::empty;
    };
    if (!seen(0, kTileRows)) continue;
    together += kTileGroups;
    for (int row = 0; row < kTileRows; row += kGroupRows) apart += seen(row, kGroupRows) ? 1 : 0;
  }
  return 2 * together > 3 * apart ? kGroupRows : kTileRows;
}

}  // namespace multihead::kernels
