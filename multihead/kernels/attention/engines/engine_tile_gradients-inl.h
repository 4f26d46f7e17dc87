// The backward pass on AMX tiles of bf16 (tile_gradients-inl.h):
//   S[k][q] = K · Qᵀ, dP[k][q] = V · dOᵀ    rows of K and V as they lie, Q and dO packed once per head
//   dV[k] += P · dO, dK[k] += dS · Q          P and dS rows of A; steps of 32 queries
//   dQ[:][q] += Kᵀ · dS                       columns of queries; steps of 32 keys
// Without terms, dense masks, dropout and large scores P and dS are made where they belong; else they come from
// [key][query] rows. Sums lie at absolute positions, so the promises of equal bits hold among CPUs with tiles.
//
// Numbers that are not finite stay, and so does what they reach: the caller repeats a head with such a
// gradient by the specification.

#if defined(MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_TILE_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_TILE_GRADIENTS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_TILE_GRADIENTS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_TILE_GRADIENTS_INL_H_
#endif

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/block/block-inl.h"
#include "multihead/kernels/attention/engines/tile_gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// Scales the scores that each group needs.
HWY_INLINE void ScaleRows(const RowTile& t, const BlockRange& r, float scale, float* s) {
  const F d;
  const Vec factor = hn::Set(d, scale);
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k) {
      float* at = s + (k - r.k0) * kTileRows + lane;
      hn::StoreU(hn::Mul(hn::LoadU(d, at), factor), d, at);
    }
  }
}

class GradientsOnTiles {
 public:
  static constexpr int kKeyStep = kTileStep;
  static constexpr int kChunkKeys = kTileStep;
  static constexpr bool kMakesGradients = true;

  static BackwardOperands Operands(const BackwardCall& call) {
    const int64_t steps = amx_steps(call.forward.p->head_dim),
                  value_steps = amx_steps(call.forward.p->value_dim);
    const int64_t step = call.forward.scheme.parts * kAmxStep / 2;
    BackwardOperands o;
    o.qt = o.query = kTileRows * step * steps;
    o.d_out_t = o.d_out = kTileRows * step * value_steps;
    o.block = kBackwardBlock * step * (2 * steps + value_steps) +
              call.forward.scheme.parts * (2 * kRowFloats + kColumnFloats);
    o.one_head = o.loses_infinity = o.tiled = true;
    return o;
  }

  // Whether P and dS of tile n are made at once.
  static bool MakesGradients(const ForwardCall& c, const BackwardJob& job, int64_t n) {
    return !c.has_terms && !c.has_keep && c.p->dropout_p <= 0 && !job.has_top[n];
  }

  // Queries and output gradients of tile n, whose rows are of one head.
  static void Pack(const BackwardCall& call, const BackwardJob& job, int64_t n, const Rows& /*d_out*/) {
    const ForwardCall& c = call.forward;
    const RowTile& t = job.row_tiles[n];
    const auto pack = [&](const Operand& x, int64_t dim, float* lines, float* columns) {
      for (int row = 0; row < t.rows; row += kRowTile) {
        const TileSource rows = Source(c, x, TileRow(c, x, t, row), t.rows - row, dim);
        const int64_t at = row * c.scheme.parts * kAmxStep / 2 * amx_steps(dim);
        pack_tile_keys(rows, reinterpret_cast<char*>(lines + at), c.unit);
        pack_tile_columns(rows, reinterpret_cast<char*>(columns + at), c.unit);
      }
    };
    pack(c.query, c.p->head_dim, job.qt + n * call.operands.qt, job.query + n * call.operands.query);
    pack(call.gradient.d_out, c.p->value_dim, job.d_out_t + n * call.operands.d_out_t,
         job.d_out + n * call.operands.d_out);
  }

