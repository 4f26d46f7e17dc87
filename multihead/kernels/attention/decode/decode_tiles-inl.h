// Few queries on the bits of tiles, but without them (engines/tile_few.cc): tasks of up to 8 rows.

#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_TILES_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_TILES_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_TILES_INL_H_
#endif

#include <algorithm>

#include "multihead/kernels/attention/block/block-inl.h"
#include "multihead/kernels/attention/engines/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// Exponents of a row are relative to its largest score so far, or to one that is at most a power of two
// below: multiplying a row's sums for every larger score costs 3 % more at a head size of 64.
//
// A fused multiplication by the scale and subtraction of the rounded maximum leaves what rounding took: several
// powers of two from 2^26 on. Such rows are multiplied before.
struct TileMaxima {
  alignas(64) float shift[kRowTile], alpha[kRowTile], factor[kRowTile];
  uint32_t large = 0;  // a bit for each row whose scores have to be multiplied by `scale`

  // `top` joins `max`. A bit for each row whose sums have to be multiplied by `alpha` therefore.
  uint32_t Raise(int rows, bool natural, float scale, const float* top, float* max) {
    const F d;
    const Vec none = hn::Set(d, -kInfinity), unit = hn::Set(d, natural ? kLog2e : 1.0f);
    const Vec most = hn::Set(d, natural ? kInfinity : 0x1p26f);
    uint32_t grown = 0;
    for (int r = 0; r < rows; r += kN) {
      const Vec old = hn::Load(d, max + r), found = hn::Load(d, top + r);
      const auto above = hn::Gt(hn::Mul(unit, hn::Sub(found, old)), hn::Set(d, 1.0f));
      const Vec m = hn::IfThenElse(above, found, old), by = hn::IfThenZeroElse(hn::Eq(m, none), m);
      hn::Store(m, d, max + r), hn::Store(by, d, shift + r);
      const auto rounds = hn::Gt(hn::Abs(by), most);
      hn::Store(hn::IfThenElse(rounds, hn::Set(d, 1.0f), hn::Set(d, scale)), d, factor + r);
      large |= uint32_t{rounds.raw} << r;
      const auto again = hn::And(above, hn::Ne(old, none));
      if (hn::AllFalse(d, again)) continue;
      hn::Store(Exp2(d, hn::Mul(unit, hn::Sub(old, by))), d, alpha + r);
      grown |= uint32_t{again.raw} << r;
    }
    return grown;
  }

  // Multiplies the sums of one row.
  void Apply(int row, float* lanes, int64_t columns, float* out) const {
    const F d;
    const Vec by = hn::Set(d, alpha[row]);
    for (int i = 16 * row; i < 16 * row + 16; i += kN) {
      hn::Store(hn::Mul(hn::Load(d, lanes + i), by), d, lanes + i);
    }
    for (float* x = out + row * columns; x < out + (row + 1) * columns; x += kN) {
      hn::StoreU(hn::Mul(hn::LoadU(d, x), by), d, x);
    }
  }
};

class FewOnTiles {
 public:
  static bool Takes(const ForwardCall& c, const AttentionTask& task) {
    const AttentionProblem& p = *c.p;
    return c.bf16 && task.row_end - task.row_begin <= kMostRows && !c.has_terms && !c.has_keep &&
           p.dropout_p <= 0 && p.head_dim % kAmxStep == 0 && p.value_dim % kAmxStep == 0 &&
           std::max(p.head_dim, p.value_dim) <= 256;
  }
  static int64_t Floats(const ForwardCall& c) {
    return 2 * kMostRows * kFewKeys + 256 + padded(kMostRows * c.p->head_dim);
  }

  FewOnTiles(const ForwardCall& c, const AttentionTask& task, float* memory)
      : c_(&c),
        task_(&task),
        s_(memory),
        p_(s_ + kMostRows * kFewKeys),
        lanes_(p_ + kMostRows * kFewKeys),
        query_(lanes_ + 256) {}

  // `rows`: whole steps each.
  void SetQueries(const RowTile& t, const char* rows) const {
    const int count = few_rows_padded(t.rows);
    std::fill_n(query_, count * c_->p->head_dim, 0.0f);
    for (int r = 0; r < t.rows; ++r) {
      const auto* row = reinterpret_cast<const uint16_t*>(rows) + r * c_->p->head_dim;
      for (int64_t i = 0; i < c_->p->head_dim; ++i) query_[i * count + r] = Wide(row[i]);
    }
  }

  // The rows' state and sums of values over keys [k0, k1) of a block. False if some value is not finite.
  bool Block(const RowTile& t, int k0, int k1, LaneState& state, float* out) {
    ResetState(state);
    std::fill_n(lanes_, 256, 0.0f);
    for (int k = k0, end; k < k1; k = end) {
      end = std::min(k1, (k / kTileChunk + 1) * kTileChunk);
      AddChunk(t, Keys(t, k, end), k > k0, state, out);
    }
    const F d;
    Vec check = hn::Zero(d);
    for (int64_t i = 0; i < t.rows * c_->p->value_dim; i += kN) {
      const Vec x = hn::LoadU(d, out + i);
      check = hn::Add(check, hn::Sub(x, x));
    }
    if (!hn::AllTrue(d, hn::Eq(check, hn::Zero(d)))) return false;
    tile_sums(lanes_, 1, state.sum);
    return true;
  }

 private:
  static constexpr int kMostRows = 8;

  void AddChunk(const RowTile& t, const TileFew& few, bool add, LaneState& state, float* out) {
    const float scale = ScoreScale(*c_);
    alignas(64) float top[kRowTile];
    std::fill_n(top, kRowTile, -kInfinity);
    few_scores(few, s_);
    tile_intervals(t.lo, t.hi, few.key_begin, {nullptr, few.pairs, 1}, seen_);
    few_maxima(few, scale, seen_, s_, top);
    TileMaxima maxima;
    const uint32_t grown = maxima.Raise(kGroupRows, false, scale, top, state.max);
    for (int r = 0; r < t.rows && grown != 0; ++r) {
      if ((grown >> r & 1) != 0) maxima.Apply(r, lanes_, few.value.dim, out);
    }
    for (int r = 0; r < t.rows && maxima.large != 0; ++r) {
      if ((maxima.large >> r & 1) == 0) continue;
      for (float* s = s_ + r * kFewKeys; s < s_ + (r + 1) * kFewKeys; ++s) *s *= scale;
    }
    few_softmax(few, maxima.factor, maxima.shift, seen_, s_, p_, lanes_, c_->unit);
    few_values(few, p_, add, out);
  }

  TileFew Keys(const RowTile& t, int k0, int k1) const {
    const int first = k0 / kTileStep * kTileStep;
    TileFew few;
    few.rows = t.rows, few.key_begin = first, few.pairs = (k1 - first + kTileStep - 1) / kTileStep,
    few.query = query_;
    const auto of = [&](const Operand& x, int64_t dim) {
      const auto* rows = static_cast<const char*>(KeyRow(*c_, x, task_->b, task_->kv, first));
      return TileSource{rows, x.strides.token * 2, k0 - first, k1 - first, dim};
    };
    few.key = of(c_->key, c_->p->head_dim), few.value = of(c_->value, c_->p->value_dim);
    few.next = few.key.rows + (k1 - first) * few.key.stride;
    return few;
  }

  const ForwardCall* c_;
  const AttentionTask* task_;
  float *s_, *p_, *lanes_, *query_;
  alignas(64) uint32_t seen_[kChunkPairs * kRowTile];
};
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
