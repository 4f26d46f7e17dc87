// Scaled dot-product attention on raw pointers: fused forward, backward and decode.
//
//   s[q,k] = score_function(scale · ⟨query[q], key[k] + relative_key[k - q]⟩), soft-capped, + bias
//            + relative bias + ALiBi
//   p[q,k] = softmax over the keys that row q may see
//   out[q] = Σ_k dropout(p[q,k]) · (value[k] + relative_value[k - q])
//
// Shapes    query [B, H, Tq, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, Dv] -> out [B, H, Tq, Dv];
//           H % Hkv == 0 and query head h reads key head h / (H / Hkv). The last axis is contiguous, the
//           others have any strides (0 included for inputs). Any size may be 0.
// Memory    O(Tq + Tk) beyond the arguments; the [Tq, Tk] scores are never stored.
// Bits      f32 results depend on the row and its keys alone: not on threads, batch, padding, chunking or
//           (among FMA targets) vector width. See attention_key_block. bf16 keeps all of that but the last:
//           where bf16_tiles() or attention_on_pairs() holds, tiles or products of pairs round differently from
//           widening (amx/precision.h, cpu/isa.h).
// Errors    Callers check shapes and values; kernels throw only std::bad_alloc.
//
// The options are plain data: AttentionProblem (sizes, exclusions, dropout), ScoreTerms (what changes a
// score), AttentionInput / AttentionOutput / AttentionGradient (operands).
//
// Types     Query, key, value, out and their gradients have one dtype: f32, f64 or bf16; with bf16 each gradient,
//           that of out included, may be f32. In the forward pass keys and values of f32 queries may be rows of
//           int8 (int8_rows.h), whose operands are i32 and count in words. All other numbers have the type of
//           the arithmetic: f64 for f64, else f32. `void*` is memory of that type.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "multihead/core/dtype.h"
#include "multihead/kernels/cpu/isa.h"

namespace multihead::kernels {

/// Distances in elements between neighbours along an axis of [B, H, T, D]; the last axis has distance 1.
struct Strides3 {
  int64_t batch = 0, head = 0, token = 0;
};

/// One argument: its first element, its type and the distances between its elements. Null data: it is absent.
/// As with Tensor, what is input is not written to, whatever the pointer allows.
struct Operand {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  Strides3 strides;

  Operand() = default;
  Operand(void* first, Dtype type, const Strides3& distances)
      : data(first), dtype(type), strides(distances) {}
  template <class T>
  Operand(const T* first, const Strides3& distances)
      : Operand(const_cast<T*>(first), dtype_of<T>, distances) {}
  explicit operator bool() const { return data != nullptr; }
};

/// As Strides3 for [B, H, Tq, Tk]; 0 broadcasts an axis.
struct Strides4 {
  int64_t batch = 0, head = 0, query = 0, key = 0;
};

/// One sequence of a ragged batch: rows [query_begin, query_begin + query_count) of the packed queries attend
/// to rows [key_begin, key_begin + key_count) of the packed keys.
struct AttentionSequence {
  int64_t query_begin = 0, query_count = 0, key_begin = 0, key_count = 0;
};

/// The output of a query without any allowed key. Its log-sum-exp is -inf and it gets no gradient.
enum class EmptyRow {
  zero,     ///< output 0, no gradient
  uniform,  ///< the mean of all values, excluded ones too: what finite sentinels such as -1e6 do
  nan,      ///< NaN, no gradient
  error,    ///< ValueError that names the first such row (they are allowed past query_lengths()); zero to
            ///< kernels
};

/// How a block of the score matrix is treated.
enum class BlockClass : uint8_t { empty = 0, full = 1, partial = 2 };

/// Element (batch, head, query, key) of a rectangle of keep flags; keep[k * stride + q], 1 = may attend.
struct KeepTile {
  uint8_t* keep = nullptr;
  int64_t stride = 0;
  int64_t batch = 0, head = 0, query_begin = 0, query_count = 0, key_begin = 0, key_count = 0;
};

/// A mask given by code. `classify` may be null (every block is then partial).
struct MaskFunction {
  const void* context = nullptr;
  /// Writes 0 or 1 to every element of the tile.
  void (*fill)(const void* context, const KeepTile& tile) = nullptr;
  /// Class of the block whose place and size `tile` gives (its keep pointer is null).
  BlockClass (*classify)(const void* context, const KeepTile& tile) = nullptr;
  explicit operator bool() const { return fill != nullptr; }
};

/// A rectangle of a problem whose other parts are elsewhere, say on other ranks. The problem's queries and
/// keys and the rows of operands are the rectangle's; masks, biases, dropout and distances count in the whole
/// problem. Neither ragged nor in f64, where vectors are (Isa above baseline), without gradients of score
/// terms.
struct AttentionSlice {
  int64_t query_begin = 0, key_begin = 0;  ///< of the rectangle, multiples of attention_key_block
  int64_t queries = 0, keys = 0;           ///< of the whole problem
  /// In the backward pass: this query head of each group alone; query, d_out, out and lse have kv_heads
  /// heads.
  int64_t head = -1;
};

/// Sizes, exclusions and dropout. Query i of sample b sees key j iff all of these hold:
///   j < key_lengths[b], i < query_lengths[b], key_begin[b,i] <= j < key_end[b,i],
///   causal:        j <= i + diagonal(b)
///   window_left:   j >= i + diagonal(b) - window_left       (negative: open)
///   window_right:  j <= i + diagonal(b) + window_right      (negative: open)
///   keep[b,h,i,j] != 0, mask_function.
struct AttentionProblem {
  int64_t batch = 0, heads = 0, kv_heads = 0;
  int64_t queries = 0, keys = 0;  ///< Tq, Tk; in a ragged batch the largest of the sequences
  int64_t head_dim = 0, value_dim = 0;
  double scale = 1.0;  ///< any number; the op passes 1/sqrt(head_dim) by default

