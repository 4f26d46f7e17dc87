// Both directions do this with a tile of queries and a block of keys, compiled once for both.
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/attention/engines/tile_steps.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR
#include "multihead/kernels/attention/engines/engine_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

// tanh(x) = (e^2x - 1) / (e^2x + 1) with e^2x - 1 = 2^n (2^f - 1) + (2^n - 1), which keeps small x accurate.
HWY_INLINE Vec Tanh(F d, Vec x) {
  const I di;
  const Vec magic = hn::Set(d, 12582912.0f), limit = hn::Set(d, 60.0f);
  x = AtMost(limit, AtLeast(hn::Neg(limit), hn::Mul(x, hn::Set(d, 2 * kLog2e))));
  const Vec t = hn::Add(x, magic), f = hn::Sub(x, hn::Sub(t, magic));
  Vec y = hn::MulAdd(hn::Set(d, 0.00132647273f), f, hn::Set(d, 0.00967151299f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.0555073358f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.240222424f));
  y = hn::Mul(hn::MulAdd(y, f, hn::Set(d, 0.693147004f)), f);
  const Vec one = hn::Set(d, 1.0f);
  const Vec power = hn::BitCast(d, hn::Add(hn::BitCast(di, one), hn::ShiftLeft<23>(hn::BitCast(di, t))));
  const Vec numerator = hn::MulAdd(y, power, hn::Sub(power, one));
  return hn::Div(numerator, hn::Add(numerator, hn::Set(d, 2.0f)));
}

HWY_INLINE hn::Mask<F> Kept(const uint8_t* keep) {
  const I di;
  const hn::Rebind<uint8_t, F> d8;
  return hn::RebindMask(F(), hn::Ne(hn::PromoteTo(di, hn::LoadU(d8, keep)), hn::Zero(di)));
}

enum TermBits { kCapBit = 1, kBiasBit = 2, kRelativeBit = 4, kAlibiBit = 8, kKeepBit = 16, kAnyTerm = 31 };

int BitsOf(const TermArgs& args) {
  return (args.terms->softcap > 0 ? kCapBit : 0) | (args.bias ? kBiasBit : 0) |
         (args.terms->relative_bias ? kRelativeBit : 0) | (args.terms->alibi_slopes ? kAlibiBit : 0) |
         (args.keep ? kKeepBit : 0);
}

// Rows [begin, end) of NV vectors of queries; kTerms is what may be present (checked at run time if several).
template <int kTerms, bool kFree, int NV>
HWY_INLINE void TermVectors(const TermArgs& args, const BlockRange& r, int first, int begin, int end,
                            Vec (&top)[NV]) {
  const F d;
  const int bits = BitsOf(args);
  const auto has = [&](int bit) { return kTerms == bit || ((kTerms & bit) != 0 && (bits & bit) != 0); };
  const ScoreTerms& terms = *args.terms;
  const float* relative_bias = as_floats(terms.relative_bias);
  const float cap = static_cast<float>(terms.softcap);
  const Vec none = hn::Set(d, -kInfinity), vcap = hn::Set(d, cap),
            inverse_cap = hn::Set(d, cap > 0 ? 1 / cap : 0);
  Vec slope[NV];
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) slope[j] = hn::Load(d, args.lanes->slope + first + j * kN);
  for (int k = begin; k < end; ++k) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const int lane = first + j * kN;
      const int64_t at = int64_t{k - r.k0} * kTileRows + lane;
      Vec x = hn::LoadU(d, args.s + at);
      if (has(kCapBit)) {
        const Vec th = Tanh(d, hn::Mul(x, inverse_cap));
        x = hn::Mul(vcap, th);
        if (args.derivative) {
          const Vec factor = hn::NegMulAdd(th, th, hn::Set(d, 1.0f));
          hn::StoreU(hn::Mul(hn::LoadU(d, args.derivative + at), factor), d, args.derivative + at);
        }
      }
      if (has(kBiasBit)) x = hn::Add(x, hn::LoadU(d, args.bias + at));
      if (has(kRelativeBit)) {
        x = hn::Add(x, hn::GatherIndex(d, relative_bias, RelativeIndex(terms, *args.lanes, lane, k)));
      }
      if (has(kAlibiBit)) x = hn::NegMulAdd(slope[j], Distance(*args.lanes, lane, k), x);
      if (has(kKeepBit)) x = hn::IfThenElse(Kept(args.keep + at), x, none);
      if constexpr (!kFree) x = hn::IfThenElse(Visible(*args.tile, lane, k), x, none);
      top[j] = hn::Max(top[j], x);
      hn::StoreU(x, d, args.s + at);
    }
  }
}

