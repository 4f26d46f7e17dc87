// Which keys a query may attend to: exclusions with names, composed with &.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// Position of the diagonal of a Tq x Tk score matrix when the lengths differ.
enum class Align {
  end,    ///< the last query sees the last key: what cached decoding and chunked prefill need
  start,  ///< query 0 sees key 0 only
};

namespace detail {

class BoundMask;

/// Query i of sample b and key j of its head h, in a matrix of queries x keys.
struct MaskPair {
  int64_t b = 0, h = 0, i = 0, j = 0;
  int64_t queries = 0, keys = 0;
};

}  // namespace detail

/// Query i is at key position i + offset. The offset is Tk - Tq (end), 0 (start), or given.
struct Diagonal {
  Diagonal(Align align = Align::end) : align(align) {}  // NOLINT(google-explicit-constructor)
  /// The same offset for every sample.
  explicit Diagonal(int64_t offset);
  /// One offset per sample: i64 or i32 [B].
  explicit Diagonal(Tensor offsets) : offsets(std::move(offsets)) {}

  /// "end", "start", "offset=3" or "offsets=[2]".
  std::string to_string() const;
  int64_t offset_at(const detail::MaskPair& at) const;

  Align align = Align::end;
  Tensor offsets;
};

/// One named exclusion. A kind of mask is one file in masks/: a class below this one, and the functions that
/// make it.
class MaskPart {
 public:
  MaskPart() = default;
  MaskPart(const MaskPart&) = delete;
  MaskPart& operator=(const MaskPart&) = delete;
  virtual ~MaskPart() = default;

  /// As the call that makes it: "causal(end)".
  virtual std::string to_string() const = 0;
  /// The queries' alignment, if this part defines one; the first such part also aligns the score terms.
  virtual const Diagonal* diagonal() const { return nullptr; }
  /// No query i sees a key j > i, whatever the sizes.
  virtual bool is_causal() const { return false; }
  /// The definition, pair by pair and slow: used by attention_composed().
  virtual bool allows(const detail::MaskPair& at) const = 0;
  /// Checks itself against the sizes of a call and tells the kernel what to exclude.
  virtual void bind(detail::BoundMask& mask) const = 0;
};

/// A set of allowed (query, key) pairs: a conjunction of parts. A default Mask excludes nothing.
///
/// A tensor never becomes a mask by itself: say keep(tensor) or drop(tensor). Sizes are checked where the
/// mask is used. A mask shares its tensors' memory, which must not change until the backward has run.
class Mask {
 public:
  Mask() = default;
  /// Throws ValueError for null.
  explicit Mask(std::shared_ptr<const MaskPart> part);

  Mask& operator&=(const Mask& other);
  friend Mask operator&(Mask a, const Mask& b) { return a &= b; }

  const std::vector<std::shared_ptr<const MaskPart>>& parts() const { return parts_; }
  bool is_empty() const { return parts_.empty(); }
  /// "causal(end) & lengths([2])"; "all" if it excludes nothing.
  std::string to_string() const;

 private:
  std::vector<std::shared_ptr<const MaskPart>> parts_;
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
/// Prefix language model: causal, except that every query sees the first `length` keys.
Mask prefix(int64_t length, Diagonal diagonal = Align::end);
/// One prefix length per sample: i64 or i32 [B].
Mask prefix(const Tensor& lengths, Diagonal diagonal = Align::end);

/// Keys j < valid_lens: i64 or i32, [B] per sample or [B, Tq] per query.
Mask lengths(const Tensor& valid_lens);
/// Queries i < valid_lens [B]; later rows are empty.
Mask query_lengths(const Tensor& valid_lens);

/// Query and key of the same document, self-attention: ids i64 or i32 [T] or [B, T].
Mask documents(const Tensor& ids);
/// Query and key of the same document: [Tq] or [B, Tq], and [Tk] or [B, Tk].
Mask documents(const Tensor& query_ids, const Tensor& key_ids);

/// Block-sparse: bool flags, broadcast right-aligned to [B, H, ceil(Tq / query_block), ceil(Tk / key_block)],
/// select blocks. Excluded blocks cost nothing.
Mask blocks(const Tensor& flags, int64_t query_block, int64_t key_block);

}  // namespace multihead
