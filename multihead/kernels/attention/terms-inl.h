// Score terms and dropout on a block of scores [key][query], queries in lanes.

#if defined(MULTIHEAD_KERNELS_ATTENTION_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_TERMS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_TERMS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_TERMS_INL_H_
#endif

#include <cmath>

#include "multihead/kernels/attention/scores-inl.h"
#include "multihead/kernels/attention/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

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

// Transposes the bias's block [query, key] into to[key][query].
HWY_NOINLINE inline void GatherBias(const ScoreTerms& terms, const RowTile& t, const BlockRange& r,
                                    float* to) {
  const Strides4& s = terms.bias_strides;
  each_head_run(t, [&](int run, int run_count) {
    const float* base = as_floats(terms.bias) + t.b * s.batch + int64_t{t.head[run]} * s.head;
    for (int first = run; first < run + run_count;) {
      const int g = first / kGroupRows, count = std::min(run + run_count, (g + 1) * kGroupRows) - first;
      const int a = r.need_begin[g], n = r.need_end[g] - a;
      const float* from = base + int64_t{t.query[first]} * s.query + a * s.key;
      float* column = to + (a - r.k0) * kTileRows + first;
      if (s.key == 1) {
        const int rest = std::min(run + run_count - first - count, kGroupRows);  // the next group's rows
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

HWY_INLINE hn::Mask<F> Kept(const uint8_t* keep) {
  const I di;
  const hn::Rebind<uint8_t, F> d8;
  return hn::RebindMask(F(), hn::Ne(hn::PromoteTo(di, hn::LoadU(d8, keep)), hn::Zero(di)));
}

enum TermBits { kCapBit = 1, kBiasBit = 2, kRelativeBit = 4, kAlibiBit = 8, kKeepBit = 16, kAnyTerm = 31 };

// What TermRows works on.
struct TermArgs {
  const ScoreTerms* terms;
  const RowTile* tile;
  const LaneTerms* lanes;
  const float* bias;    // [key][query], or null
  const uint8_t* keep;  // [key][query], or null
  float* s;             // scores in, final scores out
  float* derivative;    // null in the forward pass
  int bits() const {
    return (terms->softcap > 0 ? kCapBit : 0) | (bias ? kBiasBit : 0) |
           (terms->relative_bias ? kRelativeBit : 0) | (terms->alibi_slopes ? kAlibiBit : 0) |
           (keep ? kKeepBit : 0);
  }
};

// Rows [begin, end) of NV vectors of queries; kTerms is what may be present (checked at run time if several).
template <int kTerms, bool kFree, int NV>
HWY_INLINE void TermVectors(const TermArgs& args, const BlockRange& r, int first, int begin, int end,
                            Vec (&top)[NV]) {
  const F d;
  const int bits = args.bits();
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
HWY_NOINLINE void TermColumns(const TermArgs& args, const BlockRange& r, float* max) {
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

// Scores -> final scores, -inf where excluded, and their maximum per lane. `derivative` is multiplied by the
// soft-cap's. The usual single terms have loops of their own (ALiBi: 8 -> 4 cycles per vector).
HWY_NOINLINE inline void TermRows(const TermArgs& args, const BlockRange& r, float* max) {
  switch (args.bits()) {
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
