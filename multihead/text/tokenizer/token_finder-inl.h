// Finds literal tokens in a text: an Aho-Corasick automaton run backwards, so that it reports every token at
// its first byte. Private to text/.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace multihead::text {

/// Tokens by index. Memory: 24 bytes per byte of them; construction time: linear.
class TokenFinder {
 public:
  /// The first of equal tokens wins; an empty one is never found. Scans for plain tokens find only plain
  /// ones.
  void add(std::string_view token, int32_t number, bool plain);
  /// Call after the last add().
  void finish();

  bool has_any() const { return nodes_.size() > 1; }
  bool has_plain() const { return has_plain_; }
  size_t longest() const { return longest_; }

 private:
  friend class TokenScan;
  struct Node {
    int32_t child = 0, sibling = 0;
    int32_t fail = 0;              // the longest proper suffix that is in the tree
    int32_t any = -1, plain = -1;  // the longest token that the path ends with
    unsigned char byte = 0;
  };

  int32_t child_of(int32_t node, unsigned char byte) const;
  int32_t next(int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);  // the first is the root
  std::array<int32_t, 256> first_{};                // its children
  size_t longest_ = 0;
  bool has_plain_ = false;
};

/// One pass over a text. Time: linear in the text for any tokens; memory: the length of the longest token, or
/// 64 kB.
class TokenScan {
 public:
  TokenScan(const TokenFinder& finder, std::string_view text, bool plain_only);

  struct Found {
    size_t begin;
    int32_t token;  // -1: none, and `begin` is the text's end
  };
  /// The first place at `from` or later where a token begins, and the longest token there. `from` must not
  /// decrease.
  Found next(size_t from);

 private:
  void scan(size_t begin);

  const TokenFinder& finder_;
  std::string_view text_;
  bool plain_only_;
  size_t scanned_ = 0;        // what lies before is in found_, or past
  std::vector<Found> found_;  // the nearest last
};

}  // namespace multihead::text
