// Forward attention on tiles of bf16 (engines/tile_rows-inl.h), for every option.
//
// A tile is 32 queries; a block of 256 keys is packed once for all tiles of a task. Chunk by chunk of 128 keys:
//   S = Q Kt, terms and masks;  P = 2^(S - m), l += P;  O += P V
// m is the row's largest score so far in the block, or one that is less than a power of two below (TileMaxima);
// where it grows, l and O are multiplied first. So the largest probability of a row is mostly 1, which rounding
// to bf16 leaves alone: with peaked scores the error would be a quarter larger otherwise. A row's bits depend on
// itself, its keys and their positions alone.
//
// Excluded keys are zeros of P. Values that are not finite are packed as zeros and added by plain loops, so that
// they reach only the rows that attend to them. Scores of keys and queries that are not finite are made by plain loops
// if those have several parts: Inf has no second one.

#if defined(MULTIHEAD_KERNELS_ATTENTION_PASSES_FORWARD_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_PASSES_FORWARD_TILES_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_PASSES_FORWARD_TILES_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_PASSES_FORWARD_TILES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "multihead/kernels/attention/block/output-inl.h"
#include "multihead/kernels/attention/decode/decode_tiles-inl.h"
#include "multihead/kernels/attention/engines/tile_rows-inl.h"
#include "multihead/kernels/attention/passes/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
class ForwardTiles {
 public:
  static int64_t ScratchFloats(const ForwardCall& c, int64_t tiles) {
    const Layout layout(c);
    return layout.shared + tiles * (kTileRows / kRowTile) * layout.tile;
  }

  explicit ForwardTiles(const ForwardTaskArgs& args)
      : c_(*args.call),
        task_(*args.task),
        layout_(c_),
        few_(FewOnTiles::Takes(c_, task_)),
        registers_(!few_ && c_.unit == TileUnit::amx),
        few_rows_(c_, task_, args.scratch) {
    float* at = args.scratch + layout_.few;
    const auto take = [&](int64_t floats) {
      float* first = at;
      at += floats;
      return first;
    };
    s_ = take(chunk_floats(c_.scheme.parts)), shadow_ = take(kChunkFloats), lanes_ = take(kLaneFloats);
    out_ = take(kRowTile * c_.value_columns);
    wide_ = take(layout_.wide), bias_ = take(layout_.wide);
    keep_ = reinterpret_cast<uint8_t*>(take(layout_.keep));
    key_ = reinterpret_cast<char*>(take(layout_.key)), value_ = reinterpret_cast<char*>(take(layout_.value));
    tiles_ = at;
  }

  void Run() {
    StartTiles();
    for (int64_t base = task_.key_begin / kBlock * kBlock; base < task_.key_end; base += kBlock) {
      AddBlock(base, 0, count_, false);
    }
    for (int i = 0; i < count_; ++i) FinishTile(i);
  }

  // Split-key mode: blocks [begin, end) of the task's 64 rows, each from zero to its slot.
  void RunBlocks(const ForwardPartials& partials, int64_t tile, int64_t begin, int64_t end) {
    StartTiles();
    for (int64_t slot = tile * partials.blocks + begin; begin < end; ++begin, ++slot) {
      for (int i = 0; i < count_; ++i) {
        Tile& w = TileAt(i);
        w.out = partials.out + (slot * kTileRows + i * kRowTile) * c_.value_columns;
        ResetState(w.state);
        w.first = true;
      }
      AddBlock(c_.p->first_key() + begin * kBlock, 0, count_, false);
      for (int i = 0; i < count_; ++i) {  // a block without keys is recognised by its sum
        const int64_t row = slot * kTileRows + i * kRowTile;
        std::copy_n(TileAt(i).state.max, kRowTile, partials.max + row);
        std::copy_n(TileAt(i).state.sum, kRowTile, partials.sum + row);
      }
    }
  }

  void MergeBlocks(const ForwardPartials& partials, int64_t tile, int64_t begin, int64_t end) {
    StartTiles();
    for (int i = 0; i < count_; ++i) {
      Tile& w = TileAt(i);
      for (int64_t n = begin; n < end; ++n) {
        const int64_t row = (tile * partials.blocks + n) * kTileRows + i * kRowTile;
        LaneState block;
        std::copy_n(partials.max + row, kRowTile, block.max),
            std::copy_n(partials.sum + row, kRowTile, block.sum);
        if (std::all_of(block.sum, block.sum + w.rows.rows, [](float x) { return x == 0; })) continue;
        Join(block, partials.out + row * c_.value_columns, w);
      }
      FinishTile(i);
    }
  }

