// Backward attention by recomputation, f32 arithmetic: nothing of size [Tq, Tk] is kept from the forward.
//
// Per key block of 128 (at absolute positions) and tile of 64 queries, everything [key][query]:
//   S = K · Qᵀ,  P = e^(S - lse),  dP = V · dOᵀ,  dS = P · (dP - ⟨O, dO⟩)
//   dV[k] += P · dO,  dK[k] += dS · Q       rows are keys, A runs along queries
//   dQ[q] += dSᵀ · K                        rows are queries, A runs along keys: the same memory, other
//   stride
// Qᵀ and dOᵀ are packed once per head. Each element of a gradient is a sum of chains in order: those of dV
// and dK lie within a tile, those of dQ are the forward pass's. Key blocks of one head may run on several
// threads: a block waits for its turn at each tile's dQ, which follows the block before it like a wave.
//
// As in the forward pass, zero times NaN is caught at the end: the caller repeats the head by the
// specification if a gradient is not finite and something was excluded.
#include "multihead/kernels/attention_backward.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/attention_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if HWY_TARGET == HWY_SCALAR  // without vectors the specification itself runs: the driver never comes here
namespace multihead::kernels::HWY_NAMESPACE {
void BackwardPrepare(const BackwardTaskArgs&) {}
bool BackwardBlock(const BackwardTaskArgs&) { return true; }
bool BackwardFinish(const BackwardTaskArgs&) { return true; }
}  // namespace multihead::kernels::HWY_NAMESPACE
#else
#include "multihead/kernels/attention_block-inl.h"
#include "multihead/kernels/attention_gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

