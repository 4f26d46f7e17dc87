// Attention of 32 queries at a time on AMX tiles of bf16, or by plain loops that follow the instructions.
//   S = Q Kt     rows of Q are rows of A as they lie, K is packed into tiles of B
//   P = 2^(S factor - shift), rounded to bf16 over S: two vectors of a row are the row of a tile of A
//   O += P V     V is packed into tiles of B
// Numbers of f32 are sums of one to three parts (amx/amx-inl.h), whose tiles lie one part after the other.
// Internal; needs AVX-512. Keys come in pairs of strips of 16 and in chunks, at absolute positions. The scores
// of a chunk are tiles [pair][strip of queries][strip of keys], 1 KB each; P takes the place of the first of
// each two, its second part that of the second, and its third lies kChunkFloats behind the first. Sums of P have 16
// lanes per row, of the keys with the same remainder, until tile_sums().
#pragma once

#include <cstdint>

#include "multihead/kernels/amx/amx-inl.h"

namespace multihead::kernels {

inline constexpr int kRowTile = 32;       // queries
inline constexpr int kTileChunk = 128;    // keys
inline constexpr int kTileStep = 32;      // keys of a pair
inline constexpr int kPairFloats = 1024;  // of its scores
inline constexpr int kChunkPairs = kTileChunk / kTileStep;
inline constexpr int kChunkFloats = kChunkPairs * kPairFloats;

/// Floats of a chunk's scores and probabilities.
constexpr int64_t chunk_floats(int parts) { return parts == 3 ? 2 * kChunkFloats : kChunkFloats; }

/// Subnormal numbers count as zero, as tiles have it, while alive.
class FlushedSubnormals {
 public:
  FlushedSubnormals();
  ~FlushedSubnormals();
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

 private:
  unsigned saved_;
};

/// Rows [first, end) of `dim` numbers, bf16 or f32; `rows` is where row 0 lies, or would.
struct TileSource {
  const char* rows = nullptr;
  int64_t stride = 0;  ///< bytes
  int first = 0, end = 0;
  int64_t dim = 0;
  bool bf16 = true;
  int parts = 1;  ///< of f32
};
/// 32 keys -> [part][step of 32 numbers][strip of keys] tiles. Numbers that are not finite stay: with several parts,
/// true if there are any.
bool pack_tile_keys(const TileSource& from, char* to, TileUnit unit);
/// 32 values -> [part][step of 32 columns][half] tiles. Numbers that are not finite become zeros: true if there are
/// any.
bool pack_tile_values(const TileSource& from, char* to, TileUnit unit);
/// Rows -> [row][steps * 32] bf16, parts `part` bytes apart. The result is pack_tile_keys()'s.
bool pack_tile_queries(const TileSource& from, char* to, int64_t part, TileUnit unit);

/// Pairs of a chunk from its first one on, and strips of queries.
struct TileChunk {
  float* s = nullptr;
  int pairs = 0, strips = 0;
};

struct TileScores {
  const char* query = nullptr;  ///< [part][32 rows][steps · 32], by pack_tile_queries()
  const char* keys = nullptr;
  int64_t steps = 0;  ///< of the head's size
  int parts = 1;
};
void tile_scores(const TileChunk& chunk, const TileScores& of, TileUnit unit);

/// The arguments of exponentials: a factor of scores and a shift per row; masks [pair][32 rows] of 32 keys, or
/// null: which ones are seen, and which of their probabilities are kept.
struct TileSoftmax {
  bool natural = false;  ///< 2^((s - shift) factor), for scores that score terms have made
  const float *factor = nullptr, *shift = nullptr;
  const uint32_t *seen = nullptr, *kept = nullptr;
  float* lanes = nullptr;  ///< [32 rows][16] sums
  int parts = 1;
};
void tile_softmax(const TileChunk& chunk, const TileSoftmax& of, TileUnit unit);
/// Multiplies the scores of one row.
void tile_scale_row(const TileChunk& chunk, int row, float factor);
/// max[32] = the largest of the seen scores times the factor.
void tile_maxima(const TileChunk& chunk, float factor, const uint32_t* seen, float* max);
void tile_sums(const float* lanes, int strips, float* sums);

struct TileValues {
  const char* values = nullptr;
  int64_t steps = 0;  ///< of 32 columns
  float* out = nullptr;
  int64_t out_stride = 0;  ///< floats
  bool add = false;
  int parts = 1;
};
void tile_values(const TileChunk& chunk, const TileValues& of, TileUnit unit);

/// Up to 8 queries and the keys of a chunk, read where they lie, with the same sums and without tiles. Rows
/// [first, end) of `pairs` pairs of strips from key `key_begin` on are there; sizes are multiples of 32, all
/// numbers bf16.
inline constexpr int kFewKeys = kTileChunk;
struct TileFew {
  int rows = 0, pairs = 0, key_begin = 0;
  const float* query = nullptr;  ///< [dim][few_rows_padded(rows)]
  TileSource key, value;
  const char* next = nullptr;  ///< where the keys of the next chunk lie, as `key.rows`: to be fetched
};
int few_rows_padded(int rows);
/// s[row][kFewKeys] of the padded rows.
void few_scores(const TileFew& few, float* s);
/// max[row] = the largest of the seen scores times the factor.
void few_maxima(const TileFew& few, float factor, const uint32_t* seen, const float* s, float* max);
/// p[row][kFewKeys] = rounded probabilities; before that they join the sums lanes[row][16].
void few_softmax(const TileFew& few, const float* factor, const float* shift, const uint32_t* seen,
                 const float* s, float* p, float* lanes, TileUnit unit);
/// out[row][value.dim] of the padded rows; `add`: it joins what is there.
void few_values(const TileFew& few, const float* p, bool add, float* out);

/// words[pair][row]: the keys of the chunk, which starts at `key`, that lie in the row's [lo, hi).
void tile_intervals(const int32_t* lo, const int32_t* hi, int key, const TileChunk& chunk, uint32_t* words);
/// words[row] has bit k where rows[k] has bit `row`.
void transpose_bits(const uint32_t* rows, uint32_t* words);
/// words[pair][row] lose the keys whose flags are 0: keys [begin, end) of the chunk have rows of flags, the first at
/// `flags`, the other keys none.
void tile_flags(const uint8_t* flags, int64_t stride, int begin, int end, const TileChunk& chunk,
                uint32_t* words);
/// to[key][query], keys `stride` floats apart, = scores times `factor`; and back.
void tile_scores_to_lanes(const TileChunk& chunk, float factor, float* to, int64_t stride);
void tile_scores_from_lanes(const TileChunk& chunk, const float* from, int64_t stride);

/// `rows` rows of `dim` numbers, `columns` floats apart, times a factor each -> bf16. False if one is not finite.
struct TileOutput {
  const float* from = nullptr;
  int64_t columns = 0, dim = 0;
  const float* factors = nullptr;
  void* const* to = nullptr;
  int rows = 0;
};
bool write_tile_rows(const TileOutput& of, TileUnit unit);

}  // namespace multihead::kernels