  /// Ragged batch: [batch] entries; the batch stride of query, key, value, out and lse is then 0, and indices
  /// of queries and keys everywhere else (masks, biases, dropout) count from the sequence's own start.
  const AttentionSequence* sequences = nullptr;
  const AttentionSlice* slice = nullptr;  ///< null: this is the whole problem

  bool causal = false;
  const int64_t* diagonals = nullptr;  ///< [batch]; null: `diagonal` for all
  int64_t diagonal = 0;                ///< Tk - Tq lets the last query see the last key
  int64_t window_left = -1, window_right = -1;
  const int64_t* key_lengths = nullptr;    ///< [batch]
  const int64_t* query_lengths = nullptr;  ///< [batch]
  const int64_t* key_begin = nullptr;      ///< [batch, queries] (stride interval_stride between samples)
  const int64_t* key_end = nullptr;        ///< likewise, exclusive
  int64_t interval_stride = 0;             ///< 0: the same intervals for every sample
  const uint8_t* keep = nullptr;           ///< dense mask, 1 = may attend
  Strides4 keep_strides;
  const uint8_t* keep_classes = nullptr;  ///< from attention_keep_classes; null: computed at each call
  MaskFunction mask_function;

  double dropout_p = 0.0;    ///< in [0, 1]; survivors are divided by 1 - p
  uint64_t dropout_key = 0;  ///< see attention_dropout_keep; e.g. two words of a RandomStream's first block
  EmptyRow empty_row = EmptyRow::zero;

