// Scores of one key block in place, [key][query] with queries in lanes: score terms, masks, maximum,
// exponential, dropout. Everything is vertical: a lane is a query.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORES_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORES_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "multihead/kernels/attention/block/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The part of key block [k0, k1) that each group of 16 queries needs: keys [need_begin, need_end), of which
// [free_begin, free_end) are seen by all 16.
struct BlockRange {
  int k0 = 0, k1 = 0;
  int need_begin[kTileGroups], need_end[kTileGroups];
  int free_begin[kTileGroups], free_end[kTileGroups];
  int full_begin = 0, full_end = 0;  // rows that every query of the tile sees
  bool full() const { return full_begin == k0 && full_end == k1; }
};

HWY_INLINE BlockRange MakeBlockRange(const RowTile& t, int k0, int k1) {
  BlockRange r;
  r.k0 = k0, r.k1 = k1;
  for (int g = 0; g < t.groups; ++g) {
    r.need_begin[g] = std::clamp(t.lo_min[g], k0, k1);
    r.need_end[g] = std::clamp(t.hi_max[g], r.need_begin[g], k1);
    r.free_begin[g] = std::clamp(t.lo_max[g], r.need_begin[g], r.need_end[g]);
    r.free_end[g] = std::clamp(t.hi_min[g], r.free_begin[g], r.need_end[g]);
  }
  r.full_begin = std::clamp(t.full_begin, k0, k1);
  r.full_end = std::clamp(t.full_end, r.full_begin, k1);
  if (r.full_begin == r.full_end) r.full_begin = r.full_end = k0;
  return r;
}

// Keys [k0, k1) of a run, which only its groups need.
HWY_INLINE BlockRange MakeBlockRange(const RowTile& t, const KeyRun& run, int k0, int k1) {
  BlockRange r = MakeBlockRange(t, k0, k1);
  if (run.groups == kAllGroups) return r;
  r.full_begin = r.full_end = k0;
  for (int g = 0; g < t.groups; ++g) {
    if (!(run.groups >> g & 1)) r.need_begin[g] = r.need_end[g] = r.free_begin[g] = r.free_end[g] = k0;
  }
  return r;
}

// Rows that one register tile takes: the grain at which partial blocks trim the keys of a row.
HWY_INLINE int RowStep(int64_t columns) {
  if (columns >= 64 || kMaxVecs < 4) return 6;
  return columns >= 32 ? 8 : 16;
}

struct KeyRange {
  int begin, end;
};

// The keys of a block that any of `count` rows from `row` on sees; empty if there are none.
HWY_INLINE KeyRange KeysOfRows(const RowTile& t, const BlockRange& r, int row, int count) {
  if (r.full()) return {r.k0, r.k1};
  int lo = r.k1, hi = r.k0;
  for (int i = row; i < row + count; ++i) lo = std::min(lo, t.lo[i]), hi = std::max(hi, t.hi[i]);
  lo = std::max(lo, r.k0);
  return {lo, std::max(lo, std::min(hi, r.k1))};
}

// Contiguous groups [first, last) that need any key of [a, e).
HWY_INLINE void NeededGroups(const RowTile& t, const BlockRange& r, int a, int e, int* first, int* last) {
  *first = t.groups, *last = 0;
  for (int g = 0; g < t.groups; ++g) {
    if (r.need_begin[g] < e && r.need_end[g] > a && r.need_begin[g] < r.need_end[g]) {
      *first = std::min(*first, g);
      *last = g + 1;
    }
  }
}

// Keys [k, end) and the groups [first, last) that need them; `full` where every query sees every key.
struct NeededPart {
  int k, end, first, last;
  bool full;
};
// From part.end on; false where no key is left that any group needs.
HWY_INLINE bool NextNeeded(const RowTile& t, const BlockRange& r, NeededPart& part) {
  while (part.end < r.k1) {
    const int k = part.end;
    const bool full = k == r.full_begin && k < r.full_end;
    const int stop = k < r.full_begin ? r.full_begin : r.k1;
    part = {k, full ? r.full_end : std::min(stop, k / kGroupRows * kGroupRows + kGroupRows), 0, t.groups,
            full};
    if (!full) NeededGroups(t, r, k, part.end, &part.first, &part.last);
    if (part.first < part.last) return true;
  }
  return false;
}

