// Which keys a query may attend to: exclusions with names, composed with &.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "multihead/core/tensor.h"
#include "multihead/kernels/attention/attention.h"

namespace multihead {

/// Where the diagonal of a Tq x Tk score matrix lies when the lengths differ.
enum class Align {
  end,    ///< the last query sees the last key: what cached decoding and chunked prefill need
  start,  ///< query 0 sees key 0 only
};

/// Query i stands at key position i + offset. The offset is Tk - Tq (end), 0 (start), or given.
struct Diagonal {
  Diagonal(Align align = Align::end) : align(align) {}  // NOLINT(google-explicit-constructor)
  /// The same offset for every sample.
  explicit Diagonal(int64_t offset);
  /// One offset per sample: i64 or i32 [B].
  explicit Diagonal(Tensor offsets) : offsets(std::move(offsets)) {}

  Align align = Align::end;
  Tensor offsets;
};

/// One named exclusion; see the functions that make it.
struct MaskPart {
  enum class Kind { keep, drop, band, prefix, key_lengths, query_lengths, documents, blocks, function };
  Kind kind = Kind::keep;
  Tensor tensor;       ///< flags, lengths or query ids
  Tensor other;        ///< key ids
  unsigned exact = 0;  ///< keep, drop: bit a set: axis a of [B, H, Tq, Tk] is not broadcast
  Diagonal diagonal;
  bool causal = false;            ///< band: printed as causal()
  int64_t left = -1, right = -1;  ///< band: keys allowed before and after the diagonal, -1 = all
  int64_t query_block = 0, key_block = 0;
  /// function: how to fill and classify; called with the offsets of the queries' positions.
  std::shared_ptr<const void> function;
  void (*fill)(const void* function, const kernels::KeepTile& tile, int64_t offset) = nullptr;
  kernels::BlockClass (*classify)(const void* function, const kernels::KeepTile& tile,
                                  int64_t offset) = nullptr;
  bool every_head = false;  ///< function: says the same for every head, so it may be run once for all
};

/// A set of (query, key) pairs that may meet: a conjunction of parts. A default Mask excludes nothing.
///
/// A tensor never becomes a mask by itself: say keep(tensor) or drop(tensor). Sizes are checked where the
/// mask is used. A mask shares its tensors' memory, which must not change until the backward has run.
class Mask {
 public:
  Mask() = default;
  explicit Mask(MaskPart part) : parts_{std::move(part)} {}

  Mask& operator&=(const Mask& other);
  friend Mask operator&(Mask a, const Mask& b) { return a &= b; }

  const std::vector<MaskPart>& parts() const { return parts_; }
  bool excludes_nothing() const { return parts_.empty(); }
  /// "causal(end) & lengths([2])"; "all" if it excludes nothing.
  std::string to_string() const;

 private:
  std::vector<MaskPart> parts_;
};

/// True = may attend. bool, broadcast right-aligned to [B, H, Tq, Tk]. Throws DtypeError.
Mask keep(const Tensor& flags);
/// True = may not attend; else as keep().
Mask drop(const Tensor& flags);

/// Query i sees keys j <= i + offset.
Mask causal(Diagonal diagonal = Align::end);
/// causal() with an offset, or one per sample (i64 or i32 [B]).
Mask causal_offset(int64_t offset);
Mask causal_offset(const Tensor& offsets);
/// Query i sees keys i + offset - left <= j <= i + offset + right; -1 leaves a side open. Hugging Face's
/// sliding_window = W is window(W - 1, 0). Throws ValueError below -1.
Mask window(int64_t left, int64_t right, Diagonal diagonal = Align::end);
/// Prefix language model: causal, except that everybody sees the first `length` keys.
Mask prefix(int64_t length, Diagonal diagonal = Align::end);
/// One prefix length per sample: i64 or i32 [B].
Mask prefix(const Tensor& lengths, Diagonal diagonal = Align::end);

/// Keys j < valid_lens: i64 or i32, [B] per sample or [B, Tq] per query.
Mask lengths(const Tensor& valid_lens);
/// Queries i < valid_lens [B]; the rows behind are empty.
Mask query_lengths(const Tensor& valid_lens);

/// Query and key of the same document, self-attention: ids i64 or i32 [T] or [B, T].
Mask documents(const Tensor& ids);
/// Query and key of the same document: [Tq] or [B, Tq], and [Tk] or [B, Tk].
Mask documents(const Tensor& query_ids, const Tensor& key_ids);

/// Block-sparse: bool flags, broadcast right-aligned to [B, H, ceil(Tq / query_block), ceil(Tk / key_block)],
/// say which blocks may meet. Excluded blocks cost nothing.
Mask blocks(const Tensor& flags, int64_t query_block, int64_t key_block);

}  // namespace multihead
