// Panels of kMaxVectors·lanes columns, word after word of k, each of them one run of memory; the last one is
// as narrow as it may be. With few rows every panel is read once, in order, at the rate of the memory it lies
// in; with many it stays in L2, and the tiles of one panel fetch the next.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_QUANTIZED_FLOAT_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_FLOAT_PANEL_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_FLOAT_PANEL_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_FLOAT_PANEL_INL_H_
#endif

#include <algorithm>

#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/matmul/few_rows-inl.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/quantized/share-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr int64_t kLongestK = 1024;               // words of one pass over a panel: 256 KiB
inline constexpr int64_t kPanelSerialFlops = 2'000'000;  // below, starting threads costs more than it saves
inline constexpr int64_t kLineFloats = 16;
// Up to this many rows a panel is read once, at the rate of the memory. With 7 and 8 some sums of each step
// are in L1, which is hidden behind the memory; a second pass, from L2, is not (.87 of the speed).
inline constexpr int64_t kOnePassRows = kMaxVectors == 4 ? 8 : 6;

inline constexpr int64_t kPanelColumns = kMaxVectors * kLanes;
static_assert(kLongestK % kChain == 0, "chains are cut where gemm() cuts them");

inline int64_t PaddedColumns(int64_t out) { return (out + kLanes - 1) / kLanes * kLanes; }
inline int64_t PanelCount(int64_t out) { return (out + kPanelColumns - 1) / kPanelColumns; }

struct PackedPanel {
  PackedPanel(int64_t out, int64_t index)
      : column(index * kPanelColumns),
        columns(std::min(kPanelColumns, out - column)),
        vectors(static_cast<int>((columns + kLanes - 1) / kLanes)) {}
  int64_t column, columns;
  int vectors;
};

// The rows of x in words.
struct PackedRows {
  const float* first;
  int64_t stride, words;
};

template <class Engine>
void MultiplyPackedPanel(const PackedLinearArgs& p, const PackedRows& x, int64_t index, LateFinish& finish) {
  const PackedPanel panel(p.out, index);
  const float* weights = static_cast<const float*>(p.packed) + panel.column * x.words;
  const float* next = index + 1 < PanelCount(p.out) ? weights + kPanelColumns * x.words : nullptr;
  GemmTileArgs t{};
  t.a_stride = x.stride;
  t.b_stride = panel.vectors * kLanes;
  t.c_stride = p.ldy;
  const bool one_pass = p.rows <= kOnePassRows && panel.vectors == kMaxVectors;
  t.last_lanes = panel.columns - (panel.vectors - 1) * kLanes;
  for (int64_t k = 0; k < x.words; k += kLongestK) {
    t.k = std::min(kLongestK, x.words - k);
    t.b = weights + k * t.b_stride;
    t.add_c = k > 0;
    const int64_t floats = next != nullptr ? kPanelColumns : 0;  // of a word of the next panel
    int64_t asked = 0;                                           // of them
    for (int64_t i = 0, height; i < p.rows; i += height, asked += 2 * kLineFloats) {
      height = one_pass ? p.rows : TileHeight(p.rows - i, kTileRows[panel.vectors], panel.vectors);
      t.a = x.first + i * x.stride + k;
      t.c = p.y + i * p.ldy + panel.column;
      const bool streams = asked < floats && t.k == x.words;
      if (streams) {
        const float* from = next + asked * t.k;
        t.next_a = {from, kLineFloats};
        t.next_b = {t.b, 0};
        if (asked + kLineFloats < floats) t.next_b = {from + t.k * kLineFloats, kLineFloats};
      }
      if (one_pass) {
        RowsInPlace<Engine, kMaxVectors>(height, t);
      } else {
        TileOf<Engine>(true, streams, height, panel.vectors)(t);
      }
      if (k + t.k == x.words) finish({i, height, panel.column, panel.columns});
    }
  }
}

template <class Engine>
void MultiplyPacked(const PackedLinearArgs& p, const PackedRows& x) {
  const GemmArgs<float> g = epilogue_of(p);
  share_panels(p, PanelCount(p.out), kPanelSerialFlops, [&](int64_t begin, int64_t end) {
    LateFinish finish({g});
    for (int64_t i = begin; i < end; ++i) MultiplyPackedPanel<Engine>(p, x, i, finish);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
