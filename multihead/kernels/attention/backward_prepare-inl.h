// What the backward pass needs of a tile of queries, once per head: packed and staged rows, log-sum-exps, ⟨O,
// dO⟩.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BACKWARD_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BACKWARD_PREPARE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BACKWARD_PREPARE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BACKWARD_PREPARE_INL_H_
#endif

#include "multihead/kernels/attention/backward-inl.h"
#include "multihead/kernels/attention/backward_amx-inl.h"
#include "multihead/kernels/attention/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Copies the rows of a tile to [kTileRows][columns] (zero-padded columns), one head run at a time.
inline void CopyTileRows(const ForwardCall& c, const RowTile& t, const void* base, const Strides3& s,
                         int64_t dim, int64_t columns, float* to) {
  each_head_run(t, [&](int first, int count) {
    for (int r = first; r < first + count; ++r) {
      const int64_t token = c.p->query_begin(t.b) + t.query[r];
      float* row = to + r * columns;
      LoadRow(At(base, t.b * s.batch + t.head[r] * s.head + token * s.token, c.bf16), dim, c.bf16, row);
      std::fill(row + dim, row + columns, 0.0f);
    }
  });
}

// Inner product of rows padded to 16: 16 virtual lanes and a fixed tree, so that no vector width shows.
inline float DotRows(const float* a, const float* b, int64_t columns) {
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

// delta[i] = DotRows of row i, i < count <= 16: on AVX-512 the 16 trees run side by side, in the same order.
inline void DotSixteen(const Rows& a, const Rows& b, int count, int64_t columns, float* delta) {
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
  for (int i = 0; i < count; ++i) delta[i] = DotRows(a.data + i * a.stride, b.data + i * b.stride, columns);
#endif
}

struct GradientView {
  const void* out;
  const void* d_out;
  Strides3 out_strides, d_out_strides, lse_strides;
  const float *lse, *d_lse;
};

inline GradientView View(const BackwardCall& c) {
  if (c.forward.bf16) {
    return {c.bf16.out,         c.bf16.d_out, c.bf16.out_strides, c.bf16.d_out_strides,
            c.bf16.lse_strides, c.bf16.lse,   c.bf16.d_lse};
  }
  return {c.f32.out,         c.f32.d_out, c.f32.out_strides, c.f32.d_out_strides,
          c.f32.lse_strides, c.f32.lse,   c.f32.d_lse};
}

// Rows of a tile as the products want them: staged, or in place.
inline Rows TileRowsOf(const BackwardCall& call, const RowTile& t, int64_t n, bool staged,
                       const float* memory, const void* base, const Strides3& s, int64_t columns) {
  if (staged) return {memory + n * kTileRows * columns, columns};
  const int64_t token = call.forward.p->query_begin(t.b) + t.query[0];
  return {static_cast<const float*>(base) + t.b * s.batch + t.head[0] * s.head + token * s.token, s.token};
}

inline void BackwardPrepare(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const ForwardCall& c = call.forward;
  const BackwardJob& job = *args.job;
  const int64_t n = args.index, value_dim = c.p->value_dim;
  const GradientView view = View(call);
  RowTile& t = job.row_tiles[n];
  const int64_t first = n / job.span_tiles * job.span, row = first + n % job.span_tiles * kTileRows;
  make_row_tile(*c.p, job.b, job.kv, row, std::min({first + job.span, row + kTileRows, job.rows}), t);
  std::fill_n(job.d_query + n * kTileRows * call.head_columns, kTileRows * call.head_columns, 0.0f);
  if (t.empty()) {  // no key block comes here; all that is read later is that the rows are empty
    std::fill_n(job.lse + n * kTileRows, kTileRows, kInfinity);
    return;
  }
  float* buffer = args.scratch;
  if (UsesTiles(c)) {
    PackTileRows(call, job, n, view.d_out, view.d_out_strides);
  } else {
    PackQuery(c, t, ScoreScale(c), job.qt + n * call.operands.qt);
  }
  if (call.stage_query) {
    CopyTileRows(c, t, c.query, c.query_strides, c.p->head_dim, call.head_columns,
                 job.query + n * call.operands.query);
  }
  // Rows are read in place where they can be.
  const bool in_place = !c.bf16 && c.value_columns == value_dim && t.head[0] == t.head[t.rows - 1];
  const auto rows_of_tile = [&](const void* base, const Strides3& s, float* copy) {
    if (in_place) return TileRowsOf(call, t, 0, false, nullptr, base, s, c.value_columns);
    CopyTileRows(c, t, base, s, value_dim, c.value_columns, copy);
    return Rows{copy, c.value_columns};
  };
  Rows d_out = rows_of_tile(view.d_out, view.d_out_strides, buffer);
  const Rows out = rows_of_tile(view.out, view.out_strides, buffer + kTileRows * c.value_columns);
  if (call.stage_d_out) {
    float* staged = job.d_out + n * call.operands.d_out;
    CopyTileRows(c, t, view.d_out, view.d_out_strides, value_dim, c.value_columns, staged);
    d_out = {staged, c.value_columns};
  }
  float* delta = job.delta + n * kTileRows;
  float* lse = job.lse + n * kTileRows;
  std::fill_n(delta, kTileRows, 0.0f);
  std::fill_n(lse, kTileRows, kInfinity);
  for (int r = 0; r < t.rows; r += 16) {
    DotSixteen(Shifted(out, r), Shifted(d_out, r), std::min(16, t.rows - r), c.value_columns, delta + r);
  }
  for (int r = 0; r < t.rows; ++r) {
    const int64_t token = c.p->query_begin(t.b) + t.query[r];
    const int64_t at = t.b * view.lse_strides.batch + t.head[r] * view.lse_strides.head + token;
    if (view.lse[at] == -kInfinity) {
      delta[r] = 0.0f;  // an empty row: its probabilities are zero by lse = +inf
      continue;
    }
    lse[r] = view.lse[at];
    if (view.d_lse) delta[r] -= view.d_lse[at];  // dlse/ds = p
  }
  if (UsesTiles(c)) return;
  float* d_out_t = job.d_out_t + n * call.operands.d_out_t;
  if (t.rows < kTileRows) std::fill_n(d_out_t, value_dim * kTileRows, 0.0f);
  TransposeTo(d_out.data, d_out.stride, t.rows, value_dim, d_out_t, kTileRows, 1.0f);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