  // Keys [k0, k1) and their values.
  GradientsOnTiles(const BackwardCall& call, const BackwardJob& job, int k0, int k1, float* memory)
      : call_(call), job_(job), first_(k0), registers_(call.forward.unit == TileUnit::amx) {
    const ForwardCall& c = call.forward;
    char* at = reinterpret_cast<char*>(memory);
    const auto take = [&](int64_t bytes) {
      char* part = at;
      at += bytes;
      return part;
    };
    const int parts = c.scheme.parts;
    p_ = ds_ = {nullptr, nullptr, parts, 4 * kRowFloats, 4 * kColumnFloats};
    p_.rows = take(parts * p_.row_part), ds_.rows = take(parts * ds_.row_part);
    ds_.columns = take(parts * ds_.column_part);
    const auto place = [&](const Operand& x, int64_t dim, Lines& rows) {
      TileSource from = Source(c, x, KeyRow(c, x, job.b, job.kv, k0), k1 - k0, dim);
      rows = {from.rows, from.stride, 0};
      const int64_t stride = amx_steps(dim) * 64;
      char* copy = take(parts * kBackwardBlock * stride);
      if (from.bf16 && dim % kAmxStep == 0 && (k1 - k0) % kTileStep == 0) return;
      rows = {copy, stride, kBackwardBlock * stride};
      std::memset(copy, 0, static_cast<size_t>(parts * rows.part));
      from.end = k1 - k0;
      pack_tile_queries(from, copy, rows.part, c.unit);
    };
    place(c.key, c.p->head_dim, key_), place(c.value, c.p->value_dim, value_);
    values_ = {c.value_columns, p_.rows, reinterpret_cast<const char*>(job.d_out)};
    keys_ = {call.head_columns, ds_.rows, reinterpret_cast<const char*>(job.query)};
    key_columns_ = take(0);
    for (int k = k0; k < k1; k += kTileStep) {
      pack_tile_transposed(Source(c, c.key, KeyRow(c, c.key, job.b, job.kv, k), k1 - k, c.p->head_dim),
                           take(parts * kTileStep * 64 * amx_steps(c.p->head_dim)), c.unit);
    }
  }

  // s and dp of 32 keys.
  void Scores(int64_t n, const BlockRange& r, float* s, float* dp) const {
    Products(n, r, s, dp);
    ScaleRows(job_.row_tiles[n], r, ScoreScale(call_.forward), s);
  }

  // P and dS of 32 keys, in their places.
  void MakeGradients(int64_t n, const BlockRange& r, float* s, float* dp) const {
    const ForwardCall& c = call_.forward;
    const RowTile& t = job_.row_tiles[n];
    Products(n, r, s, dp);
    const F d;
    alignas(64) float lse[kTileRows];
    for (int lane = 0; lane < kTileRows; lane += kN) {
      hn::Store(hn::Mul(hn::Set(d, kLog2e), hn::LoadU(d, job_.lse + n * kTileRows + lane)), d, lse + lane);
    }
    TileGradientRows rows;
    rows.s = s, rows.dp = dp, rows.factor = ScoreScale(c), rows.lse = lse,
    rows.delta = job_.delta + n * kTileRows;
    const bool whole = r.full() && r.k1 - r.k0 == kTileStep;
    if (!whole) rows.lo = t.lo, rows.hi = t.hi;
    rows.key = r.k0, rows.steps = Steps(t);
    const int step = (r.k0 - first_) / kTileStep;
    rows.p = PlaceOf(Half(p_, n), step), rows.ds = PlaceOf(Half(ds_, n), step);
    tile_gradient_rows(rows, c.unit);
  }

  // Two tiles of queries that meet the same keys are summed as one.
  void AddToValues(int64_t n, const BlockRange& r, const float* weights, float* d_value) {
    if (!MakesGradients(call_.forward, job_, n)) PackWeights(n, r, weights, Half(p_, n));
    values_.Join(*this, n, r, d_value);
  }
  void AddToKeys(int64_t n, const BlockRange& r, const float* ds, float* d_key) {
    if (!MakesGradients(call_.forward, job_, n)) PackWeights(n, r, ds, Half(ds_, n));
    keys_.Join(*this, n, r, d_key);
  }
  void AddToQueries(int64_t n, const BlockRange& r, const float* ds) const {
    if (!MakesGradients(call_.forward, job_, n) && !call_.gradient.d_key) PackWeights(n, r, ds, Half(ds_, n));
    const int64_t strips = call_.head_columns / kAmxLines, step = (r.k0 - first_) / kTileStep;
    TileSum sum{.c_row = kTileGroups * kTile, .c_column = kTile, .a_row = kTile, .a_step = strips * kTile};
    sum.b_column = kTile, sum.b_step = kStepTiles * kTile, sum.steps = amx_steps(r.k1 - r.k0);
    sum.parts = ds_.parts, sum.a_part = strips * kTile, sum.b_part = ds_.column_part;
    sum.a_step *= sum.parts;
    char* to = reinterpret_cast<char*>(job_.d_query + n * call_.head_columns * kTileRows);
    for (int64_t i = 0; i < strips; i += 2) {
      sum.a = key_columns_ + step * sum.a_step + i * kTile;
      for (int j = 0; j < Steps(job_.row_tiles[n]); ++j) {
        sum.b = ds_.columns + (step * kStepTiles + 2 * j) * kTile;
        sum.c = to + (i * kTileGroups + 2 * j) * kTile;
        tile_sum(sum, call_.forward.unit);
      }
    }
  }
  // The places of tile n are about to be written.
  void Start(int64_t n) { values_.Free(*this, n), keys_.Free(*this, n); }
  // The part that is left to be summed.
  void Finish() { values_.Flush(*this), keys_.Flush(*this); }

