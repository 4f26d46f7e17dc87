#include "multihead/text/tokenizer/token_index-inl.h"

namespace multihead::text {

size_t TokenIndex::slot_of(uint32_t hash, std::string_view token) const {
  for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.entry == 0 || (slot.hash == hash && entries_[slot.entry - 1].first == token)) return at;
  }
}

bool TokenIndex::insert(std::string_view token, int32_t id) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow();
  const uint32_t hash = multihead::detail::seeded_hash(token);
  Slot& slot = slots_[slot_of(hash, token)];
  if (slot.entry != 0) return false;
  entries_.emplace_back(token, id);
  slot = {hash, static_cast<uint32_t>(entries_.size())};
  return true;
}

void TokenIndex::grow() {
  slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), {});
  for (size_t i = 0; i < entries_.size(); ++i) {
    const uint32_t hash = multihead::detail::seeded_hash(entries_[i].first);
    slots_[slot_of(hash, entries_[i].first)] = {hash, static_cast<uint32_t>(i + 1)};
  }
}

}  // namespace multihead::text
