#include "multihead/text/grammar/json_language-inl.h"

#include <algorithm>

namespace multihead::text::grammar {

int utf8_next(int state, uint8_t byte) {
  const auto within = [&](int low, int high, int to) { return byte >= low && byte <= high ? to : -1; };
  switch (state) {
    case 0:
      if (byte < 0x80) return 0;
      if (byte < 0xC2) return -1;
      if (byte < 0xE0) return 1;
      if (byte < 0xF0) return byte == 0xE0 ? 4 : byte == 0xED ? 5 : 2;
      return byte == 0xF0 ? 6 : byte < 0xF4 ? 3 : byte == 0xF4 ? 7 : -1;
    case 1:
      return within(0x80, 0xBF, 0);
    case 2:
      return within(0x80, 0xBF, 1);
    case 3:
      return within(0x80, 0xBF, 2);
    case 4:
      return within(0xA0, 0xBF, 1);
    case 5:
      return within(0x80, 0x9F, 1);
    case 6:
      return within(0x90, 0xBF, 2);
    default:
      return within(0x80, 0x8F, 2);
  }
}

namespace {

constexpr uint8_t kDeepest = 60;  // of the 64 levels that Json reads
constexpr int32_t kMostDigits = 100;

int hex_digit(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  return byte >= 'A' && byte <= 'F' ? byte - 'A' + 10 : -1;
}

// The same for characters that stand for themselves in a string and are no line ends, as "." in a pattern has them:
// without U+2028 and U+2029, whose bytes are E2 80 A8 and E2 80 A9. -1: no such character.
int plain_next(int state, uint8_t byte) {
  constexpr int kE2 = 8, kE280 = 9;
  if (state == 0 && (byte < 0x20 || byte == '"' || byte == '\\')) return -1;
  if (state == 0 && byte == 0xE2) return kE2;
  if (state == kE2) return byte == 0x80 ? kE280 : utf8_next(2, byte);
  if (state == kE280) return byte == 0xA8 || byte == 0xA9 ? -1 : utf8_next(1, byte);
  return utf8_next(state, byte);
}

// The states of an automaton that any plain characters may follow, as where a pattern is searched for: there a
// vocabulary need not be walked. Found by taking away those that one character or another leaves dead.
std::vector<uint8_t> open_states(const ByteDfa& dfa) {
  constexpr size_t kMost = 2000, kPlainStates = 10;
  constexpr int kRounds = 50;
  std::vector<uint8_t> open(dfa.size() * kPlainStates, 1);
  bool changes = dfa.size() <= kMost;
  for (int round = 0; changes && round < kRounds; ++round) {
    changes = false;
    for (size_t at = 0; at < open.size(); ++at) {
      for (int byte = 0; byte < 256 && open[at]; ++byte) {
        const int plain = plain_next(static_cast<int>(at % kPlainStates), static_cast<uint8_t>(byte));
        if (plain < 0) continue;
        const int32_t to = dfa.next(static_cast<int32_t>(at / kPlainStates), static_cast<uint8_t>(byte));
        if (to != ByteDfa::kDead && open[static_cast<size_t>(to) * kPlainStates + static_cast<size_t>(plain)])
          continue;
        open[at] = 0;
        changes = true;
      }
    }
  }
  std::vector<uint8_t> list(dfa.size(), 0);
  for (size_t state = 0; state < dfa.size() && !changes && dfa.size() <= kMost; ++state)
    list[state] = open[state * kPlainStates];
  return list;
}

bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

}  // namespace

JsonLanguage::JsonLanguage(JsonProgram program) : program_(std::move(program)) {
  for (JsonVariant& variant : program_.variants) {
    if (variant.kind == JsonVariant::Kind::pattern) variant.open = open_states(variant.dfa);
  }
}

void JsonLanguage::start(Stacks& stacks, Threads& out) const {
  const uint32_t done = stacks.id({.op = kDone});
  if (!program_.trigger.empty()) {
    out.push_back(stacks.id({.op = kFree, .parent = done}));
    return;
  }
  for (int32_t i = 0; i < std::ssize(program_.sequences); ++i) {
    out.push_back(stacks.id({.op = kSequence, .ref = i, .parent = done}));
  }
}

// A value has ended: what is around it goes on.
void JsonLanguage::complete(const Move& move, uint32_t parent) const {
  const Frame frame = move.stacks.at(parent);
  const bool is_over =
      frame.op == kSequence && frame.x == std::ssize(program_.sequences[static_cast<size_t>(frame.ref)]);
  if (is_over) return complete(move, frame.parent);
  move.out.push_back(parent);
}

// Numbers and literals do not say where they end.
void JsonLanguage::settle(const Move& move, const Frame& frame) const {
  if (frame.op != kLiteral) {
    move.go(frame);
    const bool ends = frame.op == kNumberZero || frame.op == kNumberWhole || frame.op == kNumberFraction ||
                      frame.op == kNumberExponent;
    if (ends) complete(move, frame.parent);
    return;
  }
  const ByteDfa& dfa = variant(frame).dfa;
  bool goes_on = false;
  for (int byte = 0; byte < 256 && !goes_on; ++byte) {
    goes_on = dfa.next(frame.x, static_cast<uint8_t>(byte)) != ByteDfa::kDead;
  }
  if (goes_on) move.go(frame);
  if (dfa.accepts(frame.x)) complete(move, frame.parent);
}

void JsonLanguage::begin_value(const Move& move, int32_t node, const Frame& after) const {
  const uint32_t parent = move.stacks.id(after);
  for (const int32_t number : program_.nodes[static_cast<size_t>(node)]) {
    begin(move, number, parent, after.depth);
  }
}

void JsonLanguage::begin(const Move& move, int32_t number, uint32_t parent, uint8_t depth) const {
  const JsonVariant& own = program_.variants[static_cast<size_t>(number)];
  const uint8_t byte = move.byte;
  Frame to = {.depth = depth, .ref = number, .parent = parent};
  switch (own.kind) {
    case JsonVariant::Kind::literal:
      to.op = kLiteral, to.x = own.dfa.next(ByteDfa::kStart, byte);
      if (to.x != ByteDfa::kDead) settle(move, to);
      return;
    case JsonVariant::Kind::number:
      if (byte != '-' && !is_digit(byte)) return;
      to.op = byte == '-' ? kNumberMinus : byte == '0' ? kNumberZero : kNumberWhole;
      to.x = byte == '-' ? 0 : 1;
      return settle(move, to);
    case JsonVariant::Kind::range:
      return range({move.stacks, move.out, to, byte}, {});
    case JsonVariant::Kind::string:
    case JsonVariant::Kind::pattern:
      if (byte != '"') return;
      to.op = own.kind == JsonVariant::Kind::string ? kString : kPattern;
      return move.go(to);
    case JsonVariant::Kind::array:
    case JsonVariant::Kind::object:
      break;
  }
  const bool is_array = own.kind == JsonVariant::Kind::array;
  if (byte != static_cast<uint8_t>(is_array ? '[' : '{') || depth >= kDeepest) return;
  to.op = is_array ? kArrayFirst : kObjectFirst, to.depth = static_cast<uint8_t>(depth + 1);
  if (!is_array) to.x = move.stacks.list_id({0});
  move.go(to);
}

// The automaton of Knuth, Morris and Pratt: how much of the trigger the end of the text is.
void JsonLanguage::free_text(const Move& move) const {
  const std::string& trigger = program_.trigger;
  auto matched = static_cast<size_t>(move.frame.x);
  const std::string text = trigger.substr(0, matched) + static_cast<char>(move.byte);
  for (matched = std::min(text.size(), trigger.size()); !text.ends_with(trigger.substr(0, matched));)
    --matched;
  Frame to = move.frame;
  to.x = matched == trigger.size() ? 0 : static_cast<int32_t>(matched);
  if (matched < trigger.size()) return move.go(to);
  const uint32_t parent = move.stacks.id(to);
  for (int32_t i = 0; i < std::ssize(program_.sequences); ++i) {
    move.go({.op = kSequence, .ref = i, .parent = parent});
  }
}

void JsonLanguage::sequence(const Move& move) const {
  const auto& parts = program_.sequences[static_cast<size_t>(move.frame.ref)];
  const JsonProgram::Part& part = parts[static_cast<size_t>(move.frame.x)];
  Frame next = move.frame;
  ++next.x, next.y = 0;
  if (part.node >= 0) return begin_value(move, part.node, next);
  if (static_cast<uint8_t>(part.literal[static_cast<size_t>(move.frame.y)]) != move.byte) return;
  Frame to = move.frame;
  if (static_cast<size_t>(++to.y) < part.literal.size()) return move.go(to);
  complete(move, move.stacks.id(next));
}

void JsonLanguage::number(const Move& move) const {
  const uint8_t byte = move.byte;
  Frame to = move.frame;
  const auto go = [&](Op op) {
    to.op = op;
    settle(move, to);
  };
  const bool takes_digit = is_digit(byte) && to.x < kMostDigits;
  const bool is_integer = variant(to).is_integer;
  ++to.x;
  switch (move.frame.op) {
    case kNumberMinus:
      if (takes_digit) go(byte == '0' ? kNumberZero : kNumberWhole);
      return;
    case kNumberZero:
    case kNumberWhole:
      if (takes_digit && move.frame.op == kNumberWhole) return go(kNumberWhole);
      if (byte == '.' && !is_integer && to.x < kMostDigits) return go(kNumberDot);
      break;
    case kNumberDot:
    case kNumberFraction:
      if (takes_digit) return go(kNumberFraction);
      if (move.frame.op == kNumberDot) return;
      break;
    case kNumberE:
    case kNumberSign:
      if (move.frame.op == kNumberE && (byte == '-' || byte == '+')) return go(kNumberSign);
      to.x = 1;
      if (is_digit(byte)) go(kNumberExponent);
      return;
    default:  // of two digits at most, so that no number is beyond a double
      if (is_digit(byte) && move.frame.x == 1) go(kNumberExponent);
      return;
  }
  if ((byte == 'e' || byte == 'E') && !is_integer) go(kNumberE);
}

void JsonLanguage::range(const Move& move, std::vector<int32_t> text) const {
  if (move.byte != '-' && move.byte != '.' && !is_digit(move.byte)) return;
  if (move.byte == '-' && !text.empty()) return;
  if (move.byte == '.' && (text.empty() || !is_digit(static_cast<uint8_t>(text.back())) ||
                           std::find(text.begin(), text.end(), '.') != text.end()))
    return;
  text.push_back(move.byte);
  const std::string said(text.begin(), text.end());
  const NumberRange& own = variant(move.frame).range;
  if (own.can_begin(said)) {
    Frame to = move.frame;
    to.op = kRange, to.x = move.stacks.list_id(text);
    move.go(to);
  }
  if (own.has(said)) complete(move, move.frame.parent);
}

void JsonLanguage::string(const Move& move) const {
  const JsonVariant& own = variant(move.frame);
  const uint8_t byte = move.byte;
  Frame to = move.frame;
  if (to.small == 0) {
    if (byte < 0x20) return;
    if (byte == '"') {
      if (to.x >= own.least) complete(move, to.parent);
      return;
    }
    if (own.most >= 0 && to.x >= own.most) return;
    if (own.most >= 0 || to.x < own.least) ++to.x;
    if (byte == '\\') {
      to.op = kEscape;
      return move.go(to);
    }
  }
  const int state = utf8_next(to.small, byte);
  if (state < 0) return;
  to.small = static_cast<uint16_t>(state);
  move.go(to);
}

// y of kHex: the digits' value, how many there are << 16, and whether they are the second half of a pair << 20.
void JsonLanguage::escape(const Move& move) const {
  Frame to = move.frame;
  switch (to.op) {
    case kEscape:
      if (move.byte == 'u') {
        to.op = kHex, to.y = 0;
        move.go(to);
      } else if (kEscapes.find(static_cast<char>(move.byte)) != std::string_view::npos) {
        to.op = kString;
        move.go(to);
      }
      return;
    case kLowEscape:
      to.op = kLowU;
      if (move.byte == '\\') move.go(to);
      return;
    case kLowU:
      to.op = kHex, to.y = 1 << 20;
      if (move.byte == 'u') move.go(to);
      return;
    default:
      break;
  }
  const int digit = hex_digit(move.byte);
  if (digit < 0) return;
  const int count = (to.y >> 16 & 15) + 1, value = (to.y & 0xFFFF) << 4 | digit;
  const bool is_low = to.y >> 20 != 0;
  const bool may_be_low = count == 1 ? value == 0xD : count == 2 ? value >= 0xDC && value <= 0xDF : is_low;
  if (is_low && !may_be_low) return;
  if (!is_low && count == 2 && value >= 0xDC && value <= 0xDF) return;  // half a pair
  to.y = value | count << 16 | (is_low ? 1 << 20 : 0);
  if (count < 4) return move.go(to);
  const bool is_high = !is_low && value >= 0xD800 && value <= 0xDBFF;
  to.op = is_high ? kLowEscape : kString, to.y = 0;
  move.go(to);
}

void JsonLanguage::pattern(const Move& move) const {
  const ByteDfa& dfa = variant(move.frame).dfa;
  uint8_t byte = move.byte;
  if (move.frame.op == kPattern) {
    if (byte == '"') {
      if (dfa.accepts(move.frame.x)) complete(move, move.frame.parent);
      return;
    }
    if (byte == '\\') {
      const bool any = std::any_of(kEscaped.begin(), kEscaped.end(), [&](char c) {
        return dfa.next(move.frame.x, static_cast<uint8_t>(c)) != ByteDfa::kDead;
      });
      if (any) move.go(move.with(kPatternEscape));
      return;
    }
    if (byte < 0x20) return;
  } else {
    const size_t at = kEscapes.find(static_cast<char>(byte));
    if (at == std::string_view::npos) return;
    byte = static_cast<uint8_t>(kEscaped[at]);
  }
  Frame to = move.with(kPattern);
  to.x = dfa.next(to.x, byte);
  if (to.x != ByteDfa::kDead) move.go(to);
}

void JsonLanguage::step(Stacks& stacks, uint32_t thread, uint8_t byte, Threads& out) const {
  const Move move = {stacks, out, stacks.at(thread), byte};
  const uint8_t op = move.frame.op;
  if (op == kFree) return free_text(move);
  if (op == kSequence) return sequence(move);
  if (op == kLiteral) {
    Frame to = move.frame;
    to.x = variant(to).dfa.next(to.x, byte);
    if (to.x != ByteDfa::kDead) settle(move, to);
    return;
  }
  if (op >= kNumberMinus && op <= kNumberExponent) return number(move);
  if (op == kRange) return range(move, stacks.list(move.frame.x));
  if (op == kString) return string(move);
  if (op >= kEscape && op <= kLowU) return escape(move);
  if (op == kPattern || op == kPatternEscape) return pattern(move);
  if (op >= kArrayFirst && op <= kArrayAfter) return array(move);
  if (op >= kObjectFirst && op <= kObjectAfter) return object(move);
  if (op == kKey || op == kKeyEscape) return key(move);
  if (op == kColon || op == kValue) colon(move);
}

int32_t JsonLanguage::plain_run(const Stacks& stacks, uint32_t thread) const {
  const Frame& frame = stacks.at(thread);
  if (frame.small != 0) return 0;
  if (frame.op == kPattern) return variant(frame).open[static_cast<size_t>(frame.x)] ? kAnyLength : 0;
  if (frame.op == kString) {
    const int64_t most = variant(frame).most;
    return most < 0 ? kAnyLength : static_cast<int32_t>(std::min<int64_t>(most - frame.x, kAnyLength));
  }
  const bool is_any_name =
      frame.op == kKey && can_add_other(stacks, frame) && is_possible(variant(frame).others[0]);
  return is_any_name ? kAnyLength : 0;
}

void JsonLanguage::move_lists(Frame& frame, const Stacks& from, Stacks& to) const {
  const auto moved = [&](int32_t id) { return to.list_id(from.list(id)); };
  if (frame.op == kRange) frame.x = moved(frame.x);
  if (frame.op < kObjectFirst) return;
  const JsonVariant& own = variant(frame);
  std::vector<int32_t> seen = from.list(frame.x);
  const auto named = static_cast<int32_t>(own.properties.size());
  for (size_t i = 1; i < seen.size(); ++i) {
    if (seen[i] >= named) seen[i] = named + moved(seen[i] - named);
  }
  std::sort(seen.begin() + 1, seen.end());
  frame.x = to.list_id(seen);
  if (frame.op != kKey && frame.op != kKeyEscape) return;
  std::vector<int32_t> states = from.list(frame.y);
  if (own.counts_names) states.back() = moved(states.back());
  frame.y = to.list_id(states);
}

LanguagePtr make_json_language(JsonProgram program) {
  return std::make_shared<JsonLanguage>(std::move(program));
}

}  // namespace multihead::text::grammar