// Copies the rows of a tile to [kTileRows][columns] (zero-padded columns), one head run at a time.
void CopyTileRows(const ForwardCall& c, const RowTile& t, const void* base, const Strides3& s, int64_t dim,
                  int64_t columns, float* to) {
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
float DotRows(const float* a, const float* b, int64_t columns) {
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
void DotSixteen(const Rows& a, const Rows& b, int count, int64_t columns, float* delta) {
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
  const float* lse;
};

GradientView View(const BackwardCall& c) {
  if (c.forward.bf16) {
    return {c.bf16.out,           c.bf16.d_out,       c.bf16.out_strides,
            c.bf16.d_out_strides, c.bf16.lse_strides, c.bf16.lse};
  }
  return {c.f32.out, c.f32.d_out, c.f32.out_strides, c.f32.d_out_strides, c.f32.lse_strides, c.f32.lse};
}

// Rows of a tile as the products want them: staged, or in place.
Rows TileRowsOf(const BackwardCall& call, const RowTile& t, int64_t n, bool staged, const float* memory,
                const void* base, const Strides3& s, int64_t columns) {
  if (staged) return {memory + n * kTileRows * columns, columns};
  const int64_t token = call.forward.p->query_begin(t.b) + t.query[0];
  return {static_cast<const float*>(base) + t.b * s.batch + t.head[0] * s.head + token * s.token, s.token};
}

void BackwardPrepare(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const ForwardCall& c = call.forward;
  const BackwardJob& job = *args.job;
  const int64_t n = args.index, dim = c.p->head_dim, value_dim = c.p->value_dim;
  const GradientView view = View(call);
  RowTile& t = job.row_tiles[n];
  const int64_t first = n / job.span_tiles * job.span, row = first + n % job.span_tiles * kTileRows;
  make_row_tile(*c.p, job.b, job.kv, row, std::min({first + job.span, row + kTileRows, job.rows}), t);
  std::fill_n(job.d_query + n * kTileRows * call.head_columns, kTileRows * call.head_columns, 0.0f);
  if (t.empty()) {  // no key block comes here; all that is read later is that the rows are empty
    std::fill_n(job.lse + n * kTileRows, kTileRows, kInfinity);
    return;
  }
  const float scale = static_cast<float>(c.has_terms ? c.p->scale : c.p->scale * 1.4426950408889634);
  float* buffer = args.scratch;
  PackQuery(c, t, scale, job.qt + n * dim * kTileRows, buffer);
  if (call.stage_query) {
    CopyTileRows(c, t, c.query, c.query_strides, dim, call.head_columns,
                 job.query + n * kTileRows * call.head_columns);
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
    float* staged = job.d_out + n * kTileRows * c.value_columns;
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
    const float x = view.lse[t.b * view.lse_strides.batch + t.head[r] * view.lse_strides.head + token];
    if (x == -kInfinity) {
      delta[r] = 0.0f;  // an empty row: its probabilities are zero by lse = +inf
    } else {
      lse[r] = x;
    }
  }
  float* d_out_t = job.d_out_t + n * value_dim * kTileRows;
  if (t.rows < kTileRows) std::fill_n(d_out_t, value_dim * kTileRows, 0.0f);
  TransposeTo(d_out.data, d_out.stride, t.rows, value_dim, d_out_t, kTileRows, 1.0f);
}

struct BackwardBuffers {
  float* p;           // [kBackwardBlock][kTileRows] scores, then probabilities
  float* ds;          // likewise: probability gradients, then score gradients
  float* derivative;  // likewise: of soft-cap and score function
  float* extra;       // likewise: transposed bias, dropped probabilities, turned bias gradients
  uint8_t* keep;
  float* key;      // staged
  float* value;    // staged
  float* d_key;    // [kBackwardBlock][head_columns]
  float* d_value;  // [kBackwardBlock][value_columns]
};

BackwardBuffers MakeBackwardBuffers(const BackwardCall& call, float* scratch) {
  constexpr int64_t kSize = kBackwardBlock * kTileRows;
  BackwardBuffers b;
  b.p = scratch;
  b.ds = b.p + kSize;
  b.derivative = b.ds + kSize;
  b.extra = b.derivative + kSize;
  b.keep = reinterpret_cast<uint8_t*>(b.extra + kSize);
  b.key = b.extra + kSize + kSize / 4;
  b.value = b.key + kBackwardBlock * call.head_columns;
  b.d_key = b.value + kBackwardBlock * call.forward.value_columns;
  b.d_value = b.d_key + kBackwardBlock * call.head_columns;
  return b;
}

// Probability from a score.
template <bool kNatural>
HWY_INLINE Vec Probability(F d, Vec s, Vec lse) {
  if constexpr (kNatural) return Exp(d, hn::Sub(s, lse));
  return Exp2(d, hn::NegMulAdd(lse, hn::Set(d, kLog2e), s));
}

// s <- P, dp <- dS = P · (dP - delta), exactly zero where excluded (s = -inf) whatever dP is.
template <bool kNatural>
void GradientRows(const RowTile& t, const BlockRange& r, const float* lse, const float* delta, float* s,
                  float* dp) {
  const F d;
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    const Vec vl = hn::LoadU(d, lse + lane), vd = hn::LoadU(d, delta + lane);
    float* ps = s + (r.need_begin[g] - r.k0) * kTileRows + lane;
    float* pd = dp + (r.need_begin[g] - r.k0) * kTileRows + lane;
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k, ps += kTileRows, pd += kTileRows) {
      const Vec x = hn::LoadU(d, ps), p = Probability<kNatural>(d, x, vl);
      const Vec g1 = hn::Mul(p, hn::Sub(hn::LoadU(d, pd), vd));
      hn::StoreU(p, d, ps);
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(x, hn::Set(d, -kInfinity)), g1), d, pd);
    }
  }
}

