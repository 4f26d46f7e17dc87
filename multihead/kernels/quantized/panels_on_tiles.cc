// Packed bf16 on tiles: panels of 64 columns are read where they lie, with the rows of x packed. Up to 16
// rows go past a whole panel at once, which so is read in order.
#include <algorithm>

#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/matmul/amx_panels-inl.h"
#include "multihead/kernels/matmul/gemm_amx-inl.h"
#include "multihead/kernels/quantized/half.h"
#include "multihead/kernels/quantized/int8.h"
#include "multihead/kernels/quantized/on_tiles-inl.h"
#include "multihead/kernels/quantized/share-inl.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kPanelBytes = 1 << 20;  // of panels that all rows meet
constexpr int64_t kColumns = half::kColumns, kPairsOfPanel = kColumns / kBlockLines;
static_assert(kColumns == int8::kPanelColumns);

// A weight by pairs of tiles: panels of 64 columns, the last one as narrow as a multiple of 16 may be, of
// rows of 4 bytes a column, two numbers of bf16 or four of int8. The last step of a panel that is not whole
// is copied, with zeros below.
class PackedPanels {
 public:
  PackedPanels(const void* packed, int64_t rows, int64_t out, int64_t begin, int64_t end)
      : packed_(static_cast<const char*>(packed)), rows_(rows), out_(out), first_(begin) {
    if (rows % kAmxLines == 0) return;
    last_ = ends_of_panels->get<char>(static_cast<size_t>((end - begin) * kEndBytes));
    std::fill_n(last_, (end - begin) * kEndBytes, char{0});
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = rows / kAmxLines * kAmxLines; k < rows; ++k) {
        for (int64_t c = 0; c < row_of(i); c += 64)
          std::copy_n(panel(i) + k * row_of(i) + c, 64,
                      last_ + (i - begin) * kEndBytes + c * kAmxLines + k % kAmxLines * 64);
      }
    }
  }

  void point(TileOperand& o, int64_t pair, int64_t step) const {
    const int64_t i = pair / kPairsOfPanel, right = pair % kPairsOfPanel;
    o.row = row_of(i), o.step = kAmxLines * o.row;
    // A panel of an odd number of tiles has no second one here: the first one again, whose sums nobody reads.
    o.tile = o.row - right * 128 > 64 ? 64 : 0;
    o.first = panel(i) + right * 128 + step * o.step;
    if (last_ != nullptr) o.last = last_ + (i - first_) * kEndBytes + right * 2 * kTileBytes;
  }

 private:
  static constexpr int64_t kEndBytes = kColumns * 64;
  inline static thread_local PerThread<Scratch> ends_of_panels;

  const char* panel(int64_t i) const { return packed_ + i * kColumns * 4 * rows_; }
  int64_t row_of(int64_t i) const { return 4 * std::min(kColumns, (out_ - i * kColumns + 15) / 16 * 16); }

  const char* packed_;
  int64_t rows_, out_, first_;
  char* last_ = nullptr;
};

// Few rows: one tile of x, and all of a panel.
void multiply_few(const TileProduct& p, const TileOperand& x, const PackedPanels& y, int64_t begin,
                  int64_t end) {
  BlockWriter out(p);
  alignas(64) float sums[kAmxLines * kWideStride];
  TileBlock block;
  block.steps = p.steps(), block.x = x;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t column = i * kColumns, columns = std::min(kColumns, p.g.n - column);
    y.point(block.y, i * kPairsOfPanel, 0);
    block.y.tile = 64;
    out.tiles().multiply_wide(block, static_cast<int>(amx_strips(columns)), sums);
    for (int64_t j = 0; j < columns; j += kBlockLines)
      out.finish({0, p.g.m, column + j, std::min(kBlockLines, columns - j), sums + j, kWideStride});
  }
}

// x_of(panel): its rows.
template <class XOf>
void multiply_many(const TileProduct& p, const XOf& x_of, const PackedPanels& y, int64_t begin, int64_t end) {
  const int64_t panel_bytes = p.steps() * kAmxStep * kColumns * 2;
  const int64_t most = std::max<int64_t>(1, kPanelBytes / panel_bytes), chunks = ceil_div(end - begin, most);
  BlockWriter out(p);
  auto* sums = private_scratch->get<float>(static_cast<size_t>(panel_sums(p, most * kPairsOfPanel)));
  PanelRun run{p, out, sums};
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t first = begin + (end - begin) * c / chunks, last = begin + (end - begin) * (c + 1) / chunks;
    const int64_t last_pair = std::min(last * kPairsOfPanel, p.pairs());
    for (int64_t i = 0; i < p.panels(); ++i) {
      run.multiply({x_of(i)}, i * kBlockLines, first * kPairsOfPanel, last_pair,
                   [&](TileOperand& o, int64_t pair, int64_t step) { y.point(o, pair, step); });
    }
  }
}

// `rows`: of a panel.
template <class XOf>
void multiply_packed(const PackedLinearArgs& args, const TileProduct& p, int64_t rows, const XOf& x_of) {
  share_panels(args, ceil_div(args.out, kColumns), kSerialFlops, [&](int64_t begin, int64_t end) {
    const PackedPanels y(args.packed, rows, args.out, begin, end);
    args.rows <= kAmxLines ? multiply_few(p, x_of(0), y, begin, end) : multiply_many(p, x_of, y, begin, end);
  });
}

EngineArgs product_of(const PackedLinearArgs& args, int64_t k) {
  EngineArgs g{epilogue_of(args)};
  g.a = args.x, g.lda = args.ldx, g.m = args.rows, g.n = args.out, g.k = k;
  return g;
}

}  // namespace

void packed_linear_on_tiles(const PackedLinearArgs& args, TileUnit unit) {
  const EngineArgs g = product_of(args, args.in);
  const TileProduct p(g, {}, unit);
  PackedTiles x{nullptr, p.steps(), p.step_words()};
  x.words = shared_scratch->get<uint16_t>(static_cast<size_t>(p.panels() * p.steps() * p.step_words()));
  const auto pack = [&](int64_t begin, int64_t end) {
    const AmxOperand rows = p.x.part(begin, end - begin, 0, p.x.k);
    amx_pack(rows, AmxSide::rows, 1, NotFinite::keep, x.places(begin / kBlockLines, 0));
  };
  share_rows(args, pack, kBlockLines);
  multiply_packed(args, p, ceil_div(args.in, 2), [&](int64_t panel) { return x.operand(panel, 0); });
}

void packed_int8_on_tiles(const PackedLinearArgs& args, TileUnit unit) {
  const int8::PackedInt8 weight(args.packed, args.out, args.in);
  const EngineArgs g = product_of(args, ceil_div(args.in, 2));
  TileProduct p(g, {}, unit);
  // Whole panels of rows of whole steps, at a distance that spreads them over the sets of L1.
  const int64_t stride = (p.steps() | 1) * 64, rows = p.panels() * kBlockLines;
  auto* scales = shared_scratch->get<float>(static_cast<size_t>(rows + rows * stride / 4));
  auto* values = reinterpret_cast<int8_t*>(scales + rows);
  int8::quantize_rows(args, stride, values, scales);
  std::fill_n(values + args.rows * stride, (rows - args.rows) * stride, int8_t{0});
  p.row_scales = scales, p.column_scales = weight.scales;
  multiply_packed(args, p, int8::groups_of(args.in), [&](int64_t panel) {
    TileOperand o;
    o.first = reinterpret_cast<const char*>(values + panel * kBlockLines * stride);
    o.row = stride, o.tile = kAmxLines * stride, o.step = 64;
    return o;
  });
}

}  // namespace multihead::kernels
