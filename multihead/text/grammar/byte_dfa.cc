#include "multihead/text/grammar/byte_dfa.h"

#include <algorithm>
#include <map>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/pattern-inl.h"
#include "multihead/text/grammar/regex-inl.h"

namespace multihead::text::grammar {
namespace {

// Bounds the memory and the time of what comes from strangers: some 10 MB and a tenth of a second.
constexpr size_t kMostDfaStates = 10'000;
constexpr size_t kMostWork = 5'000'000;

// The classes of bytes that begin at the given ones.
size_t class_table(const std::set<int>& begins, std::array<uint8_t, 256>& classes) {
  int current = -1;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 0 || begins.contains(byte)) ++current;
    classes[static_cast<size_t>(byte)] = static_cast<uint8_t>(current);
  }
  return static_cast<size_t>(current) + 1;
}

// The sets of states of an NFA that a text may lead to.
class Subsets {
 public:
  explicit Subsets(const Nfa& nfa) : nfa_(nfa), seen_(nfa.states.size(), 0) {}

  // Where edges that read nothing lead to. Ends of the text are kept, not passed, unless it ends here.
  std::vector<int64_t> closure(std::vector<int64_t> open, bool is_begin, bool is_end) {
    ++round_;
    std::vector<int64_t> kept;
    while (!open.empty()) {
      const int64_t at = open.back();
      open.pop_back();
      if (at < 0 || seen_[static_cast<size_t>(at)] == round_) continue;
      seen_[static_cast<size_t>(at)] = round_;
      const Nfa::State& state = nfa_.states[static_cast<size_t>(at)];
      MH_CHECK(++work_ < kMostWork, ValueError, "regex: it takes too long to compile; simplify it");
      switch (state.kind) {
        case Nfa::Kind::split:
          open.push_back(state.other), open.push_back(state.out);
          break;
        case Nfa::Kind::begin:
          if (is_begin) open.push_back(state.out);
          break;
        case Nfa::Kind::end:
          if (is_end) open.push_back(state.out);
          kept.push_back(at);
          break;
        default:
          kept.push_back(at);
      }
    }
    std::sort(kept.begin(), kept.end());
    return kept;
  }

  std::vector<int64_t> step(const std::vector<int64_t>& set, uint8_t byte) {
    std::vector<int64_t> open;
    for (const int64_t at : set) {
      const Nfa::State& state = nfa_.states[static_cast<size_t>(at)];
      MH_CHECK(++work_ < kMostWork, ValueError, "regex: it takes too long to compile; simplify it");
      if (state.kind == Nfa::Kind::bytes && state.low <= byte && byte <= state.high)
        open.push_back(state.out);
    }
    return open.empty() ? open : closure(std::move(open), false, false);
  }

  bool accepts(const std::vector<int64_t>& set, bool is_begin) {
    const std::vector<int64_t> all = closure(set, is_begin, true);
    return std::any_of(all.begin(), all.end(), [&](int64_t at) {
      return nfa_.states[static_cast<size_t>(at)].kind == Nfa::Kind::done;
    });
  }

 private:
  const Nfa& nfa_;
  std::vector<uint32_t> seen_;
  uint32_t round_ = 0;
  size_t work_ = 0;
};

}  // namespace

// Numbers the states, each a list of integers, in the order in which they are reached.
template <class Next, class Accepts>
ByteDfa ByteDfa::explore(const std::array<uint8_t, 256>& classes, size_t width, std::vector<int64_t> start,
                         const Next& next, const Accepts& accepts) {
  ByteDfa dfa;
  dfa.classes_ = classes, dfa.width_ = width;
  std::vector<uint8_t> first(width, 0);
  for (size_t byte = 256; byte-- > 0;) first[classes[byte]] = static_cast<uint8_t>(byte);
  std::map<std::vector<int64_t>, int32_t> numbers;
  std::vector<const std::vector<int64_t>*> order;
  const auto number_of = [&](std::vector<int64_t> key) {
    const auto [at, is_new] = numbers.try_emplace(std::move(key), static_cast<int32_t>(numbers.size()));
    MH_CHECK(numbers.size() <= kMostDfaStates, ValueError, "pattern: it needs more than ", kMostDfaStates,
             " states; shorten its repetitions");
    if (is_new) order.push_back(&at->first);
    return at->second;
  };
  number_of(std::move(start));
  for (size_t state = 0; state < order.size(); ++state) {
    dfa.accepting_.push_back(accepts(*order[state], state == 0) ? 1 : 0);
    for (size_t c = 0; c < width; ++c) {
      std::vector<int64_t> to = next(*order[state], first[c]);
      dfa.table_.push_back(to.empty() ? kDead : number_of(std::move(to)));
    }
  }
  dfa.trim();
  return dfa;
}

