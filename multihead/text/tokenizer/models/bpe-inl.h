// Byte pair encoding over token ids: the merge table, applying it and learning it. Private to text/.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/text/tokenizer/pipeline/split-inl.h"

namespace multihead::text {

/// Hash map from a 64-bit key (a pair of ids) to a small value: open addressing, because one look-up per
/// neighbouring pair of symbols is most of the work of encoding.
template <class Value>
class PairMap {
 public:
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  size_t size() const { return size_; }
  void reserve(size_t size) {
    while (2 * size > slots_.size()) grow();
  }

  const Value* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[slot_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  Value* find(uint64_t key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

  /// Inserts `value` unless the key is there; returns the slot's value and whether it was inserted. The
  /// reference holds until the next insertion.
  std::pair<Value&, bool> insert(uint64_t key, Value value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[slot_of(key)];
    const bool fresh = slot.key == kEmpty;
    if (fresh) {
      slot = {key, value};
      ++size_;
    }
    return {slot.value, fresh};
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // the pair (-1, -1) does not occur
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  size_t slot_of(uint64_t key) const {
    const uint64_t mixed = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
    for (size_t i = mixed >> shift_;; i = (i + 1) & (slots_.size() - 1))
      if (slots_[i].key == key || slots_[i].key == kEmpty) return i;
  }

  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : 2 * slots_.size()));
    shift_ = slots_.size() == 64 ? 58 : shift_ - 1;
    for (Slot& slot : old)
      if (slot.key != kEmpty) slots_[slot_of(slot.key)] = std::move(slot);
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
  int shift_ = 58;
};

struct Merge {
  int32_t left, right, result;
};

/// The bytes of a text that a token stands for: its first and its last one.
struct TokenSpan {
  size_t first, last;
  int32_t spelling = -1;  ///< its place among the spellings, if it is not called what its id is
};

/// Merges in order of rank, applied lowest rank first and leftmost first among equals.
class MergeTable {
 public:
  MergeTable() = default;
  /// A pair listed twice keeps its last rank, as in Hugging Face's table.
  explicit MergeTable(std::vector<Merge> merges);

  const std::vector<Merge>& merges() const { return merges_; }

  /// Replaces symbols[begin..] in place by their merged form, and their spans, if there are any. Time n log n
  /// in the number of symbols.
  void apply(std::vector<int32_t>& symbols, size_t begin, std::vector<TokenSpan>* spans = nullptr) const;

 private:
  void apply_short(std::vector<int32_t>& symbols, size_t begin, std::vector<TokenSpan>* spans) const;
  void apply_long(std::vector<int32_t>& symbols, size_t begin, std::vector<TokenSpan>* spans) const;
  uint32_t rank(int32_t left, int32_t right) const;

  std::vector<Merge> merges_;
  PairMap<uint32_t> ranks_;
};

struct BpeTraining {
  int64_t vocab_size;  // tokens in all, those of `tokens` included
  int64_t min_frequency;
  /// The initial tokens, and what they stand for: bytes, or characters as they stand in words; none
  /// for a special token.
  std::vector<std::string> tokens;
  bool of_characters = false;         // or of bytes; a piece with a character that is no token is left out
  std::string continuing = {};        // of characters: before tokens that continue a word
  std::vector<std::string> reserved;  // what no merge may spell: special tokens
  std::vector<SplitRule> rules;
  std::function<void(int64_t done, int64_t total)> progress;
};

/// Distinct pieces of texts, in the order in which they come, and how many there are of each.
struct Pieces {
  std::vector<std::string_view> text;
  std::vector<int64_t> count;
};
Pieces count_pieces(std::span<const std::string_view> texts, std::span<const SplitRule> rules);

/// Learns merges: the most frequent pair first, ties to the smaller ids; stops early when no pair occurs
/// min_frequency times. Appends to training.tokens. Time n log n in the bytes of distinct pieces.
std::vector<Merge> learn_merges(const Pieces& pieces, BpeTraining& training);

}  // namespace multihead::text