  int64_t group() const { return kv_heads ? heads / kv_heads : 0; }
  int64_t query_count(int64_t b) const { return sequences ? sequences[b].query_count : queries; }
  int64_t key_count(int64_t b) const { return sequences ? sequences[b].key_count : keys; }
  int64_t first_query() const { return slice ? slice->query_begin : 0; }
  int64_t first_key() const { return slice ? slice->key_begin : 0; }
  int64_t all_queries() const { return slice ? slice->queries : queries; }
  int64_t all_keys() const { return slice ? slice->keys : keys; }
  /// Rows where query 0 and key 0 of a sample lie, or would.
  int64_t query_begin(int64_t b) const { return sequences ? sequences[b].query_begin : -first_query(); }
  int64_t key_begin_row(int64_t b) const { return sequences ? sequences[b].key_begin : -first_key(); }
  bool one_head() const { return slice && slice->head >= 0; }
  /// Query heads of a key head in this call, and where head h lies in the operands.
  int64_t heads_in_group() const { return one_head() ? 1 : group(); }
  int64_t head_row(int64_t h) const { return one_head() ? h / group() : h; }
  int64_t diagonal_of(int64_t b) const { return diagonals ? diagonals[b] : diagonal; }
};

/// A rectangle of scores of one (batch, head): scores[k * stride + q] for q < query_count, k < key_count.
struct ScoreTile {
  void* scores = nullptr;
  int64_t stride = 0;
  int64_t batch = 0, head = 0, query_begin = 0, query_count = 0, key_begin = 0, key_count = 0;
};

/// A user's score function for one type of scores. Tiles may hold keys that a mask excludes afterwards.
struct ScoreFunction {
  const void* context = nullptr;
  /// scores <- f(scores)
  void (*apply)(const void* context, const ScoreTile& tile) = nullptr;
  /// scores <- f(scores), derivative[k * stride + q] <- f'(scores). Null: no backward.
  void (*apply_with_derivative)(const void* context, const ScoreTile& tile, void* derivative) = nullptr;
  /// In reverse, for a function of `captured` numbers that need a gradient: d_scores[k * stride + q], the
  /// gradients of f(scores), become those of scores, and sums[captured] takes up those of the captured
  /// numbers. Scores whose gradient is 0 add nothing. Null: there are none.
  void (*backward)(const void* context, const ScoreTile& tile, void* d_scores, void* sums) = nullptr;
  int64_t captured = 0;
  explicit operator bool() const { return apply != nullptr; }
};

/// A vector per distance, added to every key before it meets the query, or to every value: for query i and key j of
/// head h the row data[h * head_stride + clamp(j - i - diagonal + center, 0, span - 1) * row_stride], head_dim numbers;
/// of values value_dim, and zeros behind them up to a multiple of 16.
struct RelativeTable {
  const void* data = nullptr;
  int64_t head_stride = 0, row_stride = 0;  ///< head_stride 0: the same rows for every head
  int64_t span = 0, center = 0;
  explicit operator bool() const { return data != nullptr; }
};

/// The divisor of a row's weights.
enum class Normalise {
  softmax,  ///< e^score, divided by the sum of the row's weights
  sum,      ///< the score itself, or what the function makes of it, divided by their sum
  abs_sum,  ///< … by the sum of their absolute values
  none,     ///< … by nothing
  // Weights above a threshold, which ops look for: kernels meet them as `none`.
  sparsemax,
  entmax15,
};

/// The terms of a score besides query and key, in this order: relative key, then (after the scaling)
/// score_function, softcap, bias, relative bias, ALiBi. Unless they go through a softmax, score_function comes last
/// and makes weights; excluded keys have the weight 0 whatever it says.
struct ScoreTerms {
  Normalise normalise = Normalise::softmax;
  RelativeTable relative_key;
  RelativeTable relative_value;  ///< no term of a score; not with EmptyRow::uniform
  ScoreFunction score_function;
  double softcap = 0.0;  ///< c > 0: c · tanh(s / c)
  const void* bias = nullptr;
  Strides4 bias_strides;
  /// relative_bias[h * relative_stride + clamp(j - i - diagonal + relative_center, 0, relative_span - 1)]
  const void* relative_bias = nullptr;
  int64_t relative_stride = 0, relative_span = 0, relative_center = 0;
  /// - slope[b * alibi_batch_stride + h * alibi_stride] · |i + diagonal - j|; batch stride 0: the same slopes
  /// for every sample.
  const void* alibi_slopes = nullptr;
  int64_t alibi_stride = 1, alibi_batch_stride = 0;

