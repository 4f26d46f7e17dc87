// Fused forward attention, written once over an engine, which makes the two products.
//
// A tile is 64 queries of one head, one per lane. Per key block of 256 (at absolute positions):
//   S[k][q] = K · Qᵀ        scaled by log2(e) as well
//   m[q] = max_k S; P = 2^(S - m); l[q] = Σ_k P        vertical, m relative to this block alone
//   O[q][:] = O · 2^(m_old - m_new) + 2^(m_block - m_new) · Σ_k P[k][q] V[k][:]
// A block's part starts from zero and is merged in order, so that whole prefills, chunks, single tokens and
// splits over keys do the same arithmetic. Excluded keys contribute exact zeros, so leaving them out changes
// no bit: blocks that no query sees are skipped, diagonal blocks drop groups of 16 queries.
//
// Zero times NaN is NaN: if a tile's output is not finite and anything was masked, the tile is done again
// without touching the values of excluded keys. Finite outputs prove that nothing leaked, so the check is
// free.
#include "multihead/kernels/attention/block/forward_call-inl.h"

#include <algorithm>

#include "multihead/kernels/attention/tile_height-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/attention/passes/forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if HWY_TARGET == HWY_SCALAR  // without vectors the specification itself runs: attention.cc never comes here
namespace multihead::kernels::HWY_NAMESPACE {
void ForwardTask(const ForwardTaskArgs&) {}
void ForwardPartial(const ForwardTaskArgs&) {}
void ForwardMerge(const ForwardTaskArgs&) {}
int64_t ForwardScratch(const ForwardCall&, int64_t) { return 0; }
}  // namespace multihead::kernels::HWY_NAMESPACE
#else
#include "hwy/contrib/math/math-inl.h"
#include "multihead/kernels/attention/block/output-inl.h"
#include "multihead/kernels/attention/decode/decode-inl.h"
#include "multihead/kernels/attention/engines/engine-inl.h"
#include "multihead/kernels/attention/passes/forward_tiles-inl.h"
#include "multihead/kernels/attention/passes/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

// Takes over a block's maxima and sums: out · alpha + block's part · beta is the tile's from then on.
void JoinState(const LaneState& block, bool has_terms, float* alpha, float* beta, QueryTile& w) {
  if (w.first) {  // the same as merging with nothing
    w.state = block;
  } else {
    MergeState(w.rows.groups * kGroupRows, has_terms, w.state, block, alpha, beta);
  }
}

// Key block [base, base + kBlock) clipped to what a tile sees.
bool ClipBlock(const RowTile& t, int64_t base, int* k0, int* k1) {
  *k0 = static_cast<int>(std::max<int64_t>(base, t.begin));
  *k1 = static_cast<int>(std::min<int64_t>(base + kBlock, t.end));
  return *k0 < *k1;
}

// A task on an engine, in this scratch memory: buffers of a block, the engine's, then packed queries and
// output tile after tile.
template <class E>
class Forward {
 public:
  static int64_t ScratchFloats(const ForwardCall& c, int64_t tiles) {
    return kBufferFloats + E::StageFloats(c) + tiles * TileFloats(c);
  }

  explicit Forward(const ForwardTaskArgs& args)
      : c_(*args.call),
        task_(*args.task),
        next_(args.next),
        engine_(c_, args.scratch + kBufferFloats),
        tiles_(args.scratch + kBufferFloats + E::StageFloats(c_)) {
    constexpr int64_t kFloats = int64_t{kBlock} * kTileRows;
    buffers_.s = args.scratch;
    buffers_.bias = buffers_.s + kFloats;
    buffers_.shadow = buffers_.bias + kFloats;
    buffers_.keep = reinterpret_cast<uint8_t*>(buffers_.shadow + kFloats);
  }

