#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/pattern-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text::grammar {
namespace {

constexpr size_t kMostPatternStates = 100'000;
constexpr int32_t kMostRepeats = 10'000;

struct ByteRange {
  uint8_t low, high;
};
using ByteRanges = std::vector<ByteRange>;

// Splits a range of characters until the first and the last one differ byte by byte in ranges that are independent.
void add_byte_ranges(int32_t first, int32_t last, std::vector<ByteRanges>& list) {
  if (first > last) return;
  if (first < 0xD800 && last > 0xDFFF) {  // surrogates are no characters
    add_byte_ranges(first, 0xD7FF, list);
    add_byte_ranges(0xE000, last, list);
    return;
  }
  if (first >= 0xD800 && last <= 0xDFFF) return;
  if (first >= 0xD800 && first <= 0xDFFF) first = 0xE000;
  if (last >= 0xD800 && last <= 0xDFFF) last = 0xD7FF;
  for (const int32_t limit : {0x7F, 0x7FF, 0xFFFF}) {
    if (first <= limit && last > limit) {
      add_byte_ranges(first, limit, list);
      add_byte_ranges(limit + 1, last, list);
      return;
    }
  }
  for (int bits = 6; bits <= 18; bits += 6) {
    const int32_t low = (1 << bits) - 1;
    if ((first & ~low) == (last & ~low) || first < 0x80) continue;
    if ((first & low) != 0) {
      add_byte_ranges(first, first | low, list);
      add_byte_ranges((first | low) + 1, last, list);
      return;
    }
    if ((last & low) != low) {
      add_byte_ranges(first, (last & ~low) - 1, list);
      add_byte_ranges(last & ~low, last, list);
      return;
    }
  }
  std::string a, b;
  append_utf8(first, a);
  append_utf8(last, b);
  ByteRanges ranges;
  for (size_t i = 0; i < a.size(); ++i)
    ranges.push_back({static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i])});
  list.push_back(std::move(ranges));
}

}  // namespace

CharSet normalized(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet merged;
  for (const auto& [first, last] : set) {
    if (!merged.empty() && first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, last);
    } else {
      merged.emplace_back(first, last);
    }
  }
  return merged;
}

CharSet complement(const CharSet& set) {
  CharSet rest;
  int32_t next = 0;
  for (const auto& [first, last] : normalized(set)) {
    if (first > next) rest.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) rest.emplace_back(next, kLastCodePoint);
  return rest;
}

Pattern Pattern::text(std::string_view text) {
  MH_CHECK(find_invalid_utf8(text) == std::string_view::npos, ValueError, "pattern: ", quote(text),
           " is not UTF-8");
  Pattern sequence;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    sequence.parts.push_back(of({{c.code_point, c.code_point}}));
    at += static_cast<size_t>(c.length);
  }
  return sequence;
}

Pattern Pattern::repeated(Pattern part, int32_t least, int32_t most) {
  return {.kind = Kind::repeat, .parts = {std::move(part)}, .least = least, .most = most};
}

std::pair<int32_t, int32_t> parse_bounds(std::string_view source, size_t& at, const char* who) {
  const auto number = [&]() -> int32_t {
    int32_t value = -1;
    for (; at < source.size() && source[at] >= '0' && source[at] <= '9'; ++at) {
      value = std::max(value, 0) * 10 + (source[at] - '0');
      MH_CHECK(value <= kMostRepeats, ValueError, who, ": a repetition counts to more than ", kMostRepeats);
    }
    return value;
  };
  const int32_t least = number();
  int32_t most = least;
  if (at < source.size() && source[at] == ',') {
    ++at;
    most = number();
  }
  MH_CHECK(at < source.size() && source[at] == '}' && least >= 0 && (most == -1 || most >= least), ValueError,
           who, ": a repetition must be {m}, {m,} or {m,n}, at byte ", at, " of ", quote(source));
  ++at;
  return {least, most};
}

int32_t Nfa::add(const State& state) {
  MH_CHECK(states.size() < kMostPatternStates, ValueError, "pattern: it needs more than ", kMostPatternStates,
           " states; shorten its repetitions");
  states.push_back(state);
  return static_cast<int32_t>(states.size()) - 1;
}

int32_t Nfa::add_chars(const CharSet& set, int32_t next) {
  std::vector<ByteRanges> list;
  for (const auto& [first, last] : set) add_byte_ranges(first, last, list);
  int32_t entry = -1;
  for (const ByteRanges& ranges : list) {
    int32_t begin = next;
    for (size_t i = ranges.size(); i-- > 0;) {
      begin =
          add({.kind = Kind::bytes, .low = ranges[i].low, .high = ranges[i].high, .out = begin, .other = -1});
    }
    entry = entry < 0 ? begin : add({.kind = Kind::split, .out = begin, .other = entry});
  }
  // Without characters nothing fits: a state that reads no byte.
  return entry >= 0 ? entry : add({.kind = Kind::bytes, .low = 1, .high = 0, .out = next, .other = -1});
}

int32_t Nfa::add_repeat(const Pattern& pattern, int32_t next) {
  const Pattern& part = pattern.parts.front();
  int32_t begin = next;
  if (pattern.most < 0) {
    begin = add(State{.kind = Kind::split, .out = -1, .other = next});
    const int32_t inner = add(part, begin);
    states[static_cast<size_t>(begin)].out = inner;
  }
  for (int32_t i = pattern.least; i < pattern.most; ++i) {
    begin = add(State{.kind = Kind::split, .out = add(part, begin), .other = next});
  }
  for (int32_t i = 0; i < pattern.least; ++i) begin = add(part, begin);
  return begin;
}

int32_t Nfa::add(const Pattern& pattern, int32_t next) {
  switch (pattern.kind) {
    case Pattern::Kind::chars:
      return add_chars(pattern.chars, next);
    case Pattern::Kind::repeat:
      return add_repeat(pattern, next);
    case Pattern::Kind::begin:
      return add(State{.kind = Kind::begin, .out = next});
    case Pattern::Kind::end:
      return add(State{.kind = Kind::end, .out = next});
    case Pattern::Kind::rule:
      return add(State{.kind = Kind::call, .out = next, .other = pattern.rule});
    case Pattern::Kind::sequence: {
      for (size_t i = pattern.parts.size(); i-- > 0;) next = add(pattern.parts[i], next);
      return next;
    }
    case Pattern::Kind::alternatives:
      break;
  }
  int32_t entry = -1;
  for (size_t i = pattern.parts.size(); i-- > 0;) {
    const int32_t begin = add(pattern.parts[i], next);
    entry = entry < 0 ? begin : add(State{.kind = Kind::split, .out = begin, .other = entry});
  }
  return entry < 0 ? next : entry;
}

}  // namespace multihead::text::grammar
