// Passes to the kernel what the kinds of mask let it leave out. Internal to ops.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/kernels/attention/attention.h"
#include "multihead/ops/attention/masks/mask.h"

namespace multihead::detail {

/// Sizes of one call. In a ragged batch `batch` counts the sequences, `queries` and `keys` are the longest.
struct AttentionSizes {
  int64_t batch = 0, heads = 0, kv_heads = 0;
  int64_t queries = 0, keys = 0;
  int64_t head_dim = 0, value_dim = 0;
  std::vector<kernels::AttentionSequence> sequences;  // empty: not ragged
  bool ragged = false;

  int64_t query_count(int64_t b) const {
    return ragged ? sequences[static_cast<size_t>(b)].query_count : queries;
  }
  int64_t key_count(int64_t b) const { return ragged ? sequences[static_cast<size_t>(b)].key_count : keys; }
};

/// Keys [begin, end).
struct KeyInterval {
  int64_t begin = 0, end = 0;
};

/// Exclusions that need code per element.
class MaskCode {
 public:
  MaskCode() = default;
  MaskCode(const MaskCode&) = delete;
  MaskCode& operator=(const MaskCode&) = delete;
  virtual ~MaskCode() = default;

  /// Writes 0 or 1 to every element of the tile.
  virtual void fill(const kernels::KeepTile& tile) const = 0;
  /// The class of a tile, which has no memory.
  virtual kernels::BlockClass classify(const kernels::KeepTile&) const {
    return kernels::BlockClass::partial;
  }
  /// For fewer keys than so many, classify() costs more than it spares.
  virtual int64_t grain() const { return 64; }
};

/// The exclusions of a mask in the kernel's terms, with the memory they point to. Analytic bands, lengths and
/// intervals are skipped without a look; only flags and code cost something per element.
class BoundMask {
 public:
  static constexpr int64_t kFar = int64_t{1} << 40;  ///< beyond any sequence, safe to add

  BoundMask(std::string who, const AttentionSizes& sizes, const Mask& mask);
  BoundMask(const BoundMask&) = delete;
  BoundMask& operator=(const BoundMask&) = delete;

  /// Fills the exclusions and the diagonal of `problem`, which must not outlive this.
  void apply(kernels::AttentionProblem& problem) const;
  /// Offset of query positions, per sample or one for all.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// Says how each part runs, for explain().
  const std::vector<std::string>& notes() const { return notes_; }

  // Facts about the call for the parts.
  const std::string& who() const { return who_; }
  const AttentionSizes& sizes() const { return sizes_; }
  /// Offsets of a diagonal, per sample or one for all.
  std::vector<int64_t> resolve(const Diagonal& diagonal) const;
  static int64_t of_sample(const std::vector<int64_t>& values, int64_t b) {
    return values[values.size() == 1 ? 0 : static_cast<size_t>(b)];
  }
  /// Checked lengths [batch] of the keys or queries.
  std::vector<int64_t> sample_lengths(const Tensor& values, const char* name, bool keys) const;
  /// The keys that earlier bands leave to query i of sample b.
  KeyInterval band_of(int64_t b, int64_t i) const;

  // Exclusions that parts add.
  void add_note(std::string_view note) { notes_.emplace_back(note); }
  /// Keys from `left` before to `right` after a diagonal, -1: all. False if another diagonal was there first:
  /// intervals say it then.
  bool add_band(const std::vector<int64_t>& offsets, int64_t left, int64_t right);
  void add_key_lengths(const std::vector<int64_t>& lengths) { shorten(key_lengths_, lengths); }
  void add_query_lengths(const std::vector<int64_t>& lengths) { shorten(query_lengths_, lengths); }
  /// Query i of sample b sees the keys of f(b, i), a KeyInterval, at most.
  template <class F>
  void add_intervals(F f) {
    ensure_intervals();
    for (int64_t b = 0, n = 0; b < sizes_.batch; ++b) {
      for (int64_t i = 0; i < sizes_.queries; ++i, ++n) {
        const KeyInterval keys = f(b, i);
        int64_t &begin = begin_[static_cast<size_t>(n)], &end = end_[static_cast<size_t>(n)];
        begin = std::max(begin, keys.begin);
        end = std::min(end, keys.end);
      }
    }
  }
  /// The same from arrays [B, Tq].
  void add_intervals(const std::vector<int64_t>& begin, const std::vector<int64_t>& end);
  /// Elements where the flag is `wanted`; broadcast to [B, H, Tq, Tk].
  void add_flags(const Tensor& flags, bool wanted) { flags_.push_back({flags, wanted}); }
  void add_code(std::unique_ptr<const MaskCode> code) { code_.push_back(std::move(code)); }

 private:
  struct Flags {
    Tensor tensor;
    bool wanted;
  };

  static void shorten(std::vector<int64_t>& lengths, const std::vector<int64_t>& others);
  void ensure_intervals();
  void combine_flags();
  static void fill(const void* self, const kernels::KeepTile& tile);
  static kernels::BlockClass classify(const void* self, const kernels::KeepTile& tile);

  std::string who_;
  AttentionSizes sizes_;
  bool causal_ = false;
  int64_t left_ = -1, right_ = -1;
  std::vector<int64_t> offsets_, key_lengths_, query_lengths_;
  std::vector<int64_t> ends_;         // where Align::end lies; empty: at Tk - Tq
  std::vector<int64_t> begin_, end_;  // intervals [B, Tq]
  std::vector<Flags> flags_;
  Tensor keep_;
  kernels::Strides4 keep_strides_;
  std::vector<uint8_t> keep_classes_;
  std::vector<std::unique_ptr<const MaskCode>> code_;
  std::vector<std::string> notes_;
};

/// Strides that broadcast `x` right-aligned to [B, H, Tq, Tk]; ShapeError "who: what must broadcast …".
kernels::Strides4 broadcast_strides(const std::string& who, const char* what, const Tensor& x,
                                    const AttentionSizes& sizes);

/// Throws ValueError where a ScoreIndex cannot count.
void check_index_sizes(const std::string& who, const AttentionSizes& sizes,
                       const std::vector<int64_t>& offsets);

}  // namespace multihead::detail
