// Score terms and dropout on a block of scores [key][query], queries in lanes.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_TERMS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_TERMS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_TERMS_INL_H_
#endif

#include <cmath>

#include "multihead/kernels/attention/block/scores-inl.h"
#include "multihead/kernels/attention/block/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// The user's function on every head's part of the tile. `derivative` is null in the forward pass.
HWY_NOINLINE inline void ApplyScoreFunction(const ScoreFunction& f, const RowTile& t, const BlockRange& r,
                                            float* s, float* derivative) {
  each_head_run(t, [&](int first, int count) {
    const ScoreTile tile{s + first, kTileRows, t.b, t.head[first], t.query[first], count, r.k0, r.k1 - r.k0};
    if (derivative) {
      f.apply_with_derivative(f.context, tile, derivative + first);
    } else {
      f.apply(f.context, tile);
    }
  });
}

// Gradients of the function's results become those of the scores `raw`; `sums`: of what it captured.
HWY_NOINLINE inline void BackwardScoreFunction(const ScoreFunction& f, const RowTile& t, const BlockRange& r,
                                               float* raw, float* ds, float* sums) {
  each_head_run(t, [&](int first, int count) {
    const ScoreTile tile{raw + first,    kTileRows, t.b,  t.head[first],
                         t.query[first], count,     r.k0, r.k1 - r.k0};
    f.backward(f.context, tile, ds + first, sums);
  });
}

// Transposes the bias's block [query, key] into to[key][query]. In tile_steps.cc.
void GatherBias(const ScoreTerms& terms, const RowTile& t, const BlockRange& r, float* to);

// Per-lane constants of the positional terms.
struct LaneTerms {
  alignas(64) int32_t position[kTileRows];  // query + diagonal
  alignas(64) int32_t table[kTileRows];     // offset of the head's relative bias
  alignas(64) float slope[kTileRows];
  alignas(64) float place[kTileRows];  // position as a float
};

HWY_INLINE LaneTerms MakeLaneTerms(const ScoreTerms& terms, const RowTile& t) {
  LaneTerms lanes;
  const float* slopes = as_floats(terms.alibi_slopes);
  for (int r = 0; r < t.groups * kGroupRows; ++r) {
    lanes.position[r] = t.query[r] + t.diagonal;
    lanes.place[r] = static_cast<float>(lanes.position[r]);
    lanes.table[r] = static_cast<int32_t>(t.head[r] * terms.relative_stride);
    lanes.slope[r] = slopes ? slopes[t.b * terms.alibi_batch_stride + t.head[r] * terms.alibi_stride] : 0.0f;
  }
  return lanes;
}

// Index of the relative bias of lanes `lane` … for key k.
HWY_INLINE VecI RelativeIndex(const ScoreTerms& terms, const LaneTerms& lanes, int lane, int k) {
  const I di;
  const VecI at = hn::Sub(hn::Set(di, static_cast<int32_t>(k + terms.relative_center)),
                          hn::Load(di, lanes.position + lane));
  const VecI last = hn::Set(di, static_cast<int32_t>(terms.relative_span - 1));
  return hn::Add(hn::Min(hn::Max(at, hn::Zero(di)), last), hn::Load(di, lanes.table + lane));
}

// |query + diagonal - key| of a vector of queries.
HWY_INLINE Vec Distance(const LaneTerms& lanes, int lane, int k) {
  const F d;
  return hn::Abs(hn::Sub(hn::Load(d, lanes.place + lane), hn::Set(d, static_cast<float>(k))));
}

// Arguments of TermRows.
struct TermArgs {
  const ScoreTerms* terms;
  const RowTile* tile;
  const LaneTerms* lanes;
  const float* bias;    // [key][query], or null
  const uint8_t* keep;  // [key][query], or null
  float* s;             // scores in, final scores out
  float* derivative;    // null in the forward pass
};

// Scores -> final scores, -inf where excluded, and their maximum per lane. `derivative` is multiplied by the
// soft-cap's. In tile_steps.cc.
void TermRows(const TermArgs& args, const BlockRange& r, float* max);

using U = hn::RebindToUnsigned<F>;
using VecU = hn::Vec<U>;

