// How a JSON schema's program reads a text. Private to grammar/.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "multihead/text/grammar/json_program-inl.h"

namespace multihead::text::grammar {

/// What a level of the stack waits for.
enum Op : uint8_t {
  kDone,         // the text may end
  kFree,         // free text; x: how much of the trigger its end has
  kSequence,     // ref: sequence, x: part, y: bytes of its literal
  kLiteral,      // x: state of the automaton
  kNumberMinus,  // x: digits so far, in all states of numbers
  kNumberZero,
  kNumberWhole,
  kNumberDot,
  kNumberFraction,
  kNumberE,
  kNumberSign,
  kNumberExponent,
  kRange,      // x: list of the text so far
  kString,     // x: characters, small: state of UTF-8
  kEscape,     // x: characters
  kHex,        // x: characters, y: digits so far
  kLowEscape,  // the second half of a pair must follow: its backslash
  kLowU,       // and its u
  kPattern,    // x: state of the automaton
  kPatternEscape,
  kArrayFirst,  // x: items so far, y: whether the one that must be there is; small: white space, as in all below
  kArrayNext,
  kArrayAfter,
  kObjectFirst,  // x: list of what has been: a count, then properties' numbers, then other names' lists
  kObjectNext,
  kObjectAfter,
  kKey,  // x: as above, y: list of states: of the names, of each pattern, of the text; small: state of UTF-8
  kKeyEscape,
  kColon,  // x: as above, y: node of the value
  kValue,
};

inline constexpr std::string_view kEscaped = "\"\\/\b\f\n\r\t", kEscapes = "\"\\/bfnrt";
/// The states of a character of several bytes; 0: none is open. -1: no such character.
int utf8_next(int state, uint8_t byte);

class JsonLanguage : public Language {
 public:
  explicit JsonLanguage(JsonProgram program);

  void start(Stacks& stacks, Threads& out) const override;
  void step(Stacks& stacks, uint32_t thread, uint8_t byte, Threads& out) const override;
  bool accepts(const Stacks& stacks, uint32_t thread) const override {
    return stacks.at(thread).op == kDone || stacks.at(thread).op == kFree;
  }
  int32_t plain_run(const Stacks& stacks, uint32_t thread) const override;
  void move_lists(Frame& frame, const Stacks& from, Stacks& to) const override;

 private:
  // A frame on its way through one byte.
  struct Move {
    Stacks& stacks;
    Threads& out;
    Frame frame;
    uint8_t byte;
    void go(Frame to) const { out.push_back(stacks.id(to)); }
    Frame with(Op op) const {
      Frame to = frame;
      to.op = op, to.small = 0;
      return to;
    }
  };
  const JsonVariant& variant(const Frame& frame) const {
    return program_.variants[static_cast<size_t>(frame.ref)];
  }
  bool is_possible(int32_t node) const { return !program_.nodes[static_cast<size_t>(node)].empty(); }

  void complete(const Move& move, uint32_t parent) const;
  void settle(const Move& move, const Frame& frame) const;
  void begin_value(const Move& move, int32_t node, const Frame& after) const;
  void begin(const Move& move, int32_t number, uint32_t parent, uint8_t depth) const;
  void free_text(const Move& move) const;
  void sequence(const Move& move) const;
  void number(const Move& move) const;
  void range(const Move& move, std::vector<int32_t> text) const;
  void string(const Move& move) const;
  void escape(const Move& move) const;
  void pattern(const Move& move) const;
  void array(const Move& move) const;
  void object(const Move& move) const;
  void key(const Move& move) const;
  void key_byte(const Move& move, uint8_t byte) const;
  void close_key(const Move& move) const;
  void colon(const Move& move) const;
  bool space(const Move& move, bool may_break) const;  // a line may end here

  bool can_add(const Stacks& stacks, const Frame& frame, int32_t property) const;
  bool can_add_other(const Stacks& stacks, const Frame& frame) const;
  bool can_add_any(const Stacks& stacks, const Frame& frame, int32_t names) const;
  bool can_close(const Stacks& stacks, const Frame& frame) const;
  bool has_room(const std::vector<int32_t>& seen, const JsonVariant& own, bool is_required) const;
  int32_t with_name(Stacks& stacks, const Frame& frame, int32_t entry) const;

  JsonProgram program_;
};

}  // namespace multihead::text::grammar
