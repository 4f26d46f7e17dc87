// Patterns over characters, and the nondeterministic automata over bytes that they become. Private to grammar/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace multihead::text::grammar {

/// Code points [first, second], sorted and apart.
using CharSet = std::vector<std::pair<int32_t, int32_t>>;
inline constexpr int32_t kLastCodePoint = 0x10FFFF;
CharSet normalized(CharSet set);
CharSet complement(const CharSet& set);

struct Pattern {
  enum class Kind { chars, sequence, alternatives, repeat, begin, end, rule };
  Kind kind = Kind::sequence;  ///< without parts: the empty text
  CharSet chars = {};
  std::vector<Pattern> parts = {};
  int32_t least = 0, most = -1;  ///< of a repeat; -1: any number
  int32_t rule = -1;

  static Pattern of(CharSet set) { return {.kind = Kind::chars, .chars = std::move(set)}; }
  static Pattern text(std::string_view text);  ///< Throws ValueError unless it is UTF-8.
  static Pattern repeated(Pattern part, int32_t least, int32_t most);
};

/// Reads "{m}", "{m,}", "{m,n}" behind its brace. Throws ValueError naming `who`.
std::pair<int32_t, int32_t> parse_bounds(std::string_view source, size_t& at, const char* who);

/// A Thompson automaton: a state reads a byte, or is an edge that reads nothing.
struct Nfa {
  enum class Kind : uint8_t { bytes, split, begin, end, call, done };
  struct State {
    Kind kind = Kind::done;
    uint8_t low = 0, high = 0;
    int32_t out = -1, other = -1;  ///< `other`: the second way of a split, the rule of a call
  };
  std::vector<State> states = {};

  /// Adds what reads the pattern and then goes on at `next`; returns where it begins. Throws ValueError beyond
  /// so many states.
  int32_t add(const Pattern& pattern, int32_t next);
  int32_t add(const State& state);

 private:
  int32_t add_chars(const CharSet& set, int32_t next);
  int32_t add_repeat(const Pattern& pattern, int32_t next);
};

}  // namespace multihead::text::grammar