  void Run() {
    if (E::kSkipsKeys && !c_.terms->relative_value) height_ = tile_height(*c_.p, task_);
    const int64_t tiles =
        (task_.row_end - task_.row_begin + kTileRows - 1) / kTileRows;  // that memory is for
    for (int64_t row = task_.row_begin; row < task_.row_end; row += tiles * height_) {
      RunTiles(row, std::min(task_.row_end, row + tiles * height_));
    }
  }

  // Split-key mode: blocks [begin, end) of the only tile, each from zero to its slot.
  void RunBlocks(const ForwardPartials& partials, int64_t tile, int64_t begin, int64_t end) {
    QueryTile w;
    StartTile(task_.row_begin, tiles_, w);
    for (int64_t slot = tile * partials.blocks + begin; begin < end; ++begin, ++slot) {
      w.out = partials.out + slot * kTileRows * c_.value_columns;
      ResetState(w.state);
      w.first = true;
      AddBlock(c_.p->first_key() + begin * kBlock, &w, 1, false);
      // A block without keys is recognised by its sum, one of weights by its maximum.
      std::copy_n(w.state.max, kTileRows, partials.max + slot * kTileRows);
      std::copy_n(w.state.sum, kTileRows, partials.sum + slot * kTileRows);
    }
  }

  void MergeBlocks(const ForwardPartials& partials, int64_t tile, int64_t begin, int64_t end) {
    QueryTile w;
    StartTile(task_.row_begin, tiles_, w);
    for (int64_t slot = tile * partials.blocks + begin; begin < end; ++begin, ++slot) {
      LaneState block;
      std::copy_n(partials.max + slot * kTileRows, kTileRows, block.max);
      std::copy_n(partials.sum + slot * kTileRows, kTileRows, block.sum);
      // Weights may add up to 0.
      if (c_.terms->weights()
              ? std::all_of(block.max, block.max + w.rows.rows, [](float x) { return x == -kInfinity; })
              : std::all_of(block.sum, block.sum + w.rows.rows, [](float x) { return x == 0; }))
        continue;
      alignas(64) float alpha[kTileRows], beta[kTileRows];
      MergeState(w.rows.groups * kGroupRows, c_.has_terms, w.state, block, alpha, beta);
      MergeRows(w.rows, c_.value_columns, partials.out + slot * kTileRows * c_.value_columns, w.first, alpha,
                beta, w.out);
      w.first = false;
    }
    FinishTile(w);
  }

 private:
  static constexpr int64_t kBufferFloats = int64_t{kBlock} * kTileRows * 13 / 4;  // three, and one of bytes

  static int64_t TileFloats(const ForwardCall& c) { return E::QueryFloats(c) + kTileRows * c.value_columns; }

  // Rows [begin, end) of the task, as many tiles at most as there is memory for.
  void RunTiles(int64_t begin, int64_t end) {
    QueryTile tiles[kMostTiles];
    int count = 0;
    for (int64_t row = begin; row < end; row += height_) {
      StartTile(row, tiles_ + count * TileFloats(c_), tiles[count]);
      ++count;
    }
    for (int64_t base = task_.key_begin / kBlock * kBlock; base < task_.key_end; base += kBlock) {
      AddBlock(base, tiles, count, false);
    }
    for (int i = 0; i < count; ++i) FinishTile(tiles[i]);
  }

  HWY_NOINLINE void StartTile(int64_t row, float* memory, QueryTile& w) {
    w.query = memory;
    w.out = memory + E::QueryFloats(c_);
    const int64_t end = std::min(task_.row_end, row + height_);
    make_row_tile_again(*c_.p, c_.number, task_.b, task_.kv, row, end, w.rows);
    if (c_.has_terms || c_.has_keep) w.lanes = MakeLaneTerms(*c_.terms, w.rows);
    ResetState(w.state);
    w.first = true;
    if (c_.state.values) LoadState(c_, w);
    if (!w.rows.empty()) engine_.PackQueries(w, buffers_.s);
  }

