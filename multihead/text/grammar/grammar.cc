#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/language.h"
#include "multihead/text/grammar/pattern-inl.h"
#include "multihead/text/grammar/regex-inl.h"

namespace multihead::text::grammar {
namespace {

constexpr int kDeepestGroup = 100;
constexpr size_t kLongestGrammar = size_t{1} << 18;

struct Rule {
  std::string name;
  Pattern pattern = {};
  bool is_defined = false;
};

class GrammarParser {
 public:
  explicit GrammarParser(std::string_view source) : source_(source) {
    MH_CHECK(source.size() <= kLongestGrammar, ValueError, "grammar: it has ", source.size(),
             " bytes, more than ", kLongestGrammar);
  }

  std::vector<Rule> parse() {
    skip_space();
    while (at_ < source_.size()) {
      const std::string name = word();
      if (name.empty()) fail("a rule's name is expected");
      skip_space();
      if (!take("::=")) fail("\"::=\" is expected");
      const auto rule = static_cast<size_t>(number_of(name));
      if (rules_[rule].is_defined) fail(concat("the rule ", name, " is there twice"));
      Pattern pattern = alternatives(0);
      rules_[rule].pattern = std::move(pattern), rules_[rule].is_defined = true;
    }
    for (const Rule& rule : rules_) {
      MH_CHECK(rule.is_defined, ValueError, "grammar: there is no rule ", quote(rule.name));
    }
    MH_CHECK(numbers_.contains("root"), ValueError,
             "grammar: there is no rule \"root\", by which a text begins");
    return std::move(rules_);
  }
  int32_t root() const { return numbers_.at("root"); }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    const auto line =
        1 + std::count(source_.begin(), source_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    throw ValueError(concat("grammar: line ", line, ": ", why));
  }
  char peek() const { return at_ < source_.size() ? source_[at_] : '\0'; }
  bool take(std::string_view word) {
    if (!source_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
    while (at_ < source_.size()) {
      if (peek() == '#') {
        at_ = std::min(source_.find('\n', at_), source_.size());
      } else if (std::string_view(" \t\r\n").find(peek()) != std::string_view::npos) {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }
  std::string word() {
    const size_t begin = at_;
    while (at_ < source_.size() && is_word(peek())) ++at_;
    return std::string(source_.substr(begin, at_ - begin));
  }
  int32_t number_of(const std::string& name) {
    const auto [found, is_new] = numbers_.try_emplace(name, static_cast<int32_t>(rules_.size()));
    if (is_new) rules_.push_back({name});
    return found->second;
  }
  // Whether the next rule begins here.
  bool begins_rule() {
    const size_t before = at_;
    const bool is_rule = !word().empty() && (skip_space(), take("::="));
    at_ = before;
    return is_rule;
  }

  Pattern alternatives(int depth) {
    if (depth > kDeepestGroup) fail("groups are nested too deeply");
    Pattern all = {.kind = Pattern::Kind::alternatives};
    do {
      all.parts.push_back(sequence(depth));
    } while (take("|"));
    return all;
  }

  Pattern sequence(int depth) {
    Pattern list;
    for (skip_space(); at_ < source_.size() && peek() != '|' && peek() != ')'; skip_space()) {
      if (is_word(peek()) && begins_rule()) break;
      list.parts.push_back(repeated(depth));
    }
    return list;
  }

  Pattern repeated(int depth) {
    Pattern part = atom(depth);
    while (true) {
      if (take("*")) {
        part = Pattern::repeated(std::move(part), 0, -1);
      } else if (take("+")) {
        part = Pattern::repeated(std::move(part), 1, -1);
      } else if (take("?")) {
        part = Pattern::repeated(std::move(part), 0, 1);
      } else if (take("{")) {
        const auto [least, most] = parse_bounds(source_, at_, "grammar");
        part = Pattern::repeated(std::move(part), least, most);
      } else {
        return part;
      }
    }
  }

  Pattern atom(int depth) {
    if (take("(")) {
      Pattern inner = alternatives(depth + 1);
      if (!take(")")) fail("\"(\" without \")\"");
      return inner;
    }
    if (take("[")) return Pattern::of(parse_class(source_, at_, "grammar"));
    if (take(".")) return Pattern::of({{0, kLastCodePoint}});
    if (take("\"")) return literal();
    const std::string name = word();
    if (name.empty()) fail(concat("unexpected ", quote(source_.substr(at_, 1))));
    return {.kind = Pattern::Kind::rule, .rule = number_of(name)};
  }

  // Escapes are those of classes, which end where one character has been read.
  Pattern literal() {
    Pattern text;
    while (!take("\"")) {
      if (at_ >= source_.size() || peek() == '\n') fail("a text does not end");
      if (peek() != '\\') {
        const Utf8Char c = decode_utf8(source_, at_);
        if (c.code_point < 0) fail("it is not UTF-8");
        text.parts.push_back(Pattern::of({{c.code_point, c.code_point}}));
        at_ += static_cast<size_t>(c.length);
        continue;
      }
      CharSet set = parse_escape(source_, at_, "grammar");
      if (set.size() != 1 || set[0].first != set[0].second) fail("a class cannot stand in a text");
      text.parts.push_back(Pattern::of(std::move(set)));
    }
    return text;
  }

  std::string_view source_;
  size_t at_ = 0;
  std::vector<Rule> rules_;
  std::map<std::string, int32_t> numbers_;
};

// A level of the stack: ref is the state to go on at, and below is where its rule returns to.
class GrammarLanguage : public Language {
 public:
  explicit GrammarLanguage(std::string_view source) {
    GrammarParser parser(source);
    const std::vector<Rule> rules = parser.parse();
    for (const Rule& rule : rules) {
      const int32_t done = nfa_.add(Nfa::State{});
      entries_.push_back(nfa_.add(rule.pattern, done));
    }
    root_ = entries_[static_cast<size_t>(parser.root())];
    check_ends(rules);
    check_left_recursion(rules);
  }

  void start(Stacks& stacks, Threads& out) const override {
    const uint32_t end = stacks.id({.ref = kEnd});
    follow(stacks, {.ref = root_, .parent = end}, out);
  }
  void step(Stacks& stacks, uint32_t thread, uint8_t byte, Threads& out) const override {
    const Frame frame = stacks.at(thread);
    if (frame.ref == kEnd) return;
    const Nfa::State& state = at(frame.ref);
    if (state.low <= byte && byte <= state.high)
      follow(stacks, {.ref = state.out, .parent = frame.parent}, out);
  }
  bool accepts(const Stacks& stacks, uint32_t thread) const override { return stacks.at(thread).ref == kEnd; }

 private:
  static constexpr int32_t kEnd = -1;
  static constexpr size_t kMostOpen = 20'000;
  const Nfa::State& at(int32_t state) const { return nfa_.states[static_cast<size_t>(state)]; }

  // The states that read a byte, behind edges that do not.
  void follow(Stacks& stacks, const Frame& from, Threads& out) const {
    std::set<uint32_t> seen;
    std::vector<Frame> open = {from};
    while (!open.empty()) {
      const Frame frame = open.back();
      open.pop_back();
      const uint32_t id = stacks.id(frame);
      if (!seen.insert(id).second) continue;
      MH_CHECK(seen.size() < kMostOpen, ValueError, "grammar: it can be read in too many ways");
      if (frame.ref == kEnd) {
        out.push_back(id);
        continue;
      }
      const Nfa::State& state = at(frame.ref);
      switch (state.kind) {
        case Nfa::Kind::split:
          open.push_back({.ref = state.out, .parent = frame.parent});
          open.push_back({.ref = state.other, .parent = frame.parent});
          break;
        case Nfa::Kind::call: {
          // A call that ends its rule needs no way back: tail recursion takes no memory.
          const bool is_last = at(state.out).kind == Nfa::Kind::done;
          const uint32_t back =
              is_last ? frame.parent : stacks.id({.ref = state.out, .parent = frame.parent});
          open.push_back({.ref = entries_[static_cast<size_t>(state.other)], .parent = back});
          break;
        }
        case Nfa::Kind::done:
          open.push_back(stacks.at(frame.parent));
          break;
        default:
          out.push_back(id);
      }
    }
  }

  // States from which a rule's end can be reached, if rules that end are passed.
  bool ends(int32_t entry, const std::vector<uint8_t>& known) const {
    std::set<int32_t> seen;
    std::vector<int32_t> open = {entry};
    while (!open.empty()) {
      const int32_t number = open.back();
      open.pop_back();
      if (!seen.insert(number).second) continue;
      const Nfa::State& state = at(number);
      if (state.kind == Nfa::Kind::done) return true;
      if (state.kind == Nfa::Kind::bytes && state.low > state.high) continue;
      if (state.kind == Nfa::Kind::call && !known[static_cast<size_t>(state.other)]) continue;
      open.push_back(state.out);
      if (state.kind == Nfa::Kind::split) open.push_back(state.other);
    }
    return false;
  }

  void check_ends(const std::vector<Rule>& rules) const {
    std::vector<uint8_t> known(rules.size(), 0);
    for (bool changes = true; changes;) {
      changes = false;
      for (size_t rule = 0; rule < rules.size(); ++rule) {
        if (known[rule] || !ends(entries_[rule], known)) continue;
        known[rule] = 1;
        changes = true;
      }
    }
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      MH_CHECK(known[rule], ValueError, "grammar: the rule ", quote(rules[rule].name), " never ends");
    }
    for (const Nfa::State& state : nfa_.states) {
      MH_CHECK(state.kind != Nfa::Kind::bytes || state.low <= state.high, ValueError,
               "grammar: a class holds no character");
    }
  }

  // The rules that may be called before a byte is read; and whether a rule may be empty.
  void check_left_recursion(const std::vector<Rule>& rules) const {
    std::vector<uint8_t> is_empty(rules.size(), 0);
    std::vector<std::set<int32_t>> calls(rules.size());
    for (bool changes = true; changes;) {
      changes = false;
      for (size_t rule = 0; rule < rules.size(); ++rule) {
        std::set<int32_t> seen;
        std::vector<int32_t> open = {entries_[rule]};
        while (!open.empty()) {
          const int32_t number = open.back();
          open.pop_back();
          if (!seen.insert(number).second) continue;
          const Nfa::State& state = at(number);
          if (state.kind == Nfa::Kind::done && !is_empty[rule]) {
            is_empty[rule] = 1;
            changes = true;
          }
          if (state.kind == Nfa::Kind::split) open.insert(open.end(), {state.out, state.other});
          if (state.kind != Nfa::Kind::call) continue;
          changes |= calls[rule].insert(state.other).second;
          for (const int32_t other : calls[static_cast<size_t>(state.other)])
            changes |= calls[rule].insert(other).second;
          if (is_empty[static_cast<size_t>(state.other)]) open.push_back(state.out);
        }
      }
    }
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      MH_CHECK(!calls[rule].contains(static_cast<int32_t>(rule)), ValueError, "grammar: the rule ",
               quote(rules[rule].name), " begins with itself (left recursion); use repetition");
    }
  }

  Nfa nfa_;
  std::vector<int32_t> entries_;
  int32_t root_ = 0;
};

}  // namespace

LanguagePtr grammar_language(std::string_view source) { return std::make_shared<GrammarLanguage>(source); }

}  // namespace multihead::text::grammar