// Removes states from which no text ends.
void ByteDfa::trim() {
  const size_t count = accepting_.size();
  std::vector<std::vector<int32_t>> before(count);
  std::vector<int32_t> open, kept(count, kDead);
  std::vector<uint8_t> lives = accepting_;
  for (size_t state = 0; state < count; ++state) {
    if (lives[state]) open.push_back(static_cast<int32_t>(state));
    for (size_t c = 0; c < width_; ++c) {
      const int32_t to = table_[state * width_ + c];
      if (to != kDead) before[static_cast<size_t>(to)].push_back(static_cast<int32_t>(state));
    }
  }
  while (!open.empty()) {
    const auto state = static_cast<size_t>(open.back());
    open.pop_back();
    for (const int32_t from : before[state]) {
      if (lives[static_cast<size_t>(from)]) continue;
      lives[static_cast<size_t>(from)] = 1;
      open.push_back(from);
    }
  }
  int32_t left = 0;
  if (count > 0 && lives[0]) {
    for (size_t state = 0; state < count; ++state) kept[state] = lives[state] ? left++ : kDead;
  }
  std::vector<int32_t> table;
  std::vector<uint8_t> accepting;
  for (size_t state = 0; state < count; ++state) {
    if (kept[state] == kDead) continue;
    accepting.push_back(accepting_[state]);
    for (size_t c = 0; c < width_; ++c) {
      const int32_t to = table_[state * width_ + c];
      table.push_back(to == kDead ? kDead : kept[static_cast<size_t>(to)]);
    }
  }
  table_ = std::move(table), accepting_ = std::move(accepting);
}

ByteDfa ByteDfa::regex(std::string_view source, bool searches) {
  Pattern pattern = parse_regex(source);
  if (searches) {
    const Pattern any = Pattern::repeated(Pattern::of({{0, kLastCodePoint}}), 0, -1);
    pattern = {.kind = Pattern::Kind::sequence, .parts = {any, std::move(pattern), any}};
  }
  Nfa nfa;
  const int32_t done = nfa.add(Nfa::State{});
  const int32_t entry = nfa.add(pattern, done);
  std::set<int> begins;
  for (const Nfa::State& state : nfa.states) {
    if (state.kind == Nfa::Kind::bytes) begins.insert({state.low, state.high + 1});
  }
  std::array<uint8_t, 256> classes;
  const size_t width = class_table(begins, classes);
  Subsets subsets(nfa);
  // The first state alone may pass "^": a mark keeps it apart from others with the same states.
  std::vector<int64_t> start = subsets.closure({entry}, true, false);
  start.push_back(-1);
  const auto unmarked = [](std::vector<int64_t> set) {
    if (set.back() == -1) set.pop_back();
    return set;
  };
  ByteDfa dfa = explore(
      classes, width, std::move(start),
      [&](const std::vector<int64_t>& set, uint8_t byte) { return subsets.step(unmarked(set), byte); },
      [&](const std::vector<int64_t>& set, bool is_begin) {
        return subsets.accepts(unmarked(set), is_begin);
      });
  MH_CHECK(!dfa.is_empty(), ValueError, "regex: no text fits ", quote(source));
  return dfa;
}

