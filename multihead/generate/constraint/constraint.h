// Generated text that is JSON of a schema, fits a regular expression, or follows a grammar.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "multihead/core/text/json.h"
#include "multihead/generate/constraint/token_trie.h"
#include "multihead/text/grammar/language.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead {

/// A set of texts, for the tokens of a tokenizer; cheap to copy.
///
///   options.constraint = Constraint::json_schema(tokenizer, Json::parse(R"({"type": "object"})"));
///   options.stop_tokens = {*tokenizer.eos_id()};
///
/// Tokens that cannot continue a text of the set never come, and stop tokens only where a text may end. A row ends by
/// itself where nothing can follow; one that max_new_tokens ends may be incomplete. What is not supported is refused
/// when the constraint is made, by name.
class Constraint {
 public:
  Constraint(const text::Tokenizer& tokenizer, text::grammar::LanguagePtr language);

  /// Texts that fit as a whole; see text::grammar::ByteDfa::regex for the syntax.
  static Constraint regex(const text::Tokenizer& tokenizer, std::string_view pattern);
  /// JSON values of a schema. {"type": "object"} is any object, {} any value.
  static Constraint json_schema(const text::Tokenizer& tokenizer, const Json& schema);
  /// A grammar in GBNF, whose texts are those of the rule "root".
  static Constraint grammar(const text::Tokenizer& tokenizer, std::string_view source);

  /// For texts that are decoded on their own, not behind their prompt: SentencePiece leaves out their first space.
  Constraint at_beginning() const;

 private:
  friend class ConstraintState;
  text::grammar::LanguagePtr language_;
  TokenTries tries_;
  bool begins_ = false;
};

/// How far one row is.
class ConstraintState {
 public:
  explicit ConstraintState(const Constraint& constraint);

  /// Sets the logits [V] of tokens that may not come to -inf. Throws ValueError if none may.
  void apply(std::span<const int32_t> stop_tokens, std::span<float> logits);
  /// Throws ValueError for a token that may not come.
  void advance(int32_t token);
  /// Whether the text may end here.
  bool accepts() const { return walker_.accepts(state_); }
  /// Whether nothing may follow.
  bool is_complete() { return accepts() && walker_.is_last(state_); }

 private:
  const TokenTrie& trie() const { return *(is_first_ ? tries_.first : tries_.rest); }

  TokenTries tries_;
  text::grammar::Walker walker_;
  int32_t state_;
  bool is_first_;
  std::map<int32_t, TokenSet> sets_;  // of states that come again
};

}  // namespace multihead
