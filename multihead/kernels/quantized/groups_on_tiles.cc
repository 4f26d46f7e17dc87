// Groups on tiles: 16 rows times a panel of 16 outputs at a time. q8 is read where it lies; of the others, as
// many panels as stay in L2 are unpacked to bytes before all rows meet them. The bits are those of every
// other way.
#include <algorithm>

#include "multihead/kernels/amx/group_tiles-inl.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/gemm_amx-inl.h"
#include "multihead/kernels/quantized/groups.h"
#include "multihead/kernels/quantized/on_tiles-inl.h"
#include "multihead/kernels/quantized/share-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/quantized/groups_on_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/quantized/groups-inl.h"

#ifndef MULTIHEAD_KERNELS_QUANTIZED_GROUPS_ON_TILES_ONCE
#define MULTIHEAD_KERNELS_QUANTIZED_GROUPS_ON_TILES_ONCE
namespace multihead::kernels {
namespace {

// A panel of the weight: values, group by group, and [group][16 columns] scales and minima, or
// [group][2][16 columns] factors of the halves.
struct UnpackedPanel {
  int8_t* values;
  float *scales, *minima, *halves;
};

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_AVX3
template <GroupFormat kFormat>
HWY_INLINE void UnpackValues(const uint8_t* w, int8_t* to) {
  if constexpr (kFormat.bits == 5 || kFormat.bits == 6) {
    const GroupBytes d;
    const ByteVec middle = hn::Set(d, static_cast<uint8_t>(kFormat.middle()));
    auto* bytes = reinterpret_cast<uint8_t*>(to);
    const auto store = [&](auto step) HWY_ATTR {
      const ByteVec values = hn::Sub(BlockValues<kFormat, step()>(w), middle);
      hn::StoreU(values, d, bytes + step() * groups::kStepBytes);
    };
    store(std::integral_constant<int, 0>()), store(std::integral_constant<int, 1>());
    store(std::integral_constant<int, 2>()), store(std::integral_constant<int, 3>());
    store(std::integral_constant<int, 4>()), store(std::integral_constant<int, 5>());
    store(std::integral_constant<int, 6>()), store(std::integral_constant<int, 7>());
  } else if constexpr (kFormat.bits == 4) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int64_t step = 0; step < 4; ++step) {
      const __m512i v = _mm512_loadu_si512(w + 64 * step);
      _mm512_storeu_si512(to + 64 * step, _mm512_and_si512(v, low));
      _mm512_storeu_si512(to + 256 + 64 * step, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
    }
  }
}

template <GroupFormat kFormat>
void Unpack(const uint8_t* panel, int64_t count, const UnpackedPanel& to) {
  const TileFloats d;
  for (int64_t g = 0; g < count; ++g) {
    const GroupParts at = PartsOf<kFormat>(panel, g, 0);
    UnpackValues<kFormat>(at.w, to.values + g * kGroupTileBytes);
    hn::StoreU(ScalesOf<kFormat>(at, 0), d, to.scales + g * kAmxLines);
    if constexpr (kFormat.has_min) {
      const TileVec minima = MinimaOf<kFormat>(at, 0);
      hn::StoreU(kFormat.in_blocks ? hn::Neg(minima) : minima, d, to.minima + g * kAmxLines);
    }
    for (int64_t h = 0; h < 2 && kFormat.has_two_scales(); ++h) {
      const IntVec factors = LoadBytes<int8_t>(at.scales + h * kAmxLines);
      hn::StoreU(hn::ConvertTo(d, factors), d, to.halves + (2 * g + h) * kAmxLines);
    }
  }
}
#else
template <GroupFormat kFormat>
void Unpack(const uint8_t* panel, int64_t count, const UnpackedPanel& to) {
  constexpr groups::GroupLayout kLayout(kFormat);
  for (int64_t g = 0; g < count; ++g) {
    const uint8_t* group = panel + kLayout.group(g);
    for (int64_t c = 0; c < kAmxLines; ++c) {
      for (int64_t k = 0; kFormat.bits < 8 && k < kWeightGroup; ++k) {
        const int value = groups::value_at(kFormat, group, c, k);
        to.values[g * kGroupTileBytes + groups::offset_of(c, k)] = static_cast<int8_t>(value);
      }
      const uint8_t* scales = group + kLayout.value_bytes;
      const auto own = groups::scales_at(kFormat, scales, panel + kLayout.block(g), c);
      to.scales[g * kAmxLines + c] = own.scale;
      if (kFormat.has_min) to.minima[g * kAmxLines + c] = own.min;
      for (int64_t h = 0; h < 2 && kFormat.has_two_scales(); ++h)
        to.halves[(2 * g + h) * kAmxLines + c] = static_cast<int8_t>(scales[h * kAmxLines + c]);
    }
  }
}
#endif

void UnpackPanel(const GroupFormat& format, const uint8_t* panel, int64_t count, const UnpackedPanel& to) {
  groups::with_format(format, [&]<GroupFormat kFormat>() { Unpack<kFormat>(panel, count, to); });
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(UnpackPanel);

namespace {

constexpr int64_t kSerialFlops = 4'000'000;  // below, starting threads costs more than it saves
constexpr int64_t kChunkBytes = 1 << 20;     // of unpacked panels: half of an L2

thread_local PerThread<Scratch> quantized_rows, unpacked_panels;

class GroupPanels {
 public:
  GroupPanels(const PackedLinearArgs& p, const groups::QuantizedRows& x, TileUnit unit)
      : p_(p),
        x_(x),
        count_(groups::groups_of(p.in)),
        format_(format_of(p.dtype).groups),
        layout_(format_),
        epilogue_{epilogue_of(p)},
        tiles_(unit, format_.has_two_scales()) {}

  // While some panels meet all rows, the packed ones after them are on their way to L2.
  void multiply(int64_t begin, int64_t end) {
    const int64_t floats = count_ * kAmxLines, bytes = count_ * kGroupTileBytes + 12 * floats;
    const int64_t blocks = (p_.rows + kAmxLines - 1) / kAmxLines;
    const int64_t most = blocks == 1 ? 1 : std::clamp<int64_t>(kChunkBytes / bytes, 1, end - begin);
    auto* memory = unpacked_panels->get<char>(static_cast<size_t>(most * bytes));
    for (int64_t first = begin; first < end; first += most) {
      const int64_t last = std::min(first + most, end);
      for (int64_t i = first; i < last; ++i) HWY_DYNAMIC_DISPATCH(UnpackPanel)
      (format_, packed(i), count_, place(memory + (i - first) * bytes, floats));
      fetch_ = reinterpret_cast<const char*>(packed(last));
      fetch_end_ = reinterpret_cast<const char*>(packed(std::min(last + most, end)));
      fetch_lines_ = ((fetch_end_ - fetch_) / 64 + (last - first) * blocks - 1) / ((last - first) * blocks);
      for (int64_t row = 0; row < p_.rows; row += kAmxLines) {
        for (int64_t i = first; i < last; ++i)
          multiply_block(row, i, place(memory + (i - first) * bytes, floats));
      }
    }
  }

 private:
  const uint8_t* packed(int64_t panel) const {
    return static_cast<const uint8_t*>(p_.packed) + panel * layout_.panel(count_);
  }

  UnpackedPanel place(char* memory, int64_t floats) const {
    auto* scales = reinterpret_cast<float*>(memory + count_ * kGroupTileBytes);
    // The halves' factors take the place of minima.
    return {reinterpret_cast<int8_t*>(memory), scales, scales + floats, scales + floats};
  }

  void multiply_block(int64_t row, int64_t panel, const UnpackedPanel& w) {
    alignas(64) float sums[kAmxLines * kAmxLines];
    GroupBlock b;
    b.x = x_.values + row * x_.stride, b.x_stride = x_.stride;
    b.x_scales = x_.scales + row * count_, b.x_sums = x_.sums == nullptr ? nullptr : x_.sums + row * count_;
    const bool in_place = format_.bits == 8;
    b.y = in_place ? reinterpret_cast<const int8_t*>(packed(panel)) : w.values;
    b.y_group = in_place ? layout_.bytes : kGroupTileBytes;
    b.y_scales = w.scales, b.y_minima = format_.has_min ? w.minima : nullptr;
    b.y_halves = format_.has_two_scales() ? w.halves : nullptr;
    b.short_minima = !format_.in_blocks;
    b.groups = count_;
    b.fetch = fetch_, b.fetch_lines = std::min<int64_t>(fetch_lines_, (fetch_end_ - fetch_ + 63) / 64);
    fetch_ += 64 * b.fetch_lines;
    const int64_t column = panel * kAmxLines, columns = std::min(kAmxLines, p_.out - column);
    const int64_t rows = std::min(kAmxLines, p_.rows - row);
    for (int64_t i = 0; i < rows; ++i) __builtin_prefetch(p_.y + (row + i) * p_.ldy + column, 1);
    const bool whole = rows == kAmxLines && columns == kAmxLines;
    b.to = whole ? p_.y + row * p_.ldy + column : sums;
    b.to_stride = whole ? p_.ldy : kAmxLines;
    tiles_.multiply(b);
    for (int64_t i = 0; i < rows && !whole; ++i)
      std::copy_n(sums + i * kAmxLines, columns, p_.y + (row + i) * p_.ldy + column);
    if (p_.bias != nullptr || p_.activation != Activation::none || p_.residual != nullptr)
      finish_block(epilogue_, {row, rows, column, columns});
  }

  const PackedLinearArgs& p_;
  const groups::QuantizedRows& x_;
  int64_t count_;
  GroupFormat format_;
  groups::GroupLayout layout_;
  EngineArgs epilogue_;
  GroupTiles tiles_;
  const char *fetch_ = nullptr, *fetch_end_ = nullptr;  // not yet on their way
  int64_t fetch_lines_ = 0;                             // a block of 16 rows and columns
};

}  // namespace

void packed_groups_on_tiles(const PackedLinearArgs& p, TileUnit unit) {
  const int64_t count = groups::groups_of(p.in), blocks = (p.rows + kAmxLines - 1) / kAmxLines;
  // Whole cache lines, at a distance that spreads the rows over the sets of L1.
  const int64_t stride = ((count + 1) / 2 | 1) * 64, floats = blocks * count * kAmxLines;
  const int64_t arrays = format_of(p.dtype).groups.has_min ? 2 : 1;  // scales, and sums for the minima
  auto* memory =
      quantized_rows->get<float>(static_cast<size_t>(arrays * floats + blocks * kAmxLines * stride / 4));
  const groups::QuantizedRows x{reinterpret_cast<int8_t*>(memory + arrays * floats), stride, memory,
                                arrays == 2 ? memory + floats : nullptr, kAmxLines};
  std::fill_n(x.values + p.rows * stride, (blocks * kAmxLines - p.rows) * stride, int8_t{0});
  const int64_t last = count * kAmxLines;
  for (int64_t i = 1; i <= arrays; ++i) std::fill_n(memory + i * floats - last, last, 0.0f);
  share_rows(p, [&](int64_t begin, int64_t end) { groups::quantize_rows(p, x, begin, end); });
  share_panels(p, groups::panels_of(p.out), kSerialFlops,
               [&](int64_t begin, int64_t end) { GroupPanels(p, x, unit).multiply(begin, end); });
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
