// The backward pass's data of a tile of queries, once per head: packed and staged rows, log-sum-exps, ⟨O,
// dO⟩.

#if defined(MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_PREPARE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_PREPARE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_PREPARE_INL_H_
#endif

#include "multihead/kernels/attention/engines/engine_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Inner product of rows padded to 16: 16 virtual lanes and a fixed tree, so that no vector width shows.
inline float InnerProduct(const float* a, const float* b, int64_t columns) {
  const F d;
  Vec sum[kGroupVecs];
  for (int v = 0; v < kGroupVecs; ++v) sum[v] = hn::Zero(d);
  for (int64_t i = 0; i < columns; i += kGroupRows) {
    for (int v = 0; v < kGroupVecs; ++v) {
      sum[v] = hn::MulAdd(hn::LoadU(d, a + i + v * kN), hn::LoadU(d, b + i + v * kN), sum[v]);
    }
  }
  alignas(64) float lanes[kGroupRows];
  for (int v = 0; v < kGroupVecs; ++v) hn::Store(sum[v], d, lanes + v * kN);
  for (int width = kGroupRows / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// delta[i] = InnerProduct of row i, i < count <= 16: on AVX-512 the 16 trees run side by side, in the same
// order.
inline void InnerProducts(const Rows& a, const Rows& b, int count, int64_t columns, float* delta) {
#if HWY_TARGET == HWY_AVX3
  const F d;
  Vec x[16];
  for (int i = 0; i < 16; ++i) {
    const float* ra = a.data + std::min(i, count - 1) * a.stride;
    const float* rb = b.data + std::min(i, count - 1) * b.stride;
    Vec sum = hn::Zero(d);
    for (int64_t c = 0; c < columns; c += kN)
      sum = hn::MulAdd(hn::LoadU(d, ra + c), hn::LoadU(d, rb + c), sum);
    x[i] = sum;
  }
  TransposeRegisters(x);
#pragma GCC unroll 4
  for (int width = 8; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) x[i] = hn::Add(x[i], x[i + width]);
  }
  alignas(64) float all[16];
  hn::Store(x[0], d, all);
  std::copy_n(all, count, delta);
#else
  for (int i = 0; i < count; ++i)
    delta[i] = InnerProduct(a.data + i * a.stride, b.data + i * b.stride, columns);
#endif
}

// Rows of queries to tiles [column][query], and back.
inline void TileQueries(const float* rows, int count, int64_t columns, float* tiles) {
  for (int64_t c = 0; c < columns; c += kGroupRows) {
    for (int q = 0; q < count; ++q) {
      float* to = tiles + (c / kGroupRows * kTileGroups + q / kGroupRows) * 256 + q % kGroupRows;
      for (int i = 0; i < kGroupRows; ++i) to[i * kGroupRows] = rows[q * columns + c + i];
    }
  }
}
inline void UntileQueries(const float* tiles, int groups, int64_t columns, float* rows) {
  for (int64_t c = 0; c < columns; c += kGroupRows) {
    for (int g = 0; g < groups; ++g) {
      TransposeTo(tiles + (c / kGroupRows * kTileGroups + g) * 256, kGroupRows, kGroupRows, kGroupRows,
                  rows + g * kGroupRows * columns + c, columns, 1.0f);
    }
  }
}

template <class G>
void PrepareTile(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const ForwardCall& c = call.forward;
  const BackwardJob& job = *args.job;
  const int64_t n = args.index, value_dim = c.p->value_dim;
  const AttentionGradient& g = call.gradient;
  RowTile& t = job.row_tiles[n];
  const int64_t first = n / job.span_tiles * job.span, row = first + n % job.span_tiles * kTileRows;
  make_row_tile(*c.p, job.b, job.kv, row, std::min({first + job.span, row + kTileRows, job.rows}), t);
  float* d_query = job.d_query + n * kTileRows * call.head_columns;
  const int64_t lanes = call.operands.tiled ? kTileRows : t.groups * kGroupRows;
  std::fill_n(d_query, lanes * call.head_columns, 0.0f);
  if (g.partial && g.d_query) {
    float* rows = call.operands.tiled ? args.scratch : d_query;
    CopyTileRows(c, t, g.d_query, c.p->head_dim, call.head_columns, rows);
    if (rows != d_query) TileQueries(rows, t.rows, call.head_columns, d_query);
  }
  if (t.empty()) {  // no key block comes here; all that is read later is that the rows are empty
    std::fill_n(job.lse + n * kTileRows, kTileRows, kInfinity);
    return;
  }
  // Rows are read in place where they can be.
  const bool in_place = !c.bf16 && c.value_columns == value_dim && t.head[0] == t.head[t.rows - 1];
  const auto rows_of_tile = [&](const Operand& x, bool copied, float* copy) {
    if (copied) CopyTileRows(c, t, x, value_dim, c.value_columns, copy);
    return TileRowsOf(c, t, copied ? copy : nullptr, x, c.value_columns);
  };
  const bool staged = call.operands.stage_d_out;
  const Rows d_out =
      rows_of_tile(g.d_out, staged || !in_place, staged ? job.d_out + n * call.operands.d_out : args.scratch);
  G::Pack(call, job, n, d_out);
  float* delta = job.delta + n * kTileRows;
  float* lse = job.lse + n * kTileRows;
  const bool weights = c.terms->weights();
  std::fill_n(delta, kTileRows, 0.0f);
  std::fill_n(lse, kTileRows, weights ? 0.0f : kInfinity);
  const Strides3& s = g.lse.strides;
  const float *of_rows = as_floats(g.lse.data), *d_lse = as_floats(g.d_lse);
  if (g.out) {
    const Rows out = rows_of_tile(g.out, !in_place, args.scratch + kTileRows * c.value_columns);
    for (int r = 0; r < t.rows; r += 16) {
      InnerProducts(Shifted(out, r), Shifted(d_out, r), std::min(16, t.rows - r), c.value_columns, delta + r);
    }
  }
  float* kept = as_floats(g.delta);
  for (int r = 0; r < t.rows; ++r) {
    const int64_t at = LaneIndex(c, s, t, r);
    if (weights) {  // 1 / Σ w, and Σ of what each weight's gradient has from that sum
      lse[r] = of_rows[at] == 0 ? 0.0f : 1 / of_rows[at];
      delta[r] =
          c.terms->normalise == Normalise::none ? 0.0f : lse[r] * delta[r] - (d_lse ? d_lse[at] : 0.0f);
      continue;
    }
    if (of_rows[at] == -kInfinity) {
      delta[r] = 0.0f;  // an empty row: its probabilities are zero by lse = +inf
      continue;
    }
    lse[r] = of_rows[at];
    if (!g.out && kept) {
      delta[r] = kept[at];
      continue;
    }
    if (d_lse) delta[r] -= d_lse[at];  // dlse/ds = p
    if (kept) kept[at] = delta[r];
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