// Calls f(row, count, keys) for as many rows at a time as share the keys that a product runs over.
template <class Body>
HWY_INLINE void EachRowStep(const RowTile& t, const BlockRange& r, int64_t columns, const Body& f) {
  const int step = r.full() ? t.rows : RowStep(columns);
  for (int row = 0; row < t.rows; row += step) {
    const int count = std::min(step, t.rows - row);
    f(row, count, KeysOfRows(t, r, row, count));
  }
}

// Lanes of vector at `lane` that may see key k.
HWY_INLINE hn::Mask<F> Visible(const RowTile& t, int lane, int k) {
  const I di;
  const VecI key = hn::Set(di, k);
  const auto before = hn::Lt(key, hn::Load(di, t.lo + lane)), below = hn::Lt(key, hn::Load(di, t.hi + lane));
  return hn::RebindMask(F(), hn::AndNot(before, below));
}

// Masks the rows outside [full_begin, full_end) by the intervals and adds them to the maximum.
HWY_NOINLINE inline void MaskRows(const RowTile& t, const BlockRange& r, float* s, float* max) {
  const F d;
  const Vec none = hn::Set(d, -kInfinity);
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    Vec top = hn::LoadU(d, max + lane);
    const auto rows = [&](int a, int e) HWY_ATTR {
      a = std::max(a, r.need_begin[g]), e = std::min(e, r.need_end[g]);
      float* row = s + (a - r.k0) * kTileRows + lane;
      for (int k = a; k < e; ++k, row += kTileRows) {
        Vec x = hn::LoadU(d, row);
        if (k < r.free_begin[g] || k >= r.free_end[g]) {
          x = hn::IfThenElse(Visible(t, lane, k), x, none);
          hn::StoreU(x, d, row);
        }
        top = hn::Max(top, x);
      }
    };
    rows(r.k0, r.full_begin);
    rows(r.full_end, r.k1);
    hn::StoreU(top, d, max + lane);
  }
}

// Sums of probabilities are chains of 16 keys at absolute positions, added in order: all of their terms are
// positive, so that the error of one long chain would grow with its length.
inline constexpr int kSumChain = 16;
HWY_INLINE int SumChainEnd(int key) { return key / kSumChain * kSumChain + kSumChain; }

// One key: s <- 2^(s - max), added to `chain`; e^(s - max) for natural scores (those that went through score
// terms), of which large ones are spared a rounding.
template <int NV, bool kNatural>
HWY_INLINE void ExpRow(float* s, const Vec (&max)[NV], Vec (&chain)[NV]) {
  const F d;
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    const Vec x = hn::Sub(hn::LoadU(d, s + j * kN), max[j]);
    const Vec p = kNatural ? Exp(d, x) : Exp2(d, x);
    hn::StoreU(p, d, s + j * kN);
    chain[j] = hn::Add(chain[j], p);
  }
}

// Keys [k0, k1), which begin or end within a chain only where the rest of it is not read.
template <int NV, bool kNatural>
HWY_INLINE void ExpRows(float* s, int k0, int k1, const float* max, float* sum) {
  const F d;
  Vec m[NV], total[NV];
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    m[j] = hn::LoadU(d, max + j * kN);
    total[j] = hn::LoadU(d, sum + j * kN);
  }
  for (int k = k0; k < k1;) {
    Vec chain[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) chain[j] = hn::Zero(d);
    const int end = std::min(k1, SumChainEnd(k));
    if (end - k == kSumChain) {  // a known count spares the guess when the loop ends (1.5 % on short rows)
#pragma GCC unroll 4
      for (int i = 0; i < kSumChain; ++i) ExpRow<NV, kNatural>(s + i * kTileRows, m, chain);
    } else {
      for (int i = 0; i < end - k; ++i) ExpRow<NV, kNatural>(s + i * kTileRows, m, chain);
    }
    s += (end - k) * kTileRows, k = end;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) total[j] = hn::Add(total[j], chain[j]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) hn::StoreU(total[j], d, sum + j * kN);
}