template <int kTerms>
void TermColumns(const TermArgs& args, const BlockRange& r, float* max) {
  const F d;
  int lane = 0;
  if constexpr (kTerms == kAlibiBit) {  // whole rows: the key's number is broadcast once for all vectors
    for (; r.full() && lane + kMaxVecs * kN <= args.tile->groups * kGroupRows; lane += kMaxVecs * kN) {
      Vec top[kMaxVecs];
#pragma GCC unroll 4
      for (int j = 0; j < kMaxVecs; ++j) top[j] = hn::LoadU(d, max + lane + j * kN);
      TermVectors<kTerms, true, kMaxVecs>(args, r, lane, r.k0, r.k1, top);
#pragma GCC unroll 4
      for (int j = 0; j < kMaxVecs; ++j) hn::StoreU(top[j], d, max + lane + j * kN);
    }
  }
  for (; lane < args.tile->groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    Vec top[1] = {hn::LoadU(d, max + lane)};
    TermVectors<kTerms, false, 1>(args, r, lane, r.need_begin[g], r.free_begin[g], top);
    TermVectors<kTerms, true, 1>(args, r, lane, r.free_begin[g], r.free_end[g], top);
    TermVectors<kTerms, false, 1>(args, r, lane, r.free_end[g], r.need_end[g], top);
    hn::StoreU(top[0], d, max + lane);
  }
}

// y[i] <- y[i - lane] in each lane, for i >= kN - 1.
HWY_INLINE void ShiftLanes(Vec (&y)[2 * kN - 1]) {
  const I di;
#pragma GCC unroll 4
  for (int step = 1; step < kN; step *= 2) {
    const auto moves = hn::RebindMask(F(), hn::TestBit(hn::Iota(di, 0), hn::Set(di, step)));
#pragma GCC unroll 32
    for (int i = 2 * kN - 2; i >= step; --i) y[i] = hn::IfThenElse(moves, y[i - step], y[i]);
  }
}

// to[k][lane] = band[row of key k for the lane][lane] for kN lanes from `lane` on (of the band's 16).
HWY_INLINE void SpreadLanes(const float* product, const DistanceBand& band, int lane, KeyRange keys,
                            float* to) {
  const F d;
  for (int k = keys.begin; k < keys.end; k += kN, to += kN * kTileRows) {
    Vec y[2 * kN - 1];
    const int64_t row = k + band.offset - lane - (kN - 1) - band.first;
#pragma GCC unroll 32
    for (int i = 0; i < 2 * kN - 1; ++i) {
      y[i] = hn::LoadU(d, product + std::clamp<int64_t>(row + i, 0, band.count - 1) * kGroupRows + lane);
    }
    ShiftLanes(y);
    const int count = std::min(kN, keys.end - k);
    if (count == kN) {
#pragma GCC unroll 16
      for (int j = 0; j < kN; ++j) hn::StoreU(y[kN - 1 + j], d, to + j * kTileRows + lane);
    } else {
      alignas(64) float rows[kN * kN];
#pragma GCC unroll 16
      for (int j = 0; j < kN; ++j) hn::Store(y[kN - 1 + j], d, rows + j * kN);
      for (int j = 0; j < count; ++j) std::copy_n(rows + j * kN, kN, to + j * kTileRows + lane);
    }
  }
}

}  // namespace

