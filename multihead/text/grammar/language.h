// A set of texts, byte by byte: what generated text is held to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "multihead/core/text/json.h"

namespace multihead::text::grammar {

/// One level of a pushdown automaton's stack. Languages give the numbers their meaning.
struct Frame {
  uint8_t op = 0, depth = 0;
  uint16_t small = 0;
  int32_t ref = 0, x = 0, y = 0;
  uint32_t parent = 0;  ///< the level below
  bool operator==(const Frame&) const = default;
};

/// Stacks that share their lower levels: equal ones have equal numbers.
class Stacks {
 public:
  uint32_t id(const Frame& frame);
  const Frame& at(uint32_t id) const { return frames_[id]; }
  int32_t list_id(const std::vector<int32_t>& list);
  const std::vector<int32_t>& list(int32_t id) const { return *lists_[static_cast<size_t>(id)]; }
  size_t size() const { return frames_.size() + lists_.size(); }

 private:
  struct Hash {
    size_t operator()(const Frame& frame) const;
    size_t operator()(const std::vector<int32_t>& list) const;
  };
  std::unordered_map<Frame, uint32_t, Hash> frame_ids_;
  std::vector<Frame> frames_;
  std::unordered_map<std::vector<int32_t>, int32_t, Hash> list_ids_;
  std::vector<const std::vector<int32_t>*> lists_;
};

/// Stacks that a text may have led to.
using Threads = std::vector<uint32_t>;
inline constexpr int32_t kAnyLength = 1 << 20;

/// Immutable; the first level of its stacks is the one of start(). Every thread leads to the end of a text, so that none is begun that cannot be ended.
class Language {
 public:
  virtual ~Language() = default;
  virtual void start(Stacks& stacks, Threads& out) const = 0;
  virtual void step(Stacks& stacks, uint32_t thread, uint8_t byte, Threads& out) const = 0;
  virtual bool accepts(const Stacks& stacks, uint32_t thread) const = 0;
  /// How many characters that stand for themselves in a JSON string and end no line may come next, whichever they are.
  virtual int32_t plain_run(const Stacks&, uint32_t) const { return 0; }
  /// Gives the lists that a frame names their numbers in other stacks.
  virtual void move_lists(Frame&, const Stacks&, Stacks&) const {}
};

using LanguagePtr = std::shared_ptr<const Language>;

/// Texts that fit the regular expression as a whole; see ByteDfa::regex.
LanguagePtr regex_language(std::string_view pattern);
/// Texts of the rule "root" of a grammar in GBNF: `name ::= "text" [a-z0-9] (a | b)* other{2,3}`, `#` comments.
/// Throws ValueError (syntax, unknown rules, left recursion, a rule that never ends).
LanguagePtr grammar_language(std::string_view source);
/// JSON texts of the values that a schema allows (draft 2020-12 and 7): an instance is accepted, in the spelling of
/// usual writers, exactly if a validator accepts it. White space between tokens may be that of one line or indented.
/// Throws ValueError naming a keyword that is not supported, and its place; nothing is ignored but annotations.
LanguagePtr json_schema_language(const Json& schema);

/// A piece of a text around JSON values.
struct JsonPart {
  std::string_view literal = {};
  const Json* schema = nullptr;  ///< or a value of this schema
};
/// One sequence of parts; with a trigger, free text in which each trigger begins one (the parts behind it).
LanguagePtr json_parts_language(const std::vector<std::vector<JsonPart>>& alternatives,
                                std::string_view trigger = {});

/// Follows texts through a language, each transition computed once. Not for several threads.
class Walker {
 public:
  static constexpr int32_t kDead = -1;

  explicit Walker(LanguagePtr language);
  int32_t start() const { return start_; }
  /// The state after one more byte. Throws ValueError if that takes too much memory.
  int32_t next(int32_t state, uint8_t byte) {
    const int32_t known = (*rows_[static_cast<size_t>(state)])[byte];
    return known != kUnknown ? known : compute(state, byte);
  }
  int32_t run(std::string_view text, int32_t state);
  bool accepts(int32_t state) const { return accepting_[static_cast<size_t>(state)] != 0; }
  int32_t plain_run(int32_t state) const { return plain_[static_cast<size_t>(state)]; }
  /// Whether no byte may follow.
  bool is_last(int32_t state);
  /// Transitions known, by which memory grows.
  size_t states() const { return rows_.size() + stacks_.size() / 16; }
  /// Forgets all but one state; returns its new number.
  int32_t keep(int32_t state);

 private:
  static constexpr int32_t kUnknown = -2;
  int32_t compute(int32_t state, uint8_t byte);
  int32_t number(Threads threads);

  struct Hash {
    size_t operator()(const Threads& threads) const;
  };
  LanguagePtr language_;
  Stacks stacks_;
  std::unordered_map<Threads, int32_t, Hash> numbers_;
  std::vector<const Threads*> threads_;
  std::vector<std::unique_ptr<std::array<int32_t, 256>>> rows_;
  std::vector<uint8_t> accepting_;
  std::vector<int32_t> plain_;
  int32_t start_ = 0;
};

}  // namespace multihead::text::grammar