// With dropout: dropped <- P · keep / (1 - p), dp <- dP · keep / (1 - p), before the above.
template <bool kNatural>
void DropGradientRows(const AttentionProblem& p, const RowTile& t, const BlockRange& r, const float* lse,
                      const float* s, float* dp, float* dropped) {
  const F d;
  if (p.dropout_p >= 1) {
    std::fill_n(dp, (r.k1 - r.k0) * kTileRows, 0.0f);
    std::fill_n(dropped, (r.k1 - r.k0) * kTileRows, 0.0f);
    return;
  }
  const Vec keep_scale = hn::Set(d, static_cast<float>(1 / (1 - p.dropout_p)));
  EachDropout(p, t, r, [&](int k, int lane, hn::Mask<F> kept) HWY_ATTR {
    const int64_t at = int64_t{k - r.k0} * kTileRows + lane;
    const Vec factor = hn::IfThenElseZero(kept, keep_scale);
    const Vec probability = Probability<kNatural>(d, hn::LoadU(d, s + at), hn::LoadU(d, lse + lane));
    hn::StoreU(hn::Mul(probability, factor), d, dropped + at);
    hn::StoreU(hn::IfThenElseZero(kept, hn::Mul(hn::LoadU(d, dp + at), factor)), d, dp + at);
  });
}

// Rows that a group does not need become zero, so that the products may run over them.
void ZeroUnneeded(const RowTile& t, const BlockRange& r, float* s) {
  for (int g = 0; g < t.groups; ++g) {
    ZeroRows(s + g * kGroupRows, r.need_begin[g] - r.k0);
    ZeroRows(s + (r.need_end[g] - r.k0) * kTileRows + g * kGroupRows, r.k1 - r.need_end[g]);
  }
}

// to[k] += Σ_q p[k][q] from[q] over the queries that need key k, head after head.
void AddKeyRows(const RowTile& t, const BlockRange& r, const float* p, const Rows& from, int64_t columns,
                float* to) {
  TileArgs args{};
  args.a_row = kTileRows, args.a_step = 1, args.b_stride = from.stride, args.c_stride = columns;
  const int step = r.full() ? r.k1 - r.k0 : kGroupRows;
  for (int k = r.k0; k < r.k1; k += step) {
    const int end = std::min(k + step, r.k1);
    int first = 0, last = t.groups;
    if (!r.full()) NeededGroups(t, r, k, end, &first, &last);
    args.c = to + (k - r.k0) * columns;
    each_head_run(t, [&](int run, int count) HWY_ATTR {
      const int begin = std::max(run, first * kGroupRows), stop = std::min(run + count, last * kGroupRows);
      if (begin >= stop) return;
      args.a = p + (k - r.k0) * kTileRows + begin;
      args.b = from.data + begin * from.stride;
      args.k = stop - begin;
      args.first_chain = QueryChainRest(t.query[begin]), args.chain = kQueryChain;
      Product<End::add, true>(args, end - k, columns);
    });
  }
}

// d_query[q] += Σ_k ds[k][q] key[k] over the keys that q sees.
void AddQueryRows(const RowTile& t, const BlockRange& r, const float* ds, const Rows& key, int64_t columns,
                  float* d_query) {
  TileArgs args{};
  args.a_row = 1, args.a_step = kTileRows, args.b_stride = key.stride, args.c_stride = columns;
  const int step = r.full() ? t.rows : RowStep(columns);
  for (int row = 0; row < t.rows; row += step) {
    const int count = std::min(step, t.rows - row);
    int a = r.k0, e = r.k1;
    if (!r.full()) {
      a = r.k1, e = r.k0;
      for (int i = row; i < row + count; ++i) {
        a = std::min(a, std::max(t.lo[i], r.k0));
        e = std::max(e, std::min(t.hi[i], r.k1));
      }
      if (a >= e) continue;
    }
    args.a = ds + (a - r.k0) * kTileRows + row;
    args.b = key.data + (a - r.k0) * key.stride;
    args.k = e - a, args.first_chain = KeyChainRest(a), args.chain = kKeyChain;
    args.c = d_query + row * columns;
    Product<End::add, false>(args, count, columns);
  }
}

struct BlockInput {
  Rows key, value;  // from key k0 of the block on
  int base = 0;
};