void ZeroPaddingLanes(const RowTile& t, int64_t columns, float* to) {
  for (int64_t c = 0; c < columns && t.rows < t.groups * kGroupRows; ++c) {
    std::fill(to + c * kTileRows + t.rows, to + c * kTileRows + t.groups * kGroupRows, 0.0f);
  }
}

void PackQuery(const ForwardCall& call, const RowTile& t, float scale, float* qt) {
  const int64_t dim = call.p->head_dim;
  const int64_t stride = call.query.strides.token;
  each_head_run(t, [&](int first, int count) {
    const void* from = TileRow(call, call.query, t, first);
    if (call.bf16) {
      TransposeTo(static_cast<const uint16_t*>(from), stride, count, dim, qt + first, kTileRows, scale);
    } else {
      TransposeTo(static_cast<const float*>(from), stride, count, dim, qt + first, kTileRows, scale);
    }
  });
  ZeroPaddingLanes(t, dim, qt);
}

Rows StageRows(const ForwardCall& call, const Operand& x, int64_t b, int64_t kv, int k0, int k1, int64_t dim,
               bool copy, int64_t columns, float* buffer) {
  const void* from = KeyRow(call, x, b, kv, k0);
  const int64_t stride = x.strides.token;
  if (!copy) return {static_cast<const float*>(from), stride};
  const bool dense = stride == dim && columns == dim && !call.int8;  // one long row
  const int64_t rows = dense ? 1 : k1 - k0, length = dense ? (k1 - k0) * dim : dim;
  for (int64_t k = 0; k < rows; ++k) {
    float* to = buffer + k * columns;
    const void* row = At(from, k * stride, call.bf16);
    call.int8 ? LoadInt8Row(row, dim, to) : LoadRow(row, length, call.bf16, to);
    for (int64_t c = dim; c < columns; ++c) to[c] = 0.0f;
  }
  return {buffer, columns};
}

void CopyTileRows(const ForwardCall& c, const RowTile& t, const Operand& x, int64_t dim, int64_t columns,
                  float* to) {
  const bool bf16 = x.dtype == Dtype::bf16;  // sums are not, whatever the call's type
  for (int r = 0; r < t.rows; ++r) {
    float* row = to + r * columns;
    LoadRow(At(x.data, RowIndex(c, x.strides, t, r), bf16), dim, bf16, row);
    std::fill(row + dim, row + columns, 0.0f);
  }
}

void GatherBias(const ScoreTerms& terms, const RowTile& t, const BlockRange& r, float* to) {
  const Strides4& s = terms.bias_strides;
  each_head_run(t, [&](int run, int run_count) {
    const float* base = as_floats(terms.bias) + t.b * s.batch + int64_t{t.head[run]} * s.head;
    for (int first = run; first < run + run_count;) {
      const int g = first / kGroupRows, count = std::min(run + run_count, (g + 1) * kGroupRows) - first;
      const int a = r.need_begin[g], n = r.need_end[g] - a;
      const float* from = base + int64_t{t.query[first]} * s.query + a * s.key;
      float* column = to + (a - r.k0) * kTileRows + first;
      if (s.key == 1) {
        // The next group's rows, unless a forward block has prefetched them, which comes in chunks.
        const int rest = n > kChunk ? std::min(run + run_count - first - count, kGroupRows) : 0;
        for (int i = 0; i < rest && s.query != 0; ++i) PrefetchRow(from + (count + i) * s.query, n);
        TransposeTo(from, s.query, count, n, column, kTileRows, 1.0f);
      } else {
        for (int k = 0; k < n; ++k) {
          for (int q = 0; q < count; ++q) column[k * kTileRows + q] = from[q * s.query + k * s.key];
        }
      }
      first += count;
    }
  });
}