 private:
  static constexpr int64_t kLaneFloats = kRowTile * 16;

  struct Tile : QueryTile {
    const char* query_rows = nullptr;  // where they lie, or a copy
  };

  static constexpr int64_t kRecordFloats = sizeof(Tile) / sizeof(float);
  static_assert(sizeof(Tile) % 64 == 0);

  // Packed keys [first, end) and their values; `first` is a multiple of 32.
  struct Block {
    int first = 0, end = 0;
    bool key_non_finite = false, value_non_finite = false;
  };

  // Keys [first, end) of a block: whole pairs of strips, of which the tile sees some of [begin, last).
  struct Part {
    int first = 0, end = 0, begin = 0, last = 0;
    TileChunk chunk;
    const uint32_t *seen = nullptr, *kept = nullptr;
  };

  // Floats of the parts of scratch memory.
  struct Layout {
    int64_t wide, keep, key, value, few, query, tile, shared;
    explicit Layout(const ForwardCall& c) {
      const int64_t columns = c.value_columns, steps = amx_steps(c.p->head_dim), parts = c.scheme.parts;
      wide = c.has_terms ? kTileChunk * kTileRows : 0;
      keep = c.has_terms || c.has_keep ? kTileChunk * kTileRows / 4 : 0;
      key = parts * kBlock * steps * kAmxStep / 2, value = parts * kBlock * columns / 2;
      query = parts * kRowTile * steps * kAmxStep / 2;
      tile = kRecordFloats + query + kRowTile * columns;
      few = FewOnTiles::Floats(c);
      shared = few + chunk_floats(c.scheme.parts) + kChunkFloats + kLaneFloats + kRowTile * columns +
               2 * wide + keep + key + value;
    }
  };

  Tile& TileAt(int i) const { return *reinterpret_cast<Tile*>(tiles_ + i * layout_.tile); }

  void StartTiles() {
    for (int64_t row = task_.row_begin; row < task_.row_end; row += kRowTile) {
      float* memory = tiles_ + count_++ * layout_.tile;
      StartTile(row, *new (memory) Tile, memory + kRecordFloats);
    }
  }

  HWY_NOINLINE void StartTile(int64_t row, Tile& w, float* memory) const {
    w.query = memory, w.out = memory + layout_.query;
    const int64_t end = std::min(task_.row_end, row + kRowTile);
    make_row_tile_again(*c_.p, c_.number, task_.b, task_.kv, row, end, w.rows);
    if (c_.has_terms) w.lanes = MakeLaneTerms(*c_.terms, w.rows);
    ResetState(w.state);
    if (c_.state.values) LoadState(c_, w);
    if (!w.rows.empty()) PlaceQueries(w);
    if (few_ && !w.rows.empty()) few_rows_.SetQueries(w.rows, w.query_rows);
  }

  // Rows of a whole tile that lie side by side are read there: at other distances they crowd few sets of L1.
  void PlaceQueries(Tile& w) const {
    const RowTile& t = w.rows;
    const int64_t row = amx_steps(c_.p->head_dim) * 64;
    const auto* first = static_cast<const char*>(TileRow(c_, c_.query, t, 0));
    if (c_.bf16 && t.rows == kRowTile && t.head[0] == t.head[kRowTile - 1] &&
        c_.query.strides.token * 2 == row && reinterpret_cast<uintptr_t>(first) % 64 == 0) {
      w.query_rows = first;
      return;
    }
    auto* to = reinterpret_cast<char*>(w.query);
    w.query_rows = to;
    for (int r = 0; r < t.rows; ++r, to += row) {
      const auto* from = static_cast<const char*>(TileRow(c_, c_.query, t, r));
      w.non_finite |= pack_tile_queries({from, 0, 0, 1, c_.p->head_dim, c_.bf16, c_.scheme.parts}, to,
                                        kRowTile * row, c_.unit);
    }
    for (int part = 0; part < c_.scheme.parts; ++part, to += kRowTile * row)
      std::memset(to, 0, static_cast<size_t>((t.groups * kGroupRows - t.rows) * row));
  }

