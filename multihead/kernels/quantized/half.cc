// Packed bf16, by pairs where the CPU is fast at them, and f16: widened on the way to f32 multiply-adds.
#include "multihead/kernels/quantized/half.h"

#include <algorithm>
#include <cstring>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/quantized/on_tiles-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/quantized/half.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/matmul/engine_pairs-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/quantized/float_panel-inl.h"
#include "multihead/kernels/quantized/widened_tile-inl.h"

#ifndef MULTIHEAD_KERNELS_QUANTIZED_HALF_ONCE
#define MULTIHEAD_KERNELS_QUANTIZED_HALF_ONCE
namespace multihead::kernels::half {
namespace {

thread_local PerThread<Scratch> rounded_rows;  // of x, in pairs
thread_local PerThread<Scratch> stored_rows;   // of a weight that is packed

// The first k, a multiple of four, of a panel without padding, four of four rows at a time. Returns how many.
int64_t transpose_whole(const Float16* rows, int64_t stride, int64_t width, int64_t columns, int64_t in,
                        Float16* to) {
  if (columns != width) return 0;
  const int64_t whole = in / 4 * 4;
  for (int64_t k = 0; k < whole; k += 4) {
    for (int64_t c = 0; c < width; c += 4) {
      uint64_t row[4];
      for (int64_t i = 0; i < 4; ++i) std::memcpy(&row[i], rows + (c + i) * stride + k, sizeof(row[i]));
      for (int64_t i = 0; i < 4; ++i) {
        const auto at = [&](int64_t j) { return (row[j] >> (16 * i) & 0xFFFF) << (16 * j); };
        const uint64_t transposed = at(0) | at(1) | at(2) | at(3);
        std::memcpy(static_cast<void*>(to + (k + i) * width + c), &transposed, sizeof(transposed));
      }
    }
  }
  return whole;
}

// `rows`: those of the panel, of which there are `columns`.
template <class Half, class From>
void pack_panel(const From* rows, int64_t stride, const Place& panel, int64_t columns, int64_t in,
                Half* packed) {
  Half* to = packed + panel.first(in);
  int64_t k = 0;
  if constexpr (std::is_same_v<From, Half>) k = transpose_whole(rows, stride, panel.width, columns, in, to);
  for (; k < (in + 1) / 2 * 2; ++k) {
    for (int64_t c = 0; c < panel.width; ++c) {
      to[panel.index<Half>(k, c)] = c < columns && k < in ? Half(rows[c * stride + k]) : Half();
    }
  }
}

template <class Half>
void pack_as(const float* weight, int64_t stride, int64_t out, int64_t in, Half* packed) {
  parallel_for((out + kColumns - 1) / kColumns, [&](int64_t i, int) {
    const Place panel(i * kColumns, out);
    const int64_t columns = std::min(panel.width, out - panel.panel);
    pack_panel(weight + panel.panel * stride, stride, panel, columns, in, packed);
  });
}

template <class Half>
void unpack_as(const Half* from, int64_t row, int64_t out, int64_t in, float* to) {
  const Place at(row, out);
  for (int64_t k = 0; k < in; ++k)
    to[k] = static_cast<float>(from[at.first(in) + at.index<Half>(k, at.column)]);
}

}  // namespace
}  // namespace multihead::kernels::half
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
extern template TileFunction<Pairs> TileOf<Pairs>(bool, bool, int64_t, int);  // in gemm_pairs.cc

#if HWY_TARGET == HWY_AVX3
static_assert(kPanelColumns == half::kColumns && kLanes == half::kStep, "one layout");

void MultiplyPanelsOfPairs(const PackedLinearArgs& p, const PackedRows& x) { MultiplyPacked<Pairs>(p, x); }
#else
static_assert(kPanelColumns == half::kStep, "a panel is strips of the widest tile");

void MultiplyStrip(const PackedLinearArgs& p, const PackedRows& x, const half::Place& panel) {
  const int64_t column = panel.panel + panel.column, columns = std::min(kPanelColumns, p.out - column);
  const int vectors = static_cast<int>((columns + kLanes - 1) / kLanes);
  GemmTileArgs t{};
  t.a_stride = x.stride, t.b_stride = panel.width, t.c_stride = p.ldy;
  t.b = static_cast<const float*>(p.packed) + panel.panel * x.words + panel.column;
  t.k = x.words;
  t.last_lanes = columns - (vectors - 1) * kLanes;
  for (int64_t i = 0, height; i < p.rows; i += height) {
    height = TileHeight(p.rows - i, kTileRows[vectors], vectors);
    t.a = x.first + i * x.stride;
    t.c = p.y + i * p.ldy + column;
    TileOf<Pairs>(true, false, height, vectors)(t);
  }
}

