// Deterministic automata over bytes: regular expressions, literals, and what both have in common.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace multihead::text::grammar {

/// A set of texts. Every state leads to the end of one: a text that can be read can be continued.
class ByteDfa {
 public:
  static constexpr int32_t kDead = -1, kStart = 0;

  /// Texts that fit a regular expression as a whole, or, with `searches`, that contain a part which fits.
  ///
  /// Syntax: ECMAScript's (flag u): characters, `.`, classes, `\d \w \s`, groups, `|`, `* + ? {m,n}` (lazy ones give
  /// the same texts), `^` and `$`. Look-around, back-references and `\b` are refused by name.
  /// Throws ValueError (syntax; beyond the limits; no text fits).
  static ByteDfa regex(std::string_view pattern, bool searches = false);
  static ByteDfa literals(const std::vector<std::string>& texts);

  int32_t next(int32_t state, uint8_t byte) const {
    return table_[static_cast<size_t>(state) * width_ + classes_[byte]];
  }
  bool accepts(int32_t state) const { return accepting_[static_cast<size_t>(state)] != 0; }
  bool accepts(std::string_view text) const;
  int32_t run(std::string_view text, int32_t state = kStart) const;  ///< kDead: it cannot begin so
  size_t size() const { return accepting_.size(); }
  bool is_empty() const { return accepting_.empty(); }

  /// Texts of both. May be empty.
  ByteDfa intersection(const ByteDfa& other) const;
  /// This one's texts that are not the other's. May be empty.
  ByteDfa without(const ByteDfa& other) const;
  /// Texts with so many characters; most < 0: no limit. May be empty.
  ByteDfa with_length(int64_t least, int64_t most) const;

 private:
  template <class Next, class Accepts>
  static ByteDfa explore(const std::array<uint8_t, 256>& classes, size_t width, std::vector<int64_t> start,
                         const Next& next, const Accepts& accepts);
  template <class Accepts>
  ByteDfa product(const ByteDfa& other, bool needs_other, const Accepts& accepts) const;
  void trim();

  std::array<uint8_t, 256> classes_ = {};  // bytes that no state tells apart
  size_t width_ = 1;                       // of a row: the number of classes
  std::vector<int32_t> table_;
  std::vector<uint8_t> accepting_;
};

}  // namespace multihead::text::grammar