  Block Stage(int begin, int end) const {
    Block block{begin / kTileStep * kTileStep, end};
    const int64_t size = c_.bf16 ? 2 : 4;
    char *key = key_, *value = value_;
    for (int k = block.first; k < end; k += kTileStep) {
      const auto of = [&](const Operand& x, int64_t dim) {
        const auto* rows = static_cast<const char*>(KeyRow(c_, x, task_.b, task_.kv, k));
        return TileSource{
            rows,    x.strides.token * size, std::max(begin - k, 0), std::min(end - k, kTileStep), dim,
            c_.bf16, c_.scheme.parts};
      };
      block.key_non_finite |= pack_tile_keys(of(c_.key, c_.p->head_dim), key, c_.unit);
      block.value_non_finite |= pack_tile_values(of(c_.value, c_.p->value_dim), value, c_.unit);
      key += kTileStep * KeyBytes(), value += kTileStep * ValueBytes();
    }
    return block;
  }

  // Bytes of a packed key, and of a value.
  int64_t KeyBytes() const { return 2 * c_.scheme.parts * kAmxStep * amx_steps(c_.p->head_dim); }
  int64_t ValueBytes() const { return 2 * c_.scheme.parts * c_.value_columns; }

  // Key block [base, base + 256) into tiles. `safe`: a bias of -inf excludes even where the score is NaN.
  void AddBlock(int64_t base, int first, int last, bool safe) {
    const int begin = static_cast<int>(std::max(base, task_.key_begin));
    const int end = static_cast<int>(std::min<int64_t>(base + kBlock, task_.key_end));
    if (begin >= end) return;
    if (few_ && !safe && AddFew(std::max(begin, TileAt(0).rows.begin), std::min(end, TileAt(0).rows.end)))
      return;
    const AmxRegisters registers(few_ && c_.unit == TileUnit::amx);
    const Block block = Stage(begin, end);
    for (int i = first; i < last; ++i) {
      Tile& w = TileAt(i);
      const int k0 = std::max(begin, w.rows.begin), k1 = std::min(end, w.rows.end);
      if (k0 >= k1) continue;
      if (k1 == w.rows.end) PrefetchOutput(c_, w.rows);
      AddKeys(k0, k1, block, safe, w);
    }
  }

  // False if that has to be done with tiles.
  bool AddFew(int k0, int k1) {
    if (k0 >= k1) return true;
    Tile& w = TileAt(0);
    LaneState state;
    float* out = w.first ? w.out : out_;
    if (!few_rows_.Block(w.rows, k0, k1, state, out)) return false;
    Join(state, out, w);
    return true;
  }

  void AddKeys(int k0, int k1, const Block& block, bool safe, Tile& w) {
    LaneState state;
    ResetState(state);
    std::fill_n(lanes_, kLaneFloats, 0.0f);
    float* out = w.first ? w.out : out_;
    const Part keys{k0 / kTileStep * kTileStep, (k1 + kTileStep - 1) / kTileStep * kTileStep, k0, k1, {}};
    bool any = false;
    EachChunk(keys, w, [&](const Part& part) { any |= AddPart(part, block, safe, w, state, any, out); });
    if (!any) return;
    tile_sums(lanes_, w.rows.groups, state.sum);
    Join(state, out, w);
  }

  // out · alpha + block · beta is the tile's from then on, unless it was made there.
  void Join(const LaneState& block, const float* out, Tile& w) const {
    alignas(64) float alpha[kTileRows], beta[kTileRows];
    const bool first = w.first;
    if (first) {
      w.state = block;
    } else {
      MergeState(w.rows.groups * kGroupRows, c_.has_terms, w.state, block, alpha, beta);
    }
    if (out != w.out) MergeRows(w.rows, c_.value_columns, out, first, alpha, beta, w.out);
    w.first = false;
  }

  // Calls f for every chunk of the keys, with its masks, of which something may be seen.
  template <class Body>
  void EachChunk(const Part& keys, const Tile& w, const Body& f) {
    for (int first = keys.first; first < keys.end;) {
      Part part{first, std::min(keys.end, (first / kTileChunk + 1) * kTileChunk), 0, 0, {}};
      part.begin = std::max(part.first, keys.begin), part.last = std::min(part.end, keys.last);
      part.chunk = {s_, (part.end - part.first) / kTileStep, w.rows.groups};
      first = part.end;
      if (Mask(w.rows, part)) f(part);
    }
  }

  // False if nothing of the part is seen. With terms, dense masks and mask functions are theirs.
  bool Mask(const RowTile& t, Part& part) {
    BlockClass mask = BlockClass::full;
    if (!c_.has_terms && c_.has_keep) mask = mask_class(*c_.p, t, part.begin, part.last);
    if (mask == BlockClass::empty) return false;
    if (mask == BlockClass::partial && !fill_keep(*c_.p, t, part.begin, part.last, keep_)) return false;
    if (mask == BlockClass::partial || t.full_begin > part.first || t.full_end < part.end) {
      tile_intervals(t.lo, t.hi, part.first, part.chunk, seen_);
      part.seen = seen_;
    }
    if (mask == BlockClass::partial) {
      tile_flags(keep_, kTileRows, part.begin - part.first, part.last - part.first, part.chunk, seen_);
    }
    if (c_.p->dropout_p > 0) MaskDropout(t, part);
    return true;
  }