void MultiplyPanelsOfPairs(const PackedLinearArgs& p, const PackedRows& x) {
  const GemmArgs<float> g = epilogue_of(p);
  share_panels(p, (p.out + half::kColumns - 1) / half::kColumns, kPanelSerialFlops,
               [&](int64_t begin, int64_t end) {
                 LateFinish finish({g});
                 for (int64_t i = begin * half::kColumns; i < std::min(end * half::kColumns, p.out);
                      i += half::kColumns) {
                   const int64_t columns = std::min(half::kColumns, p.out - i);
                   for (int64_t j = 0; j < columns; j += kPanelColumns)
                     MultiplyStrip(p, x, half::Place(i + j, p.out));
                   finish({0, p.rows, i, columns});
                 }
               });
}
#endif

void MultiplyPairsPacked(const PackedLinearArgs& p) {
  const int64_t words = (p.in + 1) / 2, stride = words + kLanes;  // rows a power of two apart share sets
  float* rows = half::rounded_rows->get<float>(static_cast<size_t>(p.rows * stride));
  const auto round = [&](int64_t i) HWY_ATTR { CopyAlong<Pairs>(p.x + i * p.ldx, p.in, rows + i * stride); };
  if (p.rows <= kPackedFewRows) {
    for (int64_t i = 0; i < p.rows; ++i) round(i);
  } else {
    parallel_for(p.rows, [&](int64_t i, int) HWY_ATTR { round(i); });
  }
  MultiplyPanelsOfPairs(p, {rows, stride, words});
}
#else
void MultiplyPairsPacked(const PackedLinearArgs&) {}  // bf16_dots() is false
#endif

template <class Half>
void MultiplyHalf(const PackedLinearArgs& p) {
  const int64_t panels = (p.out + half::kColumns - 1) / half::kColumns;
  const GemmArgs<float> g = epilogue_of(p);
  share_panels(p, panels, kPanelSerialFlops, [&](int64_t begin, int64_t end) {
    LateFinish finish({g});
    for (int64_t i = begin; i < end; ++i) {
      const half::Place panel(i * half::kColumns, p.out);
      const auto* words = static_cast<const Half*>(p.packed) + panel.first(p.in);
      MultiplyWidenedPanel(p, words, panel.panel, panel.width);
      finish({0, p.rows, panel.panel, std::min(half::kColumns, p.out - panel.panel)});
    }
  });
}

void MultiplyWidenedPacked(const PackedLinearArgs& p) {
  p.dtype == WeightDtype::f16 ? MultiplyHalf<Float16>(p) : MultiplyHalf<BFloat16>(p);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels::half {

HWY_EXPORT(MultiplyPairsPacked);
HWY_EXPORT(MultiplyWidenedPacked);

namespace {

bool is_f16(const WeightFormat& format) { return format.dtype == WeightDtype::f16; }

int64_t packed_bytes(const WeightFormat&, int64_t out, int64_t in) {
  return (out + kStep - 1) / kStep * kStep * ((in + 1) / 2) * 4;
}

void pack(const WeightFormat& format, const float* weight, int64_t stride, int64_t out, int64_t in,
          void* packed) {
  if (is_f16(format)) return pack_as(weight, stride, out, in, static_cast<Float16*>(packed));
  pack_as(weight, stride, out, in, static_cast<BFloat16*>(packed));
}

// Stored halves are f16.
void pack_stored(const WeightFormat&, const StoredWeight& weight, int64_t out, int64_t in, void* packed) {
  parallel_for((out + kColumns - 1) / kColumns, [&](int64_t i, int) {
    const int64_t begin = i * kColumns, count = std::min(kColumns, out - begin);
    auto* rows = stored_rows->get<Float16>(static_cast<size_t>(count * in));
    weight.read(begin, count, reinterpret_cast<uint8_t*>(rows));
    pack_panel(rows, in, Place(begin, out), count, in, static_cast<Float16*>(packed));
  });
}

void unpack_row(const WeightFormat& format, const void* packed, int64_t row, int64_t out, int64_t in,
                float* to) {
  if (is_f16(format)) return unpack_as(static_cast<const Float16*>(packed), row, out, in, to);
  unpack_as(static_cast<const BFloat16*>(packed), row, out, in, to);
}

void multiply(const WeightFormat& format, const PackedLinearArgs& args) {
  const bool pairs = !is_f16(format) && args.in > 0;
  if (pairs && bf16_tiles()) return packed_linear_on_tiles(args, TileUnit::amx);
  if (pairs && bf16_dots()) return HWY_DYNAMIC_DISPATCH(MultiplyPairsPacked)(args);
  HWY_DYNAMIC_DISPATCH(MultiplyWidenedPacked)(args);
}

}  // namespace
}  // namespace multihead::kernels::half

namespace multihead::kernels {
const FormatFunctions half_functions = {
    half::packed_bytes, half::pack, half::multiply, half::unpack_row, half::pack_stored, true, true};
}  // namespace multihead::kernels
#endif  // HWY_ONCE
