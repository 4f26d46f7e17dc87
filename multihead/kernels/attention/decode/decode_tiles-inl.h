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
// The exponents are relative to this.
HWY_INLINE void TileShift(const LaneState& state, float* shift) {
  const F d;
  for (int r = 0; r < kRowTile; r += kN) {
    const Vec max = hn::Load(d, state.max + r);
    hn::Store(hn::IfThenZeroElse(hn::Eq(max, hn::Set(d, -kInfinity)), max), d, shift + r);
  }
}

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

  void SetQueries(const RowTile& t, const char* rows, int64_t stride) const {
    const int count = few_rows_padded(t.rows);
    std::fill_n(query_, count * c_->p->head_dim, 0.0f);
    for (int r = 0; r < t.rows; ++r) {
      const auto* row = reinterpret_cast<const uint16_t*>(rows + r * stride);
      for (int64_t i = 0; i < c_->p->head_dim; ++i) query_[i * count + r] = Wide(row[i]);
    }
  }

  // The rows' state and sums of values over keys [k0, k1) of a block. False if some value is not finite.
  bool Block(const RowTile& t, int k0, int k1, LaneState& state, float* out) {
    const TileFew few = Keys(t, k0, k1);
    const int first = k0 / kTileStep * kTileStep;
    for (int pair = 0; pair < few.pairs; pair += kChunkPairs) {
      const TileChunk part{nullptr, std::min(kChunkPairs, few.pairs - pair), 1};
      tile_intervals(t.lo, t.hi, first + pair * kTileStep, part, seen_ + pair * kRowTile);
    }
    ResetState(state);
    const float scale = ScoreScale(*c_);
    few_scores(few, s_);
    few_maxima(few, scale, seen_, s_, true, state.max);
    Exponentials(few, state);
    if (const uint32_t over = tile_overflows(lanes_, 1) & ((1U << t.rows) - 1); over != 0) {
      alignas(64) float exact[kRowTile];
      std::fill_n(exact, kRowTile, -kInfinity);
      few_maxima(few, scale, seen_, s_, false, exact);
      for (int r = 0; r < t.rows; ++r) state.max[r] = (over >> r & 1) != 0 ? exact[r] : state.max[r];
      Exponentials(few, state);
    }
    few_values(few, p_, out);
    float check = 0;
    for (int64_t i = 0; i < t.rows * few.value.dim; ++i) check += out[i] - out[i];
    if (check != 0) return false;
    tile_sums(lanes_, 1, state.sum);
    return true;
  }

 private:
  static constexpr int kMostRows = 8;
  static_assert(kFewKeys == kBlock);

  TileFew Keys(const RowTile& t, int k0, int k1) const {
    const int first = k0 / kTileStep * kTileStep;
    TileFew few;
    few.rows = t.rows, few.pairs = (k1 - first + kTileStep - 1) / kTileStep, few.query = query_;
    const auto of = [&](const Operand& x, int64_t dim) {
      const auto* rows = static_cast<const char*>(KeyRow(*c_, x, task_->b, task_->kv, first));
      return TileSource{rows, x.strides.token * 2, k0 - first, k1 - first, dim};
    };
    few.key = of(c_->key, c_->p->head_dim), few.value = of(c_->value, c_->p->value_dim);
    few.next = few.key.rows + (k1 - first) * few.key.stride;
    return few;
  }

  void Exponentials(const TileFew& few, const LaneState& state) {
    alignas(64) float shift[kRowTile];
    TileShift(state, shift);
    few_softmax(few, ScoreScale(*c_), shift, seen_, s_, p_, lanes_, c_->unit);
  }

  const ForwardCall* c_;
  const AttentionTask* task_;
  float *s_, *p_, *lanes_, *query_;
  alignas(64) uint32_t seen_[kBlock / kTileStep * kRowTile];
};
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
