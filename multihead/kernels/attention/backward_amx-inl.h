// The products of attention's backward pass on bf16 tiles (matmul/amx-inl.h), between the same passes over P
// and dS as everywhere:
//   S[k][q] = K · Qᵀ, dP[k][q] = V · dOᵀ    keys are rows of A, queries columns of B
//   dV[k] += P · dO, dK[k] += dS · Q          P and dS rows of A, dO and Q columns of B; steps of 32 queries
//   dQ[q] += dSᵀ · K                          dSᵀ rows of A, K columns of B; steps of 32 keys
// Q and dO are packed once per head, K and V once per block, each both ways where both are needed; P and dS
// for each tile and block. bf16 operands are one part, P and dS are rounded to bf16; f32 operands are split
// as float32_matmul_precision says. Steps lie at absolute positions, so the promises of equal bits hold among
// CPUs with tiles.
//
// Numbers that are not finite keep that in their parts (with two parts Inf becomes NaN), and so does what
// they reach: the caller repeats a head with such a gradient by the specification.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BACKWARD_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BACKWARD_AMX_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BACKWARD_AMX_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BACKWARD_AMX_INL_H_
#endif

#include <utility>

#include "multihead/kernels/attention/amx-inl.h"
#include "multihead/kernels/attention/backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr int kTileChunk = 64;  // keys whose S and dP are finished while they are in L1

inline const uint16_t* Packed(const float* memory) { return reinterpret_cast<const uint16_t*>(memory); }

// Packs rows as lines of `dim` numbers.
inline void PackLines(const AmxOperand& rows, AmxSide side, int parts, float* to) {
  amx_pack(rows, side, parts, NotFinite::keep, reinterpret_cast<uint16_t*>(to));
}

// Packs their columns, along the rows.
inline void PackColumns(AmxOperand rows, int parts, float* to) {
  std::swap(rows.lines, rows.count), std::swap(rows.line_stride, rows.k_stride);
  PackLines(rows, AmxSide::columns, parts, to);
}

// Queries and output gradients of tile n, whose rows are of one head.
inline void PackTileRows(const BackwardCall& call, const BackwardJob& job, int64_t n, const void* d_out,
                         const Strides3& d_out_strides) {
  const ForwardCall& c = call.forward;
  const RowTile& t = job.row_tiles[n];
  const auto rows = [&](const void* base, const Strides3& s, int64_t dim) {
    const int64_t token = c.p->query_begin(t.b) + t.query[0];
    const void* first = At(base, t.b * s.batch + t.head[0] * s.head + token * s.token, c.bf16);
    return AmxOperand{first, c.bf16, s.token, 1, t.rows, dim};
  };
  const AmxOperand query = rows(c.query, c.query_strides, c.p->head_dim);
  const AmxOperand gradient = rows(d_out, d_out_strides, c.p->value_dim);
  PackLines(query, AmxSide::columns, c.scheme.parts, job.qt + n * call.operands.qt);
  PackColumns(query, c.scheme.parts, job.query + n * call.operands.query);
  PackLines(gradient, AmxSide::columns, c.scheme.parts, job.d_out_t + n * call.operands.d_out_t);
  PackColumns(gradient, c.scheme.parts, job.d_out + n * call.operands.d_out);
}

// Keys [first, end) and their values.
struct AmxBlock {
  const uint16_t* key = nullptr;
  const uint16_t* value = nullptr;
  const uint16_t* key_columns = nullptr;
  int first = 0, end = 0;

  AmxPairs keys(const float* qt, int64_t dim) const { return {key, Packed(qt), first, end, dim}; }
  AmxPairs values(const float* d_out_t, int64_t dim) const {
    return {value, Packed(d_out_t), first, end, dim};
  }
};

inline AmxBlock PackBlock(const BackwardCall& call, const BackwardJob& job, int k0, int k1, float* key,
                          float* value, float* key_columns) {
  const ForwardCall& c = call.forward;
  const auto rows = [&](const void* base, const Strides3& s, int64_t dim) {
    const void* first = At(base, KeyIndex(c, s, job.b, job.kv, k0), c.bf16);
    return AmxOperand{first, c.bf16, s.token, 1, k1 - k0, dim};
  };
  const AmxOperand keys = rows(c.key, c.key_strides, c.p->head_dim);
  PackLines(keys, AmxSide::rows, c.scheme.parts, key);
  PackLines(rows(c.value, c.value_strides, c.p->value_dim), AmxSide::rows, c.scheme.parts, value);
  PackColumns(keys, c.scheme.parts, key_columns);
  return {Packed(key), Packed(value), Packed(key_columns), k0, k1};
}

struct AmxKeySum {
  const float* weights = nullptr;  // [key][query] from key r.k0 on
  const float* rows = nullptr;     // packed columns of the tile's rows
  int64_t columns = 0;
  uint16_t* packed = nullptr;  // memory for the weights
  float* to = nullptr;         // from key r.k0 on
};

// As AddKeyRows: to[k] += Σ_q weights[k][q] rows[q] over the queries that need key k.
inline void TileAddKeyRows(const ForwardCall& c, const RowTile& t, const BlockRange& r, const AmxKeySum& of) {
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

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