// P and dS of keys [r.k0, r.k1), a chunk that stays in L1; the buffers start at r.k0.
void ChunkGradients(const BackwardCall& call, const BackwardJob& job, int64_t n, const BlockRange& r,
                    const BlockInput& in, const LaneTerms& lanes, const uint8_t* keep, bool rows,
                    const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  const RowTile& t = job.row_tiles[n];
  const Rows key = Shifted(in.key, r.k0 - in.base), value = Shifted(in.value, r.k0 - in.base);
  ScoreProduct(t, r, key.data, key.stride, job.qt + n * p.head_dim * kTileRows, p.head_dim, b.p, nullptr,
               nullptr, 0, 0);
  ScoreProduct(t, r, value.data, value.stride, job.d_out_t + n * p.value_dim * kTileRows, p.value_dim, b.ds,
               nullptr, nullptr, 0, 0);
  alignas(64) float unused[kTileRows];
  std::fill_n(unused, kTileRows, 0.0f);
  if (rows) {
    float* derivative = c.terms->score_function || c.terms->softcap > 0 ? b.derivative : nullptr;
    if (c.terms->score_function) {
      ApplyScoreFunction(c.terms->score_function, t, r, b.p, derivative);
    } else if (derivative) {
      std::fill_n(derivative, (r.k1 - r.k0) * kTileRows, 1.0f);
    }
    TermRows({c.terms, &t, &lanes, c.terms->bias ? b.extra : nullptr, keep, b.p, derivative}, r, unused);
  } else {
    MaskRows(t, r, b.p, unused);
  }
  const float* lse = job.lse + n * kTileRows;
  const float* delta = job.delta + n * kTileRows;
  if (c.has_terms) {
    if (p.dropout_p > 0) DropGradientRows<true>(p, t, r, lse, b.p, b.ds, b.extra);
    GradientRows<true>(t, r, lse, delta, b.p, b.ds);
  } else {
    if (p.dropout_p > 0) DropGradientRows<false>(p, t, r, lse, b.p, b.ds, b.extra);
    GradientRows<false>(t, r, lse, delta, b.p, b.ds);
  }
  ZeroUnneeded(t, r, p.dropout_p > 0 ? b.extra : b.p);
  ZeroUnneeded(t, r, b.ds);
}

// P and dS of one tile against one key block. False if no query sees it.
bool TileGradients(const BackwardCall& call, const BackwardJob& job, int64_t n, const BlockRange& r,
                   const BlockInput& in, const LaneTerms& lanes, const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  const RowTile& t = job.row_tiles[n];
  BlockClass mask = BlockClass::full;
  if (c.has_keep) mask = mask_class(*c.p, t, r.k0, r.k1);
  if (mask == BlockClass::empty) return false;
  const bool partial = mask == BlockClass::partial;
  if (partial) fill_keep(*c.p, t, r.k0, r.k1, b.keep);
  if (c.terms->bias) GatherBias(c.terms->bias, c.terms->bias_strides, t, r, b.extra);
  for (int k = r.k0; k < r.k1; k += kChunk) {
    const int64_t by = int64_t{k - r.k0} * kTileRows;
    BackwardBuffers chunk = b;
    chunk.p += by, chunk.ds += by, chunk.derivative += by, chunk.extra += by;
    ChunkGradients(call, job, n, MakeBlockRange(t, k, std::min(k + kChunk, r.k1)), in, lanes,
                   partial ? b.keep + by : nullptr, c.has_terms || partial, chunk);
  }
  return true;
}