  void MaskDropout(const RowTile& t, Part& part) {
    alignas(64) uint32_t rows[kTileChunk] = {};
    if (c_.p->dropout_p < 1) {
      EachDropout(*c_.p, t, MakeBlockRange(t, part.begin, part.last),
                  [&](int k, int lane, hn::Mask<F> kept)
                      HWY_ATTR { rows[k - part.first] |= uint32_t{kept.raw} << lane; });
    }
    for (int b = 0; b < part.chunk.pairs; ++b) transpose_bits(rows + b * kTileStep, kept_ + b * kRowTile);
    part.kept = kept_;
  }

  void ScoresOf(const Part& part, const Block& block, const Tile& w) const {
    tile_scores(part.chunk,
                {w.query_rows, key_ + (part.first - block.first) * KeyBytes(), amx_steps(c_.p->head_dim),
                 c_.scheme.parts},
                c_.unit);
    if (block.key_non_finite || w.non_finite) NonFiniteScores(part, w.rows);
  }

  // Scores of keys and queries with numbers that are not finite.
  HWY_NOINLINE void NonFiniteScores(const Part& part, const RowTile& t) const {
    const int64_t dim = c_.p->head_dim;
    const auto finite = [&](const float* row) {
      return std::all_of(row, row + dim, [](float x) { return std::isfinite(x); });
    };
    for (int row = 0; row < t.rows; ++row) {
      const float* query = as_floats(TileRow(c_, c_.query, t, row));
      const bool row_finite = finite(query);
      for (int k = part.begin; k < part.last; ++k) {
        const float* key = as_floats(KeyRow(c_, c_.key, t.b, t.kv, k));
        if (row_finite && finite(key)) continue;
        float sum = 0;
        for (int64_t i = 0; i < dim; ++i) sum += query[i] * key[i];
        part.chunk.s[PlaceOf(row, k - part.first)] = sum;
      }
    }
  }

  // Where a chunk has the score of a row and a key.
  static int64_t PlaceOf(int row, int key) {
    return key / kTileStep * kPairFloats + row / kGroupRows * 512 + row % kGroupRows * 16 +
           key % kTileStep / 16 * 256 + key % 16;
  }

  // Adds the part's exponentials and their product with the values. False if no row sees any of it.
  bool AddPart(const Part& part, const Block& block, bool safe, const Tile& w, LaneState& state, bool add,
               float* out) {
    alignas(64) float top[kTileRows];
    std::fill_n(top, kTileRows, -kInfinity);
    ScoresOf(part, block, w);
    if (!c_.has_terms) {
      tile_maxima(part.chunk, ScoreScale(c_), part.seen, top);
    } else if (!TermsOf(part, safe, w, top)) {
      return false;
    }
    TileMaxima maxima;
    const float factor = c_.has_terms ? kLog2e : ScoreScale(c_);
    uint32_t grown = maxima.Raise(w.rows.groups * kGroupRows, c_.has_terms, factor, top, state.max);
    for (; grown != 0; grown &= grown - 1) {
      maxima.Apply(std::countr_zero(grown), lanes_, c_.value_columns, out);
    }
    const int64_t columns = c_.value_columns;
    if (block.value_non_finite) std::copy_n(part.chunk.s, part.chunk.pairs * kPairFloats, shadow_);
    for (uint32_t large = maxima.large; large != 0; large &= large - 1)
      tile_scale_row(part.chunk, std::countr_zero(large), factor);
    const int parts = c_.scheme.parts;
    tile_softmax(part.chunk, {c_.has_terms, maxima.factor, maxima.shift, part.seen, part.kept, lanes_, parts},
                 c_.unit);
    const char* values = value_ + (part.first - block.first) * ValueBytes();
    tile_values(part.chunk, {values, columns / kAmxStep, out, columns, add, parts}, c_.unit);
    if (block.value_non_finite) AddNonFinite(part, w, out);
    return true;
  }