  /// One bit per term, in the order in which they act.
  enum Kind : unsigned {
    kRelativeKey = 1,
    kScoreFunction = 2,
    kSoftcap = 4,
    kBias = 8,
    kRelativeBias = 16,
    kAlibi = 32,
    kWeights = 64,  ///< not a softmax
    kRelativeValue = 128,
    kCurved = kSoftcap,  ///< of a fixed form whose derivative is not 1
    kNonlinear = kScoreFunction | kCurved,
  };
  /// The terms that are present. Fast paths name the sets that they take, so that none ignores a new term.
  unsigned kinds() const {
    return (relative_key ? kRelativeKey : 0U) | (score_function ? kScoreFunction : 0U) |
           (softcap > 0 ? kSoftcap : 0U) | (bias ? kBias : 0U) | (relative_bias ? kRelativeBias : 0U) |
           (alibi_slopes ? kAlibi : 0U) | (weights() ? kWeights : 0U) |
           (relative_value ? kRelativeValue : 0U);
  }
  bool weights() const { return normalise != Normalise::softmax; }
  bool curved() const { return (kinds() & kCurved) != 0; }
  bool nonlinear() const { return (kinds() & kNonlinear) != 0; }
};

struct AttentionInput {
  Operand query, key, value;
};

/// The softmax of rows after some of their keys, in f32: maximum and sum [B, H, Tq] with a token stride of 1,
/// at first -inf and 0, and Σ e^(score - max) · value [B, H, Tq, Dv], at first 0.
struct AttentionState {
  Operand max, sum, values;
};

/// `lse` (natural logarithm, -inf for empty rows; without a softmax what the row was divided by, 0 for empty rows, whose
/// output is by policy also where it is 0 otherwise) [B, H, Tq] has a token stride of 1. It may be absent in the
/// forward pass. With a `state`, the call continues that softmax: its keys follow the earlier ones;
/// without `out` it leaves the new state in place of the old, else it ends there. The last call may have no
/// keys. `out` may then be in the memory of state.values. What is not finite is then left so, also where a
/// call on all keys at once does better: rows that met NaN in excluded keys, or sums that were too large.
struct AttentionOutput {
  Operand out, lse;
  AttentionState state = {};
};

/// Beyond this a log-sum-exp alone says too little of a row's probabilities: its ulp is more than 1e-5. The backward pass
/// then computes the row's scores once more for their own maximum and sum.
inline constexpr float kLargeLogSum = 256;

/// Backward. Gradients are overwritten, except where `accumulate` is set. Absent ones are not computed.
struct AttentionGradient {
  Operand out, lse;  ///< the forward's
  Operand d_out;
  const void* d_lse = nullptr;  ///< strides: those of lse; empty rows are not read. Null: lse had no use
  Operand d_query, d_key, d_value;
  void* d_bias = nullptr;  ///< strides: ScoreTerms::bias_strides; broadcast axes are summed
  void* d_relative_bias = nullptr;
  void* d_alibi_slopes = nullptr;
  void* d_relative_key = nullptr;    ///< [H, span, head_dim], contiguous
  void* d_relative_value = nullptr;  ///< [H, span, value_dim], contiguous
  void* d_captured = nullptr;        ///< [ScoreFunction::captured]
  bool accumulate = false;           ///< add to the gradients of score terms instead of zeroing them first
  /// d_query, d_key and d_value are sums in f32 that the call goes on with, without the factor `scale` of the
  /// first two: of keys, or of queries, in ascending order. As in AttentionOutput for the rest.
  bool partial = false;
  /// f32 with the strides of lse: ⟨out, d_out⟩ - d_lse of the rows that see a key, written if there is `out`,
  /// else read. Null: not kept.
  void* delta = nullptr;