 private:
  static constexpr int64_t kTile = 1024;  // bytes
  static constexpr int64_t kColumnFloats = kBackwardBlock * kTileRows / 2, kRowFloats = 2 * kColumnFloats;

  // Rows of A.
  struct Lines {
    const char* data = nullptr;
    int64_t stride = 0, part = 0;
  };

  // Steps of 32 queries.
  static int Steps(const RowTile& t) { return (t.groups + 1) / 2; }

  static TileSource Source(const ForwardCall& c, const Operand& x, const void* rows, int count, int64_t dim) {
    const bool bf16 = x.dtype == Dtype::bf16;
    return {static_cast<const char*>(rows),
            x.strides.token * (bf16 ? 2 : 4),
            0,
            std::min(count, kTileStep),
            dim,
            bf16,
            c.scheme.parts};
  }

  // The tiles of a step of 32 keys.
  static TileWeights PlaceOf(const TileWeights& w, int step) {
    TileWeights to = w;
    to.rows += step * 2 * kStripTiles * kTile;
    if (w.columns) to.columns += step * kStepTiles * kTile;
    return to;
  }

  void Products(int64_t n, const BlockRange& r, float* s, float* dp) const {
    const AttentionProblem& p = *call_.forward.p;
    const auto product = [&](const Lines& rows, int64_t dim, const float* columns, float* to) {
      const char* b = reinterpret_cast<const char*>(columns);
      tile_row_product({rows.data + (r.k0 - first_) * rows.stride, rows.stride, rows.part, b, amx_steps(dim),
                        2 * Steps(job_.row_tiles[n]), to, p_.parts},
                       call_.forward.unit);
    };
    product(key_, p.head_dim, job_.qt + n * call_.operands.qt, s);
    product(value_, p.value_dim, job_.d_out_t + n * call_.operands.d_out_t, dp);
  }

  void PackWeights(int64_t n, const BlockRange& r, const float* from, const TileWeights& to) const {
    for (int k = r.k0; k < r.k1; k += kTileStep, from += kTileStep * kTileRows) {
      pack_tile_weights(from, std::min(r.k1 - k, kTileStep), job_.row_tiles[n].rows,
                        PlaceOf(to, (k - first_) / kTileStep), call_.forward.unit);
    }
  }

  // The half of the places of weights that a tile has.
  static TileWeights Half(const TileWeights& w, int64_t n) {
    TileWeights half = w;
    half.rows += n % 2 * 2 * kTile;
    return half;
  }

  // to[k] += Σ_q weights[k][q] rows[q] of one tile or of two.
  struct KeySum {
    int64_t columns = 0;
    const char *weights = nullptr, *rows = nullptr;
    int64_t first = 0, count = 0;
    int k0 = 0, k1 = 0;
    float* to = nullptr;

    void Join(const GradientsOnTiles& g, int64_t n, const BlockRange& r, float* d) {
      if (count == 1 && (n != first + 1 || n % 2 == 0 || r.k0 != k0 || r.k1 != k1)) Flush(g);
      if (count == 0) first = n, k0 = r.k0, k1 = r.k1, to = d;
      if (++count == 2 || n % 2 == 1 || g.job_.row_tiles[n].rows < kTileRows) Flush(g);
    }
    void Free(const GradientsOnTiles& g, int64_t n) {
      if (n != first + 1) Flush(g);
    }
    void Flush(const GradientsOnTiles& g) {
      if (count == 0) return;
      TileSum sum{.c_row = columns / kAmxLines * kTile, .c_column = kTile, .a_row = kStripTiles * kTile};
      sum.parts = g.p_.parts, sum.a_part = g.p_.row_part, sum.b_part = columns / kAmxLines * kTile;
      sum.a_step = sum.b_column = kTile, sum.b_step = sum.parts * sum.b_part;
      sum.steps = 2 * (count - 1) + Steps(g.job_.row_tiles[first + count - 1]);
      const char* b = rows + first * 2 * sum.b_step;
      for (int k = k0 - g.first_; k < k1 - g.first_; k += kTileStep) {
        sum.a = weights + (k / kAmxLines * kStripTiles + first % 2 * 2) * kTile;
        char* c = reinterpret_cast<char*>(to) + k / kAmxLines * sum.c_row;
        for (int64_t at = 0; at < sum.c_row; at += 2 * kTile) {
          sum.b = b + at, sum.c = c + at;
          tile_sum(sum, g.call_.forward.unit);
        }
      }
      count = 0;
    }
  };

  const BackwardCall& call_;
  const BackwardJob& job_;
  int first_;
  FlushedSubnormals flushed_;
  AmxRegisters registers_;
  TileWeights p_, ds_;
  KeySum values_, keys_;
  Lines key_, value_;
  char* key_columns_;
};
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