// Gradients of the terms, then dS becomes the gradient of scale · ⟨query, key⟩ (without the scale).
void TermGradients(const BackwardCall& call, const BackwardJob& job, const RowTile& t, const BlockRange& r,
                   const LaneTerms& lanes, int64_t block, const BackwardBuffers& b, float* turned) {
  const F d;
  const ScoreTerms<float>& terms = *call.forward.terms;
  const int64_t group = call.forward.p->group();
  float* d_bias = call.forward.bf16 ? call.bf16.d_bias : call.f32.d_bias;
  if (d_bias && terms.bias) BiasGradient(terms, t, r, b.ds, d_bias, turned);
  if (job.relative) {
    RelativeGradient(terms, group, t, r, b.ds, job.relative + block * group * terms.relative_span);
  }
  if (job.alibi) AlibiGradient(lanes, group, t, r, b.ds, job.alibi + block * group);
  if (!terms.score_function && terms.softcap <= 0) return;
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k) {
      float* at = b.ds + (k - r.k0) * kTileRows + lane;
      const Vec x = hn::LoadU(d, at), factor = hn::LoadU(d, b.derivative + (k - r.k0) * kTileRows + lane);
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(x, hn::Zero(d)), hn::Mul(x, factor)), d, at);
    }
  }
}

// Waits until all earlier key blocks have added to tile n's d_query. False if another task failed.
bool AwaitTurn(const BackwardJob& job, int64_t n, int64_t block) {
  const auto turn = static_cast<int32_t>(block - job.row_tiles[n].begin / kBackwardBlock);
  for (int spins = 0; job.done[n].load(std::memory_order_acquire) != turn; ++spins) {
    if (job.failed->load(std::memory_order_relaxed)) return false;
    if (spins > 64) std::this_thread::yield();
  }
  return true;
}

// Writes `count` gradient rows, scaled; false if anything is not finite.
bool WriteRows(const BackwardCall& call, const float* rows, int64_t count, int64_t dim, int64_t columns,
               float scale, void* to, int64_t stride) {
  const F d;
  const Vec factor = hn::Set(d, scale);
  Vec check = hn::Zero(d);
  for (int64_t r = 0; r < count; ++r) {
    const float* from = rows + r * columns;
    int64_t c = 0;
    if (call.forward.bf16) {
      check = StoreBf16Row(from, factor, dim, static_cast<uint16_t*>(to) + r * stride, check);
      continue;
    }
    float* out = static_cast<float*>(to) + r * stride;
    for (; c + kN <= dim; c += kN) {
      const Vec x = hn::Mul(hn::LoadU(d, from + c), factor);
      check = hn::MulAdd(x, hn::Zero(d), check);
      hn::StoreU(x, d, out + c);
    }
    for (; c < dim; ++c) {
      out[c] = from[c] * scale;
      check = hn::Add(check, hn::Set(d, out[c] * 0.0f));
    }
  }
  return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
}

template <class G>
void* KeyRowsOf(const BackwardCall& call, const BackwardJob& job, const G* base, const Strides3& s,
                int64_t k0) {
  const int64_t token = call.forward.p->key_begin_row(job.b) + k0;
  return const_cast<G*>(base) + job.b * s.batch + job.kv * s.head + token * s.token;
}

template <class G>
bool WriteBlock(const BackwardCall& call, const BackwardJob& job, const G& g, int k0, int count,
                const BackwardBuffers& b) {
  const AttentionProblem& p = *call.forward.p;
  bool finite = true;
  if (g.d_key) {
    finite = WriteRows(call, b.d_key, count, p.head_dim, call.head_columns, static_cast<float>(p.scale),
                       KeyRowsOf(call, job, g.d_key, g.d_key_strides, k0), g.d_key_strides.token) &&
             finite;
  }
  if (g.d_value) {
    finite = WriteRows(call, b.d_value, count, p.value_dim, call.forward.value_columns, 1.0f,
                       KeyRowsOf(call, job, g.d_value, g.d_value_strides, k0), g.d_value_strides.token) &&
             finite;
  }
  return finite;
}