  // out[row][:] += probability · value where the value is not finite and the row sees its key.
  void AddNonFinite(const Part& part, const Tile& w, float* out) const {
    const auto* p = reinterpret_cast<const uint16_t*>(part.chunk.s);
    for (int k = part.begin; k < part.last; ++k) {
      const void* value = KeyRow(c_, c_.value, task_.b, task_.kv, k);
      const int pair = (k - part.first) / kTileStep, i = (k - part.first) % kTileStep;
      for (int64_t column = 0; column < c_.p->value_dim; ++column) {
        const float v = ElementOf(value, column, c_.bf16);
        if (std::isfinite(v)) continue;
        for (int row = 0; row < w.rows.rows; ++row) {
          const bool seen = part.seen == nullptr || (part.seen[pair * kRowTile + row] >> i & 1) != 0;
          if (!seen || shadow_[PlaceOf(row, k - part.first)] == -kInfinity) continue;
          out[row * c_.value_columns + column] += Wide(p[2 * PlaceOf(row, pair * kTileStep) + i]) * v;
        }
      }
    }
  }

  // Scores -> final scores, -inf where dense masks or biases exclude them, and their maximum. False if nothing
  // is seen.
  bool TermsOf(const Part& part, bool safe, const Tile& w, float* max) {
    const RowTile& t = w.rows;
    const ScoreTerms& terms = *c_.terms;
    const BlockRange r = MakeBlockRange(t, part.begin, part.last);
    BlockClass mask = BlockClass::full;
    if (c_.has_keep) mask = mask_class(*c_.p, t, part.begin, part.last);
    if (mask == BlockClass::empty) return false;
    if (mask == BlockClass::partial && !fill_keep(*c_.p, t, part.begin, part.last, keep_)) return false;
    const uint8_t* keep = mask == BlockClass::partial ? keep_ : nullptr;
    const float* bias = terms.bias ? bias_ : nullptr;
    if (bias) GatherBias(terms, t, r, bias_);
    if (bias && safe) {
      const int count = (r.k1 - r.k0) * kTileRows;
      if (keep == nullptr) std::fill_n(keep_, count, uint8_t{1}), keep = keep_;
      for (int i = 0; i < count; ++i) keep_[i] &= bias[i] != -kInfinity;
    }
    tile_scores_to_lanes(part.chunk, ScoreScale(c_), wide_, kTileRows);
    float* s = wide_ + int64_t{part.begin - part.first} * kTileRows;
    if (terms.score_function) ApplyScoreFunction(terms.score_function, t, r, s, nullptr);
    TermRows({&terms, &t, &w.lanes, bias, keep, s, nullptr}, r, max);
    tile_scores_from_lanes(part.chunk, wide_, kTileRows);
    return true;
  }

  bool Write(Tile& w) const {
    if (w.first) std::fill_n(w.out, w.rows.rows * c_.value_columns, 0.0f);
    if (!c_.bf16) return WriteTile(c_, w.rows, w.state, w.out);
    alignas(64) float factors[kTileRows];
    void* rows[kRowTile];
    RowFactors(c_, w.rows, w.state, w.out, factors);
    const Strides3& strides = c_.out.strides;
    const int64_t start = w.rows.b * strides.batch + c_.p->query_begin(w.rows.b) * strides.token;
    for (int r = 0; r < w.rows.rows; ++r) {
      rows[r] =
          At(c_.out.data, start + w.rows.head[r] * strides.head + w.rows.query[r] * strides.token, true);
    }
    return write_tile_rows({w.out, c_.value_columns, c_.p->value_dim, factors, rows, w.rows.rows}, c_.unit);
  }

  // Writes a tile; if it is not finite although a bias may have excluded something, computes it again safely.
  // Says so if it stays that way.
  HWY_NOINLINE void FinishTile(int number) {
    Tile& w = TileAt(number);
    if (c_.state.values && !c_.out) return StoreState(c_, w);
    bool finite = Write(w);
    if (!finite && c_.terms->bias && !c_.state.values) {
      ResetState(w.state);
      w.first = true;
      for (int64_t base = w.rows.begin / kBlock * kBlock; base < w.rows.end; base += kBlock) {
        AddBlock(base, number, number + 1, true);
      }
      finite = Write(w);
    }
    if (!finite) c_.not_finite->store(true, std::memory_order_relaxed);
  }

  const ForwardCall& c_;
  const AttentionTask& task_;
  const Layout layout_;
  const FlushedSubnormals flushed_;
  const bool few_;
  const AmxRegisters registers_;
  float *s_, *shadow_, *lanes_, *out_, *wide_, *bias_, *tiles_;
  uint8_t* keep_;
  char *key_, *value_;
  FewOnTiles few_rows_;
  int count_ = 0;
  alignas(64) uint32_t seen_[kChunkPairs * kRowTile], kept_[kChunkPairs * kRowTile];
};
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