  // Key block [base, base + kBlock) into tiles, which share its staged rows. `safe`: nothing excluded is
  // touched.
  void AddBlock(int64_t base, QueryTile* tiles, int count, bool safe) {
    int k0, k1;
    if constexpr (E::kDecodes) {
      if (count == 1 && !safe && DecodesFew(c_, tiles[0].rows)) {
        if (ClipBlock(tiles[0].rows, base, &k0, &k1)) AddFewKeys(k0, k1, tiles[0]);
        return;
      }
    }
    // The hull of the task is staged.
    const int begin = static_cast<int>(std::max(base, task_.key_begin));
    const int end = static_cast<int>(std::min<int64_t>(base + kBlock, task_.key_end));
    if (begin >= end) return;
    // What nobody sees is not staged either. Bands of relative values take all.
    const bool skips = E::kSkipsKeys && c_.has_keep && !safe && !c_.terms->relative_value;
    bool staged = !skips;
    typename E::Block block;
    if (staged) block = engine_.Stage(task_, begin, end);
    BlockPlace place{&task_, next_};
    for (; place.tile < count; ++place.tile) {
      QueryTile& w = tiles[place.tile];
      if (!ClipBlock(w.rows, base, &k0, &k1)) continue;
      if (base + kBlock >= w.rows.end) PrefetchOutput(c_, w.rows);
      place.k0 = k0;
      if constexpr (E::kSkipsKeys) {
        KeyRuns runs;
        if (skips) runs = seen_keys(*c_.p, w.rows, k0, k1, true, buffers_.keep);
        if (skips && runs.count == 0) continue;
        if (!staged) block = engine_.Stage(task_, begin, end);
        staged = true;
        if (skips && !runs.all()) {
          AddRuns(runs, block, place, w);
          continue;
        }
      }
      AddKeys(MakeBlockRange(w.rows, k0, k1), block, place, safe, w);
      ++place.turn;
    }
  }

  // AddKeys for the keys of a block that a tile sees by dense mask and mask function.
  HWY_NOINLINE void AddRuns(const KeyRuns& runs, const typename E::Block& block, const BlockPlace& place,
                            QueryTile& w) {
    LaneState state;
    ResetState(state);
    RunScores(c_, engine_, w, runs, block, place, buffers_, state.max);
    ForgetMaximum(*c_.terms, state);
    alignas(64) float alpha[kTileRows], beta[kTileRows];
    const int lanes = w.rows.groups * kGroupRows;
    if (!w.first) MergeMax(lanes, c_.has_terms, w.state, state, alpha, beta);
    engine_.RunValues(w, runs, block, buffers_, alpha, beta, state);
    if (w.first) {
      w.state = state;
    } else {
      MergeSum(lanes, w.state, state, alpha, beta);
    }
    w.first = false;
  }

  HWY_INLINE void AddKeys(const BlockRange& r, const typename E::Block& block, const BlockPlace& place,
                          bool safe, QueryTile& w) {
    BlockBuffers buffers = buffers_;
    buffers.s += r.k0 % E::kKeyStep * kTileRows;
    safe = safe || engine_.HasNonFinite(w, block);
    LaneState state;
    if (!BlockProbabilities(c_, engine_, w, r, block, place, safe, buffers, state)) return;
    if constexpr (E::kMakesExponentials) {
      if (!safe) return AddScores(r, block, place, buffers, state, w);
    }
    alignas(64) float alpha[kTileRows], beta[kTileRows];
    JoinState(state, c_.has_terms, alpha, beta, w);
    engine_.Values(w, r, block, place, safe, buffers, alpha, beta);
    w.first = false;
  }

  // AddKeys from the scores on: the factors come from the maxima alone.
  HWY_INLINE void AddScores(const BlockRange& r, const typename E::Block& block, const BlockPlace& place,
                            const BlockBuffers& buffers, LaneState& state, QueryTile& w) {
    alignas(64) float alpha[kTileRows], beta[kTileRows];
    const int lanes = w.rows.groups * kGroupRows;
    if (!w.first) MergeMax(lanes, c_.has_terms, w.state, state, alpha, beta);
    engine_.ScoreValues(w, r, block, place, buffers, alpha, beta, state);
    if (w.first) {
      w.state = state;
    } else {
      MergeSum(lanes, w.state, state, alpha, beta);
    }
    w.first = false;
  }