ByteDfa ByteDfa::literals(const std::vector<std::string>& texts) {
  std::set<int> begins;
  for (const std::string& text : texts) {
    for (const char c : text) begins.insert({static_cast<uint8_t>(c), static_cast<uint8_t>(c) + 1});
  }
  std::array<uint8_t, 256> classes;
  const size_t width = class_table(begins, classes);
  // A state is how far a text has been read, and which ones begin so.
  std::vector<int64_t> start = {0};
  for (size_t i = 0; i < texts.size(); ++i) start.push_back(static_cast<int64_t>(i));
  return explore(
      classes, width, std::move(start),
      [&](const std::vector<int64_t>& set, uint8_t byte) {
        std::vector<int64_t> to = {set[0] + 1};
        for (size_t i = 1; i < set.size(); ++i) {
          const std::string& text = texts[static_cast<size_t>(set[i])];
          if (static_cast<size_t>(set[0]) < text.size() &&
              static_cast<uint8_t>(text[static_cast<size_t>(set[0])]) == byte)
            to.push_back(set[i]);
        }
        return to.size() > 1 ? to : std::vector<int64_t>();
      },
      [&](const std::vector<int64_t>& set, bool) {
        return std::any_of(set.begin() + 1, set.end(), [&](int64_t i) {
          return texts[static_cast<size_t>(i)].size() == static_cast<size_t>(set[0]);
        });
      });
}

int32_t ByteDfa::run(std::string_view text, int32_t state) const {
  if (is_empty()) return kDead;
  for (const char c : text) {
    if (state == kDead) return kDead;
    state = next(state, static_cast<uint8_t>(c));
  }
  return state;
}

bool ByteDfa::accepts(std::string_view text) const {
  const int32_t state = run(text);
  return state != kDead && accepts(state);
}

// Reads both at once; the other one may be dead.
template <class Accepts>
ByteDfa ByteDfa::product(const ByteDfa& other, bool needs_other, const Accepts& accepts) const {
  std::set<int> begins;
  for (size_t byte = 1; byte < 256; ++byte) {
    if (classes_[byte] != classes_[byte - 1] || other.classes_[byte] != other.classes_[byte - 1])
      begins.insert(static_cast<int>(byte));
  }
  std::array<uint8_t, 256> classes;
  const size_t width = class_table(begins, classes);
  return explore(
      classes, width, {kStart, kStart},
      [&](const std::vector<int64_t>& pair, uint8_t byte) -> std::vector<int64_t> {
        const int32_t a = next(static_cast<int32_t>(pair[0]), byte);
        const int32_t b = pair[1] == kDead ? kDead : other.next(static_cast<int32_t>(pair[1]), byte);
        if (a == kDead || (needs_other && b == kDead)) return {};
        return {a, b};
      },
      [&](const std::vector<int64_t>& pair, bool) {
        return accepts(accepting_[static_cast<size_t>(pair[0])] != 0,
                       pair[1] != kDead && other.accepts(static_cast<int32_t>(pair[1])));
      });
}

ByteDfa ByteDfa::intersection(const ByteDfa& other) const {
  if (is_empty() || other.is_empty()) return {};
  return product(other, true, [](bool a, bool b) { return a && b; });
}

ByteDfa ByteDfa::without(const ByteDfa& other) const {
  if (is_empty() || other.is_empty()) return *this;
  return product(other, false, [](bool a, bool b) { return a && !b; });
}

ByteDfa ByteDfa::with_length(int64_t least, int64_t most) const {
  if (is_empty() || (most >= 0 && least > most)) return {};
  std::set<int> begins = {0x80, 0xC0};
  for (size_t byte = 1; byte < 256; ++byte) {
    if (classes_[byte] != classes_[byte - 1]) begins.insert(static_cast<int>(byte));
  }
  std::array<uint8_t, 256> classes;
  const size_t width = class_table(begins, classes);
  return explore(
      classes, width, {kStart, 0},
      [&](const std::vector<int64_t>& pair, uint8_t byte) -> std::vector<int64_t> {
        const int32_t to = next(static_cast<int32_t>(pair[0]), byte);
        const int64_t count = pair[1] + ((byte & 0xC0) == 0x80 ? 0 : 1);
        if (to == kDead || (most >= 0 && count > most)) return {};
        return {to, most < 0 ? std::min(count, least) : count};
      },
      [&](const std::vector<int64_t>& pair, bool) {
        return accepts(static_cast<int32_t>(pair[0])) && pair[1] >= least;
      });
}

}  // namespace multihead::text::grammar