template <bool kNatural>
HWY_INLINE void ExpColumns(float* s, int k0, int k1, int columns, const float* max, float* sum) {
  int c = 0;
  for (; c + kMaxVecs * kN <= columns; c += kMaxVecs * kN) {
    ExpRows<kMaxVecs, kNatural>(s + c, k0, k1, max + c, sum + c);
  }
  for (; c < columns; c += kN) ExpRows<1, kNatural>(s + c, k0, k1, max + c, sum + c);
}

HWY_INLINE void ZeroRows(float* s, int64_t rows) {
  const F d;
  for (int64_t k = 0; k < rows; ++k, s += kTileRows) {
    for (int c = 0; c < kGroupRows; c += kN) hn::StoreU(hn::Zero(d), d, s + c);
  }
}

// The whole chains that every query sees: there all groups go together.
HWY_INLINE KeyRange WholeChains(const BlockRange& r) {
  const int a = r.full_begin == r.k0 ? r.k0 : SumChainEnd(r.full_begin - 1);
  const int e = r.full_end == r.k1 ? r.k1 : r.full_end / kSumChain * kSumChain;
  return a < e ? KeyRange{a, e} : KeyRange{r.k0, r.k0};
}

// As ExpBlock for keys [from, to), group by group.
template <bool kNatural>
HWY_INLINE void ExpPart(const RowTile& t, const BlockRange& r, int from, int to, float* s, const float* max,
                        float* sum) {
  for (int g = 0; g < t.groups; ++g) {
    const int c = g * kGroupRows;
    const int b = std::clamp(r.need_begin[g], from, to), f = std::clamp(r.need_end[g], b, to);
    ZeroRows(s + (from - r.k0) * kTileRows + c, b - from);
    ExpColumns<kNatural>(s + (b - r.k0) * kTileRows + c, b, f, kGroupRows, max + c, sum + c);
    ZeroRows(s + (f - r.k0) * kTileRows + c, to - f);
  }
}

// The sums of weights, or of their absolute values, added to `sum` in chains. Rows that a group does not need become
// zero.
HWY_NOINLINE inline void SumWeights(const RowTile& t, const BlockRange& r, bool absolute, float* s,
                                    float* sum) {
  const F d;
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    Vec total = hn::LoadU(d, sum + lane), chain = hn::Zero(d);
    for (int k = r.k0; k < r.k1; ++k) {
      float* at = s + int64_t{k - r.k0} * kTileRows + lane;
      if (k < r.need_begin[g] || k >= r.need_end[g]) {
        hn::StoreU(hn::Zero(d), d, at);
        continue;
      }
      const Vec w = hn::LoadU(d, at);
      chain = hn::Add(chain, absolute ? hn::Abs(w) : w);
      if (k + 1 < SumChainEnd(k)) continue;
      total = hn::Add(total, chain), chain = hn::Zero(d);
    }
    hn::StoreU(hn::Add(total, chain), d, sum + lane);
  }
}

// Probabilities of the block, their sums added to `sum`. Rows that a group does not need become zero.
template <bool kNatural>
HWY_INLINE void ExpBlock(const RowTile& t, const BlockRange& r, float* s, const float* max, float* sum) {
  bool equal = true;
  for (int g = 0; g < t.groups; ++g) equal = equal && r.need_begin[g] == r.k0 && r.need_end[g] == r.k1;
  if (equal) return ExpColumns<kNatural>(s, r.k0, r.k1, t.groups * kGroupRows, max, sum);
  const auto [a, e] = WholeChains(r);
  ExpPart<kNatural>(t, r, r.k0, a, s, max, sum);
  ExpColumns<kNatural>(s + (a - r.k0) * kTileRows, a, e, t.groups * kGroupRows, max, sum);
  ExpPart<kNatural>(t, r, e, r.k1, s, max, sum);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
