// The backward pass on AMX tiles:
//   S[k][q] = K · Qᵀ, dP[k][q] = V · dOᵀ    keys are rows of A, queries columns of B
//   dV[k] += P · dO, dK[k] += dS · Q          P and dS rows of A, dO and Q columns of B; steps of 32 queries
//   dQ[q] += dSᵀ · K                          dSᵀ rows of A, K columns of B; steps of 32 keys
// Q and dO are packed once per head, K and V once per block, each both ways where both are needed; P and dS
// for each tile and block. Operands are split as float32_matmul_precision says. Steps lie at absolute
// positions, so the promises of equal bits hold among CPUs with tiles.
//
// Numbers that are not finite keep that in their parts (with two parts Inf becomes NaN), and so does what
// they reach: the caller repeats a head with such a gradient by the specification.

#if defined(MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_GRADIENTS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_GRADIENTS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_GRADIENTS_INL_H_
#endif

#include <utility>

#include "multihead/kernels/attention/engines/engine_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline const uint16_t* Packed(const float* memory) { return reinterpret_cast<const uint16_t*>(memory); }

// Packs rows as lines of their numbers.
inline void PackLines(const AmxOperand& rows, AmxSide side, int parts, float* to) {
  amx_pack(rows, side, parts, NotFinite::keep, reinterpret_cast<uint16_t*>(to));
}

// Packs their columns, along the rows.
inline void PackColumns(AmxOperand rows, int parts, float* to) {
  std::swap(rows.lines, rows.count), std::swap(rows.line_stride, rows.k_stride);
  PackLines(rows, AmxSide::columns, parts, to);
}

struct AmxKeySum {
  const float* weights = nullptr;  // [key][query] from key r.k0 on
  const float* rows = nullptr;     // packed columns of the tile's rows
  int64_t columns = 0;
  uint16_t* packed = nullptr;  // memory for the weights
  float* to = nullptr;         // from key r.k0 on
};

// As AddKeyRows: to[k] += Σ_q weights[k][q] rows[q] over the queries that need key k.
inline void AmxAddKeyRows(const ForwardCall& c, const RowTile& t, const BlockRange& r, const AmxKeySum& of) {
  const int64_t step = c.scheme.parts * kAmxWords, strip = amx_steps(t.rows) * step;
  amx_pack({of.weights, false, kTileRows, 1, r.k1 - r.k0, t.rows}, AmxSide::rows, c.scheme.parts,
           NotFinite::keep, of.packed);
  AmxProduct p{.a_strip = strip, .b_strip = strip};
  p.b_strips = of.columns / kAmxLines, p.scheme = c.scheme, p.c_stride = of.columns, p.add = true;
  for (int k = r.k0; k < r.k1; k += 32) {
    int first, last;
    NeededGroups(t, r, k, std::min(k + 32, r.k1), &first, &last);
    if (first >= last) continue;
    const int64_t begin = first / 2;
    p.steps = (last + 1) / 2 - begin;
    p.a = of.packed + (k - r.k0) / kAmxLines * strip + begin * step;
    p.b = Packed(of.rows) + begin * step;
    p.a_strips = std::min<int64_t>(2, amx_strips(r.k1 - k));
    p.c = of.to + (k - r.k0) * of.columns;
    amx_multiply(p, c.unit);
  }
}

class AmxEngine::Gradients {
 public:
  static constexpr int kKeyStep = AmxEngine::kKeyStep;
  static constexpr int kChunkKeys = 64;
  static constexpr bool kMakesGradients = false;

  // Strips of 16 lines, each of steps of 32 numbers; at least one of each, so that all are there.
  static BackwardOperands Operands(const BackwardCall& call) {
    const AttentionProblem& p = *call.forward.p;
    const Layout block(call);
    const auto floats = [&](int64_t lines, int64_t count) { return Floats(call, lines, count); };
    BackwardOperands o;
    o.qt = floats(kTileRows, p.head_dim), o.d_out_t = floats(kTileRows, p.value_dim);
    o.query = floats(p.head_dim, kTileRows), o.d_out = floats(p.value_dim, kTileRows);
    o.block = block.key + block.value + block.key_columns + floats(kTileRows, kBackwardBlock);
    o.one_head = true, o.loses_infinity = true;
    return o;
  }

