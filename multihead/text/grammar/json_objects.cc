#include <algorithm>

#include "multihead/text/grammar/json_language-inl.h"

namespace multihead::text::grammar {
namespace {

// White space between tokens: a space, or a line's end and an indentation. Models that may write any do not stop.
constexpr int kNewLine = 100;
int space_next(int state, uint8_t byte) {
  if (byte == '\n') return state == 0 ? kNewLine : -1;
  if (byte != ' ' && byte != '\t') return -1;
  return state < 1 || (state >= kNewLine && state < kNewLine + 64) ? state + 1 : -1;
}

}  // namespace

bool JsonLanguage::space(const Move& move, bool may_break) const {
  const int state = space_next(move.frame.small, move.byte);
  if (state < 0 || (state == kNewLine && !may_break)) return false;
  Frame to = move.frame;
  to.small = static_cast<uint16_t>(state);
  move.go(to);
  return true;
}

void JsonLanguage::array(const Move& move) const {
  const JsonVariant& own = variant(move.frame);
  const int64_t count = move.frame.x;
  const bool is_found = own.having.empty() || move.frame.y != 0, may_close = count >= own.least && is_found;
  if (space(move, move.frame.op != kArrayAfter || may_close)) return;
  if (move.frame.op != kArrayNext && move.byte == ']') {
    if (may_close) complete(move, move.frame.parent);
    return;
  }
  const auto lives = [&](int32_t node) { return is_possible(node); };
  const bool has_room = own.most < 0 || count < own.most;
  const bool may_be_any = has_room && lives(own.item(count)) && (is_found || own.can_find(count + 1, lives));
  const bool may_be_found = has_room && !is_found && lives(own.item_having(count));
  if (move.frame.op == kArrayAfter) {
    const bool goes_on = may_be_any || may_be_found;
    if (goes_on && move.byte == ',' && move.frame.small < kNewLine) move.go(move.with(kArrayNext));
    return;
  }
  Frame after = move.with(kArrayAfter);
  // Beyond what is told apart, numbers of items are one.
  const int64_t same = own.most >= 0
                           ? own.most
                           : std::max<int64_t>({own.least, std::ssize(own.prefix), std::ssize(own.having)});
  after.x = static_cast<int32_t>(std::min(count + 1, same));
  if (may_be_any) begin_value(move, own.item(count), after);
  if (!may_be_found) return;
  after.y = 1;
  begin_value(move, own.item_having(count), after);
}

// Whether a new name leaves room for those that must come.
bool JsonLanguage::has_room(const std::vector<int32_t>& seen, const JsonVariant& own,
                            bool is_required) const {
  if (own.most < 0) return true;
  int64_t missing = is_required ? -1 : 0;
  for (int32_t p = 0; p < std::ssize(own.properties); ++p) {
    if (own.properties[static_cast<size_t>(p)].is_required)
      missing += std::find(seen.begin() + 1, seen.end(), p) == seen.end();
  }
  return seen[0] + 1 + missing <= own.most;
}

bool JsonLanguage::can_add(const Stacks& stacks, const Frame& frame, int32_t property) const {
  const JsonVariant& own = variant(frame);
  const JsonProperty& candidate = own.properties[static_cast<size_t>(property)];
  const std::vector<int32_t>& seen = stacks.list(frame.x);
  return is_possible(candidate.node) && std::find(seen.begin() + 1, seen.end(), property) == seen.end() &&
         has_room(seen, own, candidate.is_required);
}

bool JsonLanguage::can_add_other(const Stacks& stacks, const Frame& frame) const {
  const JsonVariant& own = variant(frame);
  return own.has_others && has_room(stacks.list(frame.x), own, false);
}

bool JsonLanguage::can_add_any(const Stacks& stacks, const Frame& frame, int32_t names) const {
  if (can_add_other(stacks, frame)) return true;
  if (names == ByteDfa::kDead || variant(frame).dfa.is_empty()) return false;
  const std::vector<int32_t>& list = variant(frame).names_at[static_cast<size_t>(names)];
  return std::any_of(list.begin(), list.end(), [&](int32_t p) { return can_add(stacks, frame, p); });
}

bool JsonLanguage::can_close(const Stacks& stacks, const Frame& frame) const {
  const JsonVariant& own = variant(frame);
  const std::vector<int32_t>& seen = stacks.list(frame.x);
  if (seen[0] < own.least) return false;
  for (int32_t p = 0; p < std::ssize(own.properties); ++p) {
    if (own.properties[static_cast<size_t>(p)].is_required &&
        std::find(seen.begin() + 1, seen.end(), p) == seen.end())
      return false;
  }
  return true;
}

// The members seen, with one more. Counting stops once more members change nothing.
int32_t JsonLanguage::with_name(Stacks& stacks, const Frame& frame, int32_t entry) const {
  const JsonVariant& own = variant(frame);
  std::vector<int32_t> seen = stacks.list(frame.x);
  if (own.most >= 0 || seen[0] < own.least) ++seen[0];
  if (entry >= 0) {
    seen.push_back(entry);
    std::sort(seen.begin() + 1, seen.end());
  }
  return stacks.list_id(seen);
}

void JsonLanguage::object(const Move& move) const {
  if (space(move, move.frame.op != kObjectAfter || can_close(move.stacks, move.frame))) return;
  if (move.frame.op != kObjectNext && move.byte == '}') {
    if (can_close(move.stacks, move.frame)) complete(move, move.frame.parent);
    return;
  }
  if (!can_add_any(move.stacks, move.frame, ByteDfa::kStart)) return;
  if (move.frame.op == kObjectAfter) {
    if (move.byte == ',' && move.frame.small < kNewLine) move.go(move.with(kObjectNext));
    return;
  }
  if (move.byte != '"') return;
  const JsonVariant& own = variant(move.frame);
  Frame to = move.with(kKey);
  std::vector<int32_t> states = {own.dfa.is_empty() ? ByteDfa::kDead : ByteDfa::kStart};
  states.resize(1 + own.patterns.size(), ByteDfa::kStart);
  if (own.counts_names) states.push_back(move.stacks.list_id({}));
  to.y = move.stacks.list_id(states);
  move.go(to);
}

void JsonLanguage::key(const Move& move) const {
  uint8_t byte = move.byte;
  if (move.frame.op == kKeyEscape) {
    const size_t at = kEscapes.find(static_cast<char>(byte));
    if (at != std::string_view::npos) key_byte(move, static_cast<uint8_t>(kEscaped[at]));
    return;
  }
  if (move.frame.small == 0 && byte == '"') return close_key(move);
  if (byte < 0x20) return;
  if (byte != '\\') return key_byte(move, byte);
  // An escape must lead somewhere.
  Threads found;
  for (const char c : kEscaped) key_byte({move.stacks, found, move.frame, byte}, static_cast<uint8_t>(c));
  if (!found.empty()) move.go(move.with(kKeyEscape));
}

void JsonLanguage::key_byte(const Move& move, uint8_t byte) const {
  const JsonVariant& own = variant(move.frame);
  const int state = utf8_next(move.frame.small, byte);
  if (state < 0) return;
  std::vector<int32_t> states = move.stacks.list(move.frame.y);
  if (states[0] != ByteDfa::kDead) states[0] = own.dfa.next(states[0], byte);
  for (size_t i = 0; i < own.patterns.size(); ++i) {
    if (states[i + 1] != ByteDfa::kDead) states[i + 1] = own.patterns[i].next(states[i + 1], byte);
  }
  if (own.counts_names) {
    std::vector<int32_t> text = move.stacks.list(states.back());
    text.push_back(byte);
    states.back() = move.stacks.list_id(text);
  }
  // Other names need patterns that they may still fit, and a value for those.
  size_t fitting = 0;
  for (size_t i = 0; i < own.patterns.size(); ++i) fitting |= size_t{states[i + 1] != ByteDfa::kDead} << i;
  bool may_be_other = false;
  for (size_t set = 0; set < own.others.size() && !may_be_other; ++set)
    may_be_other = (set & ~fitting) == 0 && is_possible(own.others[set]);
  Frame to = move.with(kKey);
  to.small = static_cast<uint16_t>(state);
  bool lives = may_be_other && can_add_other(move.stacks, to);
  if (!lives && states[0] != ByteDfa::kDead) {
    const std::vector<int32_t>& names = own.names_at[static_cast<size_t>(states[0])];
    lives = std::any_of(names.begin(), names.end(), [&](int32_t p) { return can_add(move.stacks, to, p); });
  }
  if (!lives) return;
  to.y = move.stacks.list_id(states);
  move.go(to);
}

void JsonLanguage::close_key(const Move& move) const {
  const JsonVariant& own = variant(move.frame);
  const std::vector<int32_t> states = move.stacks.list(move.frame.y);
  const int32_t property = states[0] == ByteDfa::kDead ? -1 : own.name_at[static_cast<size_t>(states[0])];
  Frame to = move.with(kColon);
  if (property >= 0) {
    if (!can_add(move.stacks, move.frame, property)) return;
    to.y = own.properties[static_cast<size_t>(property)].node;
    to.x = with_name(move.stacks, move.frame, property);
    return move.go(to);
  }
  if (!can_add_other(move.stacks, move.frame)) return;
  size_t fitting = 0;
  for (size_t i = 0; i < own.patterns.size(); ++i) {
    const bool fits = states[i + 1] != ByteDfa::kDead && own.patterns[i].accepts(states[i + 1]);
    fitting |= size_t{fits} << i;
  }
  to.y = own.others[fitting];
  if (!is_possible(to.y)) return;
  int32_t entry = -1;
  if (own.counts_names) {
    entry = static_cast<int32_t>(own.properties.size()) + states.back();
    const std::vector<int32_t>& seen = move.stacks.list(move.frame.x);
    if (std::find(seen.begin() + 1, seen.end(), entry) != seen.end()) return;
  }
  to.x = with_name(move.stacks, move.frame, entry);
  move.go(to);
}

void JsonLanguage::colon(const Move& move) const {
  if (space(move, false)) return;
  if (move.frame.op == kColon) {
    if (move.byte == ':') move.go(move.with(kValue));
    return;
  }
  Frame after = move.with(kObjectAfter);
  after.y = 0;
  begin_value(move, move.frame.y, after);
}

}  // namespace multihead::text::grammar