// The usual single terms have loops of their own (ALiBi: 8 -> 4 cycles per vector).
void TermRows(const TermArgs& args, const BlockRange& r, float* max) {
  switch (BitsOf(args)) {
    case kCapBit:
      return TermColumns<kCapBit>(args, r, max);
    case kBiasBit:
      return TermColumns<kBiasBit>(args, r, max);
    case kAlibiBit:
      return TermColumns<kAlibiBit>(args, r, max);
    case 0:
      return TermColumns<0>(args, r, max);
    default:
      return TermColumns<kAnyTerm>(args, r, max);
  }
}

void RelativeScores(const RelativeTable& table, int64_t dim, const RowTile& t, const BlockRange& r,
                    const float* qt, float* product, float* s) {
  ProductArgs args{};
  args.a_row = table.row_stride, args.a_step = 1, args.b_stride = kTileRows, args.c_stride = kGroupRows;
  args.k = dim, args.first_chain = args.chain = ColumnChain(dim);
  EachSixteen(t, r, [&](int start, int count, KeyRange keys) HWY_ATTR {
    const DistanceBand band = BandOf(table, t, start, keys);
    const int column =
        std::min(start, kTileRows - kGroupRows);  // sixteen lanes of the tile, these among them
    args.a = band.rows, args.b = qt + column, args.c = product;
    Product<End::store, true>(args, band.count, kGroupRows);
    float* to = s + (keys.begin - r.k0) * kTileRows;
    if (start % kGroupRows == 0 && (count == kGroupRows || start + count == t.rows)) {  // else others' lanes
      for (int lane = 0; lane < kGroupRows; lane += kN) SpreadLanes(product, band, lane, keys, to + start);
      return;
    }
    for (int k = keys.begin; k < keys.end; ++k, to += kTileRows) {
      for (int lane = 0; lane < count; ++lane) {
        const int64_t row = std::clamp<int64_t>(k + band.offset - lane - band.first, 0, band.count - 1);
        to[start + lane] = product[row * kGroupRows + start - column + lane];
      }
    }
  });
}

namespace {

// A band's part of one row, where keys that are not to be touched stay untouched: the sums of AddBandProduct.
void AddTouched(const RelativeValueSum& sum, const DistanceBand& d, int row, KeyRange keys,
                const float* band) {
  const F f;
  const int64_t first = sum.range.k0;
  for (int64_t c = 0; c < sum.columns; c += kN) {
    Vec total = hn::Zero(f);
    int k = keys.begin;
    for (int64_t i = 0; i < d.count;) {
      Vec chain = hn::Zero(f);
      const int64_t end = std::min<int64_t>(d.count, i + KeyChainRest(static_cast<int>(d.first + i)));
      for (; i < end; ++i) {
        bool touched = false;
        for (; k < keys.end && std::clamp<int64_t>(k + d.offset - d.first, 0, d.count - 1) == i; ++k) {
          touched = touched || sum.shadow[(k - first) * kTileRows + row] != -kInfinity;
        }
        if (!touched) continue;
        const Vec x = hn::LoadU(f, d.rows + i * sum.table.row_stride + c);
        chain = hn::MulAdd(hn::Set(f, band[i]), x, chain);
      }
      total = hn::Add(total, chain);
    }
    float* o = sum.out + row * sum.columns + c;
    const Vec beta = hn::Set(f, sum.beta ? sum.beta[row] : 1.0f);
    hn::StoreU(hn::MulAdd(total, beta, hn::LoadU(f, o)), f, o);
  }
}

// A band's part of up to sixteen rows, as a product.
void AddBandProduct(const RelativeValueSum& sum, const DistanceBand& d, int start, int count,
                    const float* band, float* part) {
  const F f;
  for (int64_t first = 0; first < sum.columns; first += kRelativeValueColumns) {
    const int64_t columns = std::min<int64_t>(kRelativeValueColumns, sum.columns - first);
    std::fill_n(part, count * columns, 0.0f);
    ProductArgs product{};
    product.a = band, product.a_row = kBandRow, product.a_step = 1;
    product.b = d.rows + first, product.b_stride = sum.table.row_stride;
    product.c = part, product.c_stride = columns, product.k = d.count;
    product.first_chain = KeyChainRest(static_cast<int>(d.first)), product.chain = kKeyChain;
    Product<End::add, true>(product, count, columns);
    for (int i = 0; i < count; ++i) {
      const Vec beta = hn::Set(f, sum.beta ? sum.beta[start + i] : 1.0f);
      float* o = sum.out + (start + i) * sum.columns + first;
      for (int64_t c = 0; c < columns; c += kN) {
        hn::StoreU(hn::MulAdd(hn::LoadU(f, part + i * columns + c), beta, hn::LoadU(f, o + c)), f, o + c);
      }
    }
  }
}

}  // namespace

