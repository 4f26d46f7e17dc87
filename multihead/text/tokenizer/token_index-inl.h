// Ids of tokens by their text. Private to text/.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/core/seeded_hash-inl.h"

namespace multihead::text {

/// Open addressing: loading a vocabulary looks up three texts for every merge. The texts are not copied.
class TokenIndex {
 public:
  /// False: the text is there already, and keeps its id.
  bool insert(std::string_view token, int32_t id);
  /// -1: it is not there.
  int32_t find(std::string_view token) const {
    const uint32_t entry =
        slots_.empty() ? 0 : slots_[slot_of(multihead::detail::seeded_hash(token), token)].entry;
    return entry == 0 ? -1 : entries_[entry - 1].second;
  }
  void clear() { entries_.clear(), slots_.clear(); }

 private:
  struct Slot {
    uint32_t hash = 0, entry = 0;  // entry: its number + 1; 0: free
  };
  size_t slot_of(uint32_t hash, std::string_view token) const;
  void grow();

  std::vector<std::pair<std::string_view, int32_t>> entries_;
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
};

}  // namespace multihead::text