  /// Whether a term has a gradient: heads and samples may share it.
  bool of_terms() const {
    return d_bias || d_relative_bias || d_alibi_slopes || d_relative_key || d_relative_value || d_captured;
  }
};

/// The gradient of a term that has `width` numbers for each head, at sample · batch_stride + head · head_stride;
/// stride 0: all share them. Null: not wanted.
struct HeadGradient {
  void* to;
  int64_t width, batch_stride, head_stride;
};
enum HeadTerm : size_t { relative_bias_numbers, alibi_slope, kHeadTerms };
/// A row per HeadTerm. The backward pass sums each key block's share of them on its own (HeadSums).
inline std::array<HeadGradient, kHeadTerms> head_gradients(const ScoreTerms& t, const AttentionGradient& g) {
  return {{{t.relative_bias ? g.d_relative_bias : nullptr, t.relative_span, 0, t.relative_stride},
           {t.alibi_slopes ? g.d_alibi_slopes : nullptr, 1, t.alibi_batch_stride, t.alibi_stride}}};
}

/// Whether the forward pass of bf16 runs on pairs: bf16_dots(), of AVX-512 alone.
bool attention_on_pairs();

/// f32: SIMD, all options. bf16: inputs and outputs in bf16, everything between in f32; in the forward pass
/// with attention_on_pairs(), probabilities are rounded to bf16 before the product with the values, with bf16_tiles()
/// probabilities and score gradients before any product. f64: the plain specification of reference-inl.h,
/// parallel over batch and heads.
void attention_forward(const AttentionProblem&, const ScoreTerms&, const AttentionInput&,
                       const AttentionOutput&);
/// Deterministic; parallel also when batch · heads is 1.
void attention_backward(const AttentionProblem&, const ScoreTerms&, const AttentionInput&,
                        const AttentionGradient&);

/// The keys [begin, end) that queries [query_begin, query_end) of the whole problem may see by the analytic
/// masks.
struct AttentionReach {
  int64_t begin = 0, end = 0;
};
AttentionReach attention_reach(const AttentionProblem&, int64_t query_begin, int64_t query_end);

/// Adds an attention sink, an extra logit sinks[h] without a value, to every row's softmax: a forward pass's
/// `out` (which may be f16) and `lse` become out · w and lse - log w, w = 1 / (1 + exp(sink - lse)). The
/// backward then runs as it stands: it finds the probabilities from that lse, and ⟨d_out, out⟩ lacks nothing because the sink has no value.
/// Rows without any key are left as they are; inspect.h has what sinks do to them and the sinks' gradient.
void attention_add_sinks(const AttentionProblem&, const void* sinks, const AttentionOutput&);

/// Whether dropout with this key lets element (b, h, q, k) live; the same on every path.
///
/// words = Philox4x32-10(counter {q, k / 16, h, b}, key {low, high half of dropout_key}); the word
/// (k / 4) % 4, rotated right by 8 · (k % 4) bits, must be >= round(p · 2^32); so four neighbours are
/// correlated by .001 to .002 for p = .1 to .3. p >= 1 keeps nothing.
bool attention_dropout_keep(uint64_t dropout_key, int64_t b, int64_t h, int64_t q, int64_t k, double p);

/// Keys are processed in blocks at multiples of this position whatever the shape: each block's softmax state
/// starts from zero and is merged in order. That is what makes chunks, splits and paddings agree bit for bit.
inline constexpr int64_t attention_key_block = 256;

// --- Dense masks -----------------------------------------------------------------------------------------

/// Grid of the block summary of a dense mask.
inline constexpr int64_t attention_keep_rows = 64, attention_keep_columns = 64;
/// Bytes that attention_keep_classes writes for `problem.keep`.
int64_t attention_keep_classes_size(const AttentionProblem& problem);
/// Class of every block of problem.keep; compute it once and set problem.keep_classes.
void attention_keep_classes(const AttentionProblem& problem, uint8_t* classes);

/// Per query the interval of keys with the same document id; ids of one document must be contiguous.
/// Sizes: query_ids, key_begin, key_end [queries]; key_ids [keys]. False if the keys' documents are not
/// contiguous: such a mask needs the dense form.
bool attention_document_intervals(const int64_t* query_ids, int64_t queries, const int64_t* key_ids,
                                  int64_t keys, int64_t* key_begin, int64_t* key_end);

// --- Looking inside --------------------------------------------------------------------------------------

enum class CaptureStage { scores, probabilities, after_dropout };

/// One row to capture.
struct CaptureRow {
  int64_t batch = 0, head = 0, query = 0;
};

// --- Planning --------------------------------------------------------------------------------------------

struct AttentionPlan {
  std::string kernel;  ///< "tiled f32", "split-key f32", "reference f64", …
  Isa isa = Isa::baseline;
  int64_t query_tile = 0, key_block = 0;
  int64_t tasks = 0, key_splits = 1;
  int64_t workspace_bytes = 0;  ///< forward, all threads, beyond arguments
  int64_t backward_workspace_bytes = 0;
  double useful_pairs = 0;    ///< (query, key) pairs that the analytic masks allow
  double computed_pairs = 0;  ///< pairs in blocks that are not skipped
  std::string reasons;        ///< one line per decision
};
/// Operands need no data.
AttentionPlan attention_plan(const AttentionProblem&, const ScoreTerms&, const AttentionInput&, int threads);

}  // namespace multihead::kernels