  // As AddKeys for a tile of few rows.
  void AddFewKeys(int k0, int k1, QueryTile& w) {
    const BlockRange r = MakeBlockRange(w.rows, k0, k1);
    LaneState block;
    float* sum = buffers_.bias;  // free: there are no terms
    FewBlock(engine_, c_, w.rows, r, w.query, buffers_, block, sum);
    alignas(64) float alpha[kTileRows], beta[kTileRows];
    JoinState(block, false, alpha, beta, w);
    MergeRows(w.rows, c_.value_columns, sum, w.first, alpha, beta, w.out);
    w.first = false;
  }

  bool Write(QueryTile& w) {
    if (w.first) std::fill_n(w.out, w.rows.rows * c_.value_columns, 0.0f);
    return WriteTile(c_, w.rows, w.state, w.out);
  }

  // Writes a tile; if it is not finite although something was excluded, computes it again safely. Says so if
  // it stays that way.
  HWY_NOINLINE void FinishTile(QueryTile& w) {
    const RowTile& t = w.rows;
    if (c_.state.values && !c_.out) return StoreState(c_, w);
    bool finite = Write(w);
    const bool masked = c_.has_keep || c_.terms->bias || t.full_begin > t.begin || t.full_end < t.end;
    if (!finite && masked && !c_.state.values) {
      ResetState(w.state);
      w.first = true;
      for (int64_t base = t.begin / kBlock * kBlock; base < t.end; base += kBlock) {
        AddBlock(base, &w, 1, true);
      }
      finite = Write(w);
    }
    if (!finite) c_.not_finite->store(true, std::memory_order_relaxed);
  }

  const ForwardCall& c_;
  const AttentionTask& task_;
  const AttentionTask* next_;
  BlockBuffers buffers_;
  E engine_;
  float* tiles_;
  int64_t height_ = kTileRows;  // rows of a tile
};

// f(std::type_identity<P>()) for the type P of the pass.
template <class Body>
auto WithPass(const ForwardCall& c, const Body& f) {
#if HWY_TARGET == HWY_AVX3
  if (c.on_tiles()) return f(std::type_identity<ForwardTiles>());
#endif
  return WithEngine(c.engine, [&](auto engine) {
    return f(std::type_identity<Forward<typename decltype(engine)::type> >());
  });
}

void ForwardTask(const ForwardTaskArgs& a) {
  WithPass(*a.call, [&](auto pass) { typename decltype(pass)::type(a).Run(); });
}

void ForwardPartial(const ForwardTaskArgs& a) {
  WithPass(*a.call, [&](auto pass) {
    typename decltype(pass)::type(a).RunBlocks(*a.partials, a.tile, a.block_begin, a.block_end);
  });
}

void ForwardMerge(const ForwardTaskArgs& a) {
  WithPass(*a.call, [&](auto pass) {
    typename decltype(pass)::type(a).MergeBlocks(*a.partials, a.tile, a.block_begin, a.block_end);
  });
}

int64_t ForwardScratch(const ForwardCall& c, int64_t tiles) {
  return WithPass(c, [&](auto pass) { return decltype(pass)::type::ScratchFloats(c, tiles); });
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_SCALAR

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(ForwardTask);
HWY_EXPORT(ForwardPartial);
HWY_EXPORT(ForwardMerge);
HWY_EXPORT(ForwardScratch);

void forward_task(const ForwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(ForwardTask)(args); }
void forward_partial(const ForwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(ForwardPartial)(args); }
void forward_merge(const ForwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(ForwardMerge)(args); }
int64_t forward_scratch(const ForwardCall& call, int64_t tiles) {
  return HWY_DYNAMIC_DISPATCH(ForwardScratch)(call, tiles);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
