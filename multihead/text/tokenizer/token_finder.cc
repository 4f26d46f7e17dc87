#include <algorithm>

#include "multihead/text/tokenizer/token_finder-inl.h"

namespace multihead::text {

int32_t TokenFinder::child_of(int32_t node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  int32_t child = nodes_[node].child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

// Falls back as often as it went forward before, at most.
int32_t TokenFinder::next(int32_t node, unsigned char byte) const {
  while (true) {
    const int32_t child = child_of(node, byte);
    if (child != 0 || node == 0) return child;
    node = nodes_[node].fail;
  }
}

void TokenFinder::add(std::string_view token, int32_t number, bool plain) {
  if (token.empty()) return;  // it would be found everywhere
  int32_t node = 0;
  for (size_t i = token.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(token[i]);
    int32_t child = child_of(node, byte);
    if (child == 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.sibling = nodes_[node].child, .byte = byte});
      nodes_[node].child = child;
      if (node == 0) first_[byte] = child;
    }
    node = child;
  }
  if (nodes_[node].any < 0) nodes_[node].any = number;
  if (plain && nodes_[node].plain < 0) nodes_[node].plain = number;
  has_plain_ = has_plain_ || plain;
  longest_ = std::max(longest_, token.size());
}

void TokenFinder::finish() {
  std::vector<int32_t> order = {0};  // shorter paths first
  order.reserve(nodes_.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t parent = order[i];
    for (int32_t child = nodes_[parent].child; child != 0; child = nodes_[child].sibling) {
      Node& node = nodes_[child];
      node.fail = parent == 0 ? 0 : next(nodes_[parent].fail, node.byte);
      if (node.any < 0) node.any = nodes_[node.fail].any;
      if (node.plain < 0) node.plain = nodes_[node.fail].plain;
      order.push_back(child);
    }
  }
}

TokenScan::TokenScan(const TokenFinder& finder, std::string_view text, bool plain_only)
    : finder_(finder), text_(text), plain_only_(plain_only) {
  if (!(plain_only ? finder.has_plain() : finder.has_any())) scanned_ = text.size();
}

TokenScan::Found TokenScan::next(size_t from) {
  while (true) {
    while (!found_.empty() && found_.back().begin < from) found_.pop_back();
    if (!found_.empty()) return found_.back();
    if (std::max(scanned_, from) >= text_.size()) return {text_.size(), -1};
    scan(std::max(scanned_, from));
  }
}

// The tokens that begin in the stretch from `begin` on end at most the longest token's length past it.
void TokenScan::scan(size_t begin) {
  const size_t longest = finder_.longest(), stretch = std::max<size_t>(longest, 1 << 16);
  const size_t end = begin + std::min(stretch, text_.size() - begin);
  int32_t node = 0;
  for (size_t i = end + std::min(longest, text_.size() - end); i-- > begin;) {
    node = finder_.next(node, static_cast<unsigned char>(text_[i]));
    const TokenFinder::Node& at = finder_.nodes_[node];
    const int32_t token = plain_only_ ? at.plain : at.any;
    if (token >= 0 && i < end) found_.push_back({i, token});
  }
  scanned_ = end;
}

}  // namespace multihead::text