// One round of Philox4x32 on words in the low halves of 64-bit lanes (high halves are rubbish).
HWY_INLINE void PhiloxRound(VecU& c0, VecU& c1, VecU& c2, VecU& c3, uint32_t key0, uint32_t key1) {
  const U du;
  const hn::RepartitionToWide<U> dw;
  const auto a = hn::MulEven(hn::Set(du, 0xD2511F53u), c0), b = hn::MulEven(hn::Set(du, 0xCD9E8D57u), c2);
  const VecU high_a = hn::BitCast(du, hn::ShiftRight<32>(a)), high_b = hn::BitCast(du, hn::ShiftRight<32>(b));
  c0 = hn::Xor(hn::Xor(high_b, c1), hn::Set(du, key0));
  c2 = hn::Xor(hn::Xor(high_a, c3), hn::Set(du, key1));
  c1 = hn::BitCast(du, b);
  c3 = hn::BitCast(du, a);
  static_cast<void>(dw);
}

// The four words of a vector of queries for keys [16·chunk, 16·chunk + 16).
HWY_INLINE void DropoutWords(uint64_t dropout_key, const RowTile& t, int lane, int chunk, VecU& w0, VecU& w1,
                             VecU& w2, VecU& w3) {
  const U du;
  const hn::RepartitionToWide<U> dw;
  const auto odd = [&](const int32_t* p) HWY_ATTR {
    return hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, hn::Load(I(), p))));
  };
  VecU e0 = hn::BitCast(du, hn::Load(I(), t.query + lane)), o0 = odd(t.query + lane);
  VecU e2 = hn::BitCast(du, hn::Load(I(), t.head + lane)), o2 = odd(t.head + lane);
  VecU e1 = hn::Set(du, static_cast<uint32_t>(chunk)), o1 = e1;
  VecU e3 = hn::Set(du, static_cast<uint32_t>(t.b)), o3 = e3;
  auto key0 = static_cast<uint32_t>(dropout_key), key1 = static_cast<uint32_t>(dropout_key >> 32);
  for (int round = 0; round < 10; ++round) {
    PhiloxRound(e0, e1, e2, e3, key0, key1);
    PhiloxRound(o0, o1, o2, o3, key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const auto low = hn::BitCast(du, hn::Set(dw, 0xFFFFFFFFu));
  const auto join = [&](VecU even, VecU high) HWY_ATTR {
    return hn::OrAnd(hn::BitCast(du, hn::ShiftLeft<32>(hn::BitCast(dw, high))), even, low);
  };
  w0 = join(e0, o0), w1 = join(e1, o1), w2 = join(e2, o2), w3 = join(e3, o3);
}

// Calls f(k, lane, kept) for every needed (key, vector of queries).
template <class Body>
HWY_INLINE void EachDropout(const AttentionProblem& p, const RowTile& t, const BlockRange& r, Body&& f) {
  const U du;
  const I di;
  const double threshold = std::min(std::round(p.dropout_p * 0x1p32), 0x1p32 - 1);
  const VecU flip = hn::Set(du, 0x80000000u);  // signed comparison exists on every target
  const VecI least = hn::BitCast(di, hn::Xor(flip, hn::Set(du, static_cast<uint32_t>(threshold))));
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows, begin = r.need_begin[g], end = r.need_end[g];
    for (int chunk = begin / 16; chunk * 16 < end; ++chunk) {
      VecU w0, w1, w2, w3;
      DropoutWords(p.dropout_key, t, lane, chunk, w0, w1, w2, w3);
      const auto keys = [&](VecU word, int k) HWY_ATTR {
        for (int i = 0; i < 4; ++i, ++k) {
          const auto kept = hn::Not(hn::Lt(hn::BitCast(di, hn::Xor(word, flip)), least));
          if (k >= begin && k < end) f(k, lane, hn::RebindMask(F(), kept));
          word = hn::RotateRight<8>(word);
        }
      };
      keys(w0, chunk * 16), keys(w1, chunk * 16 + 4), keys(w2, chunk * 16 + 8), keys(w3, chunk * 16 + 12);
    }
  }
}

// Probabilities of dropped elements become zero.
HWY_NOINLINE inline void DropRows(const AttentionProblem& p, const RowTile& t, const BlockRange& r,
                                  float* s) {
  const F d;
  if (p.dropout_p >= 1) {
    for (int k = r.k0; k < r.k1; ++k) std::fill_n(s + (k - r.k0) * kTileRows, kTileRows, 0.0f);
    return;
  }
  EachDropout(p, t, r, [&](int k, int lane, hn::Mask<F> kept) HWY_ATTR {
    float* at = s + (k - r.k0) * kTileRows + lane;
    hn::StoreU(hn::IfThenElseZero(kept, hn::LoadU(d, at)), d, at);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
