// Model runs that record attention for an HTML page.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "multihead/look/attention_page.h"
#include "multihead/models/encoder.h"
#include "multihead/models/seq2seq.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::look {

/// The choice of what to look at, and changes to the model.
struct Look {
  std::vector<int64_t> layers = {}, heads = {};  ///< in order; empty: all
  std::vector<int64_t> rows = {};                ///< queries, by their places; not of translators; empty: all
  /// Predictions of each layer, the worth of each head, shares of tokens, queries and keys.
  bool measures = true;
  std::vector<std::array<int64_t, 2>> off = {};  ///< (layer, head): its output is zero
  /// (layer, head, query, key): the head does not see the key from there.
  std::vector<std::array<int64_t, 4>> cut = {};
};

/// Approximate cost of `measures` in floating-point operations, for a text of this many tokens.
double cost_of_measures(const models::LanguageModelConfig& config, int64_t tokens);

/// Tokens with their names.
struct NamedTokens {
  std::vector<int32_t> ids = {};
  std::vector<std::string> labels = {};               ///< of each of `ids`
  std::function<std::string(int32_t)> label_of = {};  ///< of any token of the vocabulary
};

/// A run on a text. With changes, of the measures what the changed model says next alone. Throws ValueError:
/// layers, heads or tokens that do not exist, a text that is empty or too long, layers that differ in heads,
/// more weights than a page takes.
AttentionRun look(const models::LanguageModel& model, const text::Tokenizer& tokenizer,
                  const std::string& text, const Look& look = {});
/// The same without a tokenizer.
AttentionRun look(const models::LanguageModel& model, const NamedTokens& tokens, const Look& look = {});
/// An encoder's run on a text with its special tokens; with a head for masked tokens also what it would put
/// in the place of each. No changes.
AttentionRun look(const models::Encoder& model, const text::Tokenizer& tokenizer, const std::string& text,
                  const Look& look = {});
/// A translator's run; without a target, on its own translation.
AttentionRun look(const models::Seq2Seq& model, const text::Tokenizer& source_tokenizer,
                  const text::Tokenizer& tokenizer, const std::string& source, const std::string& target = {},
                  const Look& look = {});

/// The bits of weights that keep a page of these runs small enough. Throws ValueError if there are none.
int bits_for(const std::vector<AttentionRun>& runs);

}  // namespace multihead::look
