#include "multihead/generate/constraint/constraint.h"

#include <limits>
#include <utility>
#include <vector>

#include "multihead/core/error.h"

namespace multihead {
namespace {

constexpr size_t kMostStates = 4096;  // before those of the past are forgotten: some 5 MB
constexpr size_t kMostSets = 64;

}  // namespace

Constraint::Constraint(const text::Tokenizer& tokenizer, text::grammar::LanguagePtr language)
    : language_(std::move(language)), tries_(token_tries(tokenizer)) {}

Constraint Constraint::regex(const text::Tokenizer& tokenizer, std::string_view pattern) {
  return {tokenizer, text::grammar::regex_language(pattern)};
}

Constraint Constraint::json_schema(const text::Tokenizer& tokenizer, const Json& schema) {
  return {tokenizer, text::grammar::json_schema_language(schema)};
}

Constraint Constraint::grammar(const text::Tokenizer& tokenizer, std::string_view source) {
  return {tokenizer, text::grammar::grammar_language(source)};
}

Constraint Constraint::at_beginning() const {
  Constraint own = *this;
  own.begins_ = true;
  return own;
}

ConstraintState::ConstraintState(const Constraint& constraint)
    : tries_(constraint.tries_),
      walker_(constraint.language_),
      state_(walker_.start()),
      is_first_(constraint.begins_) {
  MH_CHECK(state_ != text::grammar::Walker::kDead, ValueError, "constraint: no text fits");
}

void ConstraintState::apply(std::span<const int32_t> stop_tokens, std::span<float> logits) {
  std::vector<std::pair<int32_t, float>> ends;  // stop tokens are no text, whatever their bytes
  for (const int32_t stop : stop_tokens) {
    if (stop >= 0 && stop < std::ssize(logits)) ends.emplace_back(stop, logits[static_cast<size_t>(stop)]);
  }
  auto known = sets_.find(state_);
  if (known == sets_.end()) {
    if (sets_.size() >= kMostSets) sets_.clear();
    known = sets_.emplace(state_, trie().allowed(walker_, state_)).first;
  }
  const bool may_end = accepts() && !ends.empty();
  MH_CHECK(may_end || !known->second.is_empty(), ValueError,
           "constraint: no token of the vocabulary can continue the text");
  known->second.mask(logits);
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (const auto& [stop, logit] : ends) logits[static_cast<size_t>(stop)] = accepts() ? logit : kNever;
}

void ConstraintState::advance(int32_t token) {
  MH_CHECK(token >= 0 && static_cast<size_t>(token) < trie().tokens() && !trie().bytes(token).empty(),
           ValueError, "constraint: token ", token, " is not text");
  const int32_t to = walker_.run(trie().bytes(token), state_);
  MH_CHECK(to != text::grammar::Walker::kDead, ValueError, "constraint: token ", token,
           " cannot continue the text");
  if (is_first_) sets_.clear();
  state_ = to, is_first_ = false;
  if (walker_.states() <= kMostStates) return;
  state_ = walker_.keep(state_);
  sets_.clear();
}

}  // namespace multihead