  // Queries and output gradients of tile n, whose rows are of one head.
  static void Pack(const BackwardCall& call, const BackwardJob& job, int64_t n, const Rows& /*d_out*/) {
    const ForwardCall& c = call.forward;
    const RowTile& t = job.row_tiles[n];
    const int parts = c.scheme.parts;
    const auto rows = [&](const Operand& x, int64_t dim) {
      return AmxOperand{TileRow(c, x, t, 0), false, x.strides.token, 1, t.rows, dim};
    };
    const AmxOperand query = rows(c.query, c.p->head_dim);
    const AmxOperand d_out = rows(call.gradient.d_out, c.p->value_dim);
    PackLines(query, AmxSide::columns, parts, job.qt + n * call.operands.qt);
    PackColumns(query, parts, job.query + n * call.operands.query);
    PackLines(d_out, AmxSide::columns, parts, job.d_out_t + n * call.operands.d_out_t);
    PackColumns(d_out, parts, job.d_out + n * call.operands.d_out);
  }

  // Packs keys [k0, k1) and their values.
  Gradients(const BackwardCall& call, const BackwardJob& job, int k0, int k1, float* memory)
      : call_(call), job_(job), first_(k0), end_(k1), registers_(call.forward.unit == TileUnit::amx) {
    const ForwardCall& c = call.forward;
    const Layout block(call);
    key_ = memory, value_ = key_ + block.key, key_columns_ = value_ + block.value;
    weights_ = reinterpret_cast<uint16_t*>(key_columns_ + block.key_columns);
    const auto rows = [&](const Operand& x, int64_t dim) {
      return AmxOperand{KeyRow(c, x, job.b, job.kv, k0), false, x.strides.token, 1, k1 - k0, dim};
    };
    const AmxOperand keys = rows(c.key, c.p->head_dim);
    PackLines(keys, AmxSide::rows, c.scheme.parts, key_);
    PackLines(rows(c.value, c.p->value_dim), AmxSide::rows, c.scheme.parts, value_);
    PackColumns(keys, c.scheme.parts, key_columns_);
  }

  void Scores(int64_t n, const BlockRange& r, float* s, float* dp) const {
    const ForwardCall& c = call_.forward;
    const RowTile& t = job_.row_tiles[n];
    const float *qt = job_.qt + n * call_.operands.qt, *d_out_t = job_.d_out_t + n * call_.operands.d_out_t;
    AmxScoreProduct(c, t, r, {Packed(key_), Packed(qt), first_, end_, c.p->head_dim}, s);
    ScaleRows(t, r, ScoreScale(c), s, nullptr);
    AmxScoreProduct(c, t, r, {Packed(value_), Packed(d_out_t), first_, end_, c.p->value_dim}, dp);
  }

  void AddToValues(int64_t n, const BlockRange& r, const float* weights, float* d_value) const {
    const ForwardCall& c = call_.forward;
    const float* rows = job_.d_out + n * call_.operands.d_out;
    float* to = d_value + (r.k0 - first_) * c.value_columns;
    AmxAddKeyRows(c, job_.row_tiles[n], r, {weights, rows, c.value_columns, weights_, to});
  }
  void AddToKeys(int64_t n, const BlockRange& r, const float* ds, float* d_key) const {
    const float* rows = job_.query + n * call_.operands.query;
    float* to = d_key + (r.k0 - first_) * call_.head_columns;
    AmxAddKeyRows(call_.forward, job_.row_tiles[n], r, {ds, rows, call_.head_columns, weights_, to});
  }
  void AddToQueries(int64_t n, const BlockRange& r, const float* ds) const {
    float* to = job_.d_query + n * kTileRows * call_.head_columns;
    AmxBlockSums(call_.forward, job_.row_tiles[n], r,
                 {ds, Packed(key_columns_), first_, end_, call_.head_columns, true, weights_, to});
  }

 private:
  static int64_t Floats(const BackwardCall& call, int64_t lines, int64_t count) {
    const int64_t steps = amx_strips(std::max<int64_t>(lines, 1)) * amx_steps(std::max<int64_t>(count, 1));
    return steps * call.forward.scheme.parts * kAmxWords / 2;
  }
  // Floats of a block's packed operands.
  struct Layout {
    int64_t key, value, key_columns;
    explicit Layout(const BackwardCall& call) {
      const int64_t dim = call.forward.p->head_dim;
      key = Floats(call, kBackwardBlock, dim);
      value = Floats(call, kBackwardBlock, call.forward.p->value_dim);
      key_columns = Floats(call, dim, kBackwardBlock);
    }
  };

  const BackwardCall& call_;
  const BackwardJob& job_;
  int first_, end_;
  AmxRegisters registers_;
  float *key_, *value_, *key_columns_;
  uint16_t* weights_;
};

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