bool BackwardBlock(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  const BackwardJob& job = *args.job;
  const GradientView view = View(call);
  const BackwardBuffers b = MakeBackwardBuffers(call, args.scratch);
  const int k0 = static_cast<int>(args.index * kBackwardBlock);
  const int k1 = static_cast<int>(std::min<int64_t>(k0 + kBackwardBlock, p.key_count(job.b)));
  const bool wants_query = c.bf16 ? call.bf16.d_query != nullptr : call.f32.d_query != nullptr;
  BlockInput in;
  in.base = k0;
  in.key = StageRows(c, c.key, c.key_strides, job.b, job.kv, k0, k1, p.head_dim, c.copy_key,
                     call.head_columns, b.key);
  in.value = StageRows(c, c.value, c.value_strides, job.b, job.kv, k0, k1, p.value_dim, c.copy_value,
                       c.value_columns, b.value);
  std::fill_n(b.d_key, (k1 - k0) * call.head_columns, 0.0f);
  std::fill_n(b.d_value, (k1 - k0) * c.value_columns, 0.0f);
  for (int64_t n = 0; n < job.tiles; ++n) {
    const RowTile& t = job.row_tiles[n];
    const int a = std::max(k0, t.begin), e = std::min(k1, t.end);
    if (a >= e) continue;
    const BlockRange r = MakeBlockRange(t, a, e);
    LaneTerms lanes;
    if (c.has_terms || c.has_keep) lanes = MakeLaneTerms(*c.terms, t);
    const bool seen = TileGradients(call, job, n, r, in, lanes, b);
    if (seen) {
      const Rows d_out = TileRowsOf(call, t, n, call.stage_d_out, job.d_out, view.d_out, view.d_out_strides,
                                    c.value_columns);
      const Rows query =
          TileRowsOf(call, t, n, call.stage_query, job.query, c.query, c.query_strides, call.head_columns);
      AddKeyRows(t, r, p.dropout_p > 0 ? b.extra : b.p, d_out, c.value_columns,
                 b.d_value + (a - k0) * c.value_columns);
      if (c.has_terms) TermGradients(call, job, t, r, lanes, args.index, b, b.extra);
      AddKeyRows(t, r, b.ds, query, call.head_columns, b.d_key + (a - k0) * call.head_columns);
    }
    if (!AwaitTurn(job, n, args.index)) return true;
    if (seen && wants_query) {
      const Rows key{in.key.data + (a - k0) * in.key.stride, in.key.stride};
      AddQueryRows(t, r, b.ds, key, call.head_columns, job.d_query + n * kTileRows * call.head_columns);
    }
    job.done[n].fetch_add(1, std::memory_order_release);
  }
  return c.bf16 ? WriteBlock(call, job, call.bf16, k0, k1 - k0, b)
                : WriteBlock(call, job, call.f32, k0, k1 - k0, b);
}

bool BackwardFinish(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const AttentionProblem& p = *call.forward.p;
  const BackwardJob& job = *args.job;
  const RowTile& t = job.row_tiles[args.index];
  const bool bf16 = call.forward.bf16;
  const Strides3& s = bf16 ? call.bf16.d_query_strides : call.f32.d_query_strides;
  const void* base = bf16 ? static_cast<const void*>(call.bf16.d_query) : call.f32.d_query;
  if (!base) return true;
  bool finite = true;
  each_head_run(t, [&](int first, int count) {
    const int64_t token = p.query_begin(t.b) + t.query[first];
    const int64_t at = t.b * s.batch + t.head[first] * s.head + token * s.token;
    const float* rows = job.d_query + (args.index * kTileRows + first) * call.head_columns;
    finite = WriteRows(call, rows, count, p.head_dim, call.head_columns, static_cast<float>(p.scale),
                       const_cast<void*>(At(base, at, bf16)), s.token) &&
             finite;
  });
  return finite;
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_SCALAR

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(BackwardPrepare);
HWY_EXPORT(BackwardBlock);
HWY_EXPORT(BackwardFinish);

void backward_prepare(const BackwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(BackwardPrepare)(args); }
bool backward_block(const BackwardTaskArgs& args) { return HWY_DYNAMIC_DISPATCH(BackwardBlock)(args); }
bool backward_finish(const BackwardTaskArgs& args) { return HWY_DYNAMIC_DISPATCH(BackwardFinish)(args); }

}  // namespace multihead::kernels
#endif  // HWY_ONCE