void AddRelativeValues(const RelativeValueSum& sum) {
  const BlockRange& all = sum.range;
  float *band = sum.scratch, *part = band + kGroupRows * kBandRow;
  for (int k = all.k0, end = 0; k < all.k1; k = end) {
    end = static_cast<int>(std::min<int64_t>(all.k1, (k / kBackwardBlock + 1) * kBackwardBlock));
    const BlockRange r = MakeBlockRange(sum.tile, k, end);
    float* weights = sum.weights + int64_t{k - all.k0} * kTileRows;
    ZeroUnneeded(sum.tile, r, weights);
    EachSixteen(sum.tile, r, [&](int start, int count, KeyRange keys) HWY_ATTR {
      const int step = sum.shadow ? 1 : count;
      for (int first = start; first < start + count; first += step) {
        const DistanceBand d = BandOf(sum.table, sum.tile, first, keys);
        GatherBand<true>(weights + (keys.begin - k) * kTileRows + first, d, sum.table.span, step, keys, band);
        if (sum.shadow) {
          AddTouched(sum, d, first, keys, band + kGroupRows);
        } else {
          AddBandProduct(sum, d, first, step, band + kGroupRows, part);
        }
      }
    });
  }
}

void ScoreProduct(const RowTile& t, const BlockRange& r, const Rows& key, const float* qt, int64_t dim,
                  float* s, float* max, const PrefetchRows& prefetch, const ProductTerm& term) {
  ProductArgs args{};
  alignas(64) float unused_max[kTileRows] = {};
  args.a_row = key.stride, args.a_step = 1, args.b_stride = kTileRows, args.c_stride = kTileRows;
  args.k = dim, args.first_chain = args.chain = ColumnChain(dim);
  args.prefetch_stride = prefetch.rows.stride, args.prefetch_columns = prefetch.columns;
  for (NeededPart part{.end = r.k0}; NextNeeded(t, r, part);) {
    const int rows = part.end - part.k, columns = (part.last - part.first) * kGroupRows;
    args.a = Shifted(key, part.k - r.k0).data;
    args.b = qt + part.first * kGroupRows;
    args.c = s + (part.k - r.k0) * kTileRows + part.first * kGroupRows;
    args.prefetch = Shifted(prefetch, part.k - r.k0).rows.data;
    args.max = part.full ? max : term.end == End::store_max ? nullptr : unused_max;
    switch (term.end) {
      case End::bias_max:
        Product<End::bias_max, true>(args, rows, columns);
        break;
      case End::alibi_max:
        args.slope = term.slope + part.first * kGroupRows, args.place = term.place + part.first * kGroupRows;
        args.key = part.k;
        Product<End::alibi_max, true>(args, rows, columns);
        break;
      default:
        args.max ? Product<End::store_max, true>(args, rows, columns)
                 : Product<End::store, true>(args, rows, columns);
    }
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
