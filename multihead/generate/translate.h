// Text-to-text beam search.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/generate/beam_search.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead {

struct TranslateOptions {
  BeamOptions beam = {};                   ///< prefixes must be empty: see `prefixes`
  std::vector<std::string> prefixes = {};  ///< per text (or empty): start of its translation
  /// Tokens of languages ("eng_Latn"), for models of many: that of the source takes the place that the
  /// tokenizer's template has for one, that of the target comes first there. Empty: as the files say.
  std::string source_language = {}, target_language = {};
  int64_t batch_tokens = 1024;  ///< source tokens per batch, including padding
  /// Dtype of packed weights; no effect on a packed model.
  models::WeightDtype weight_dtype = models::WeightDtype::f32;
};

struct Translation {
  std::string text;
  Hypothesis hypothesis;
};

/// Whether a text says nothing: it is empty, or spaces.
bool is_blank(std::string_view text);

/// Source ids with the end token. Throws ValueError naming `what` (for instance
/// "line 3") if the text is empty, has a character without a token, or exceeds the model's positions; or if
/// the tokenizer has no such language or no place for one.
std::vector<int32_t> encode_source(const models::Seq2SeqConfig& config, const text::Tokenizer& tokenizer,
                                   const std::string& text, const std::string& what,
                                   const std::string& language = {});

/// The best translations of each text. Texts of similar length are batched; results do not depend on it. A
/// blank text is translated as one empty hypothesis.
///
/// Throws    ValueError (options, texts: "text 3 has 600 tokens"); before anything is translated
std::vector<std::vector<Translation>> translate(const models::PackedSeq2Seq& model,
                                                const text::Tokenizer& source, const text::Tokenizer& target,
                                                const std::vector<std::string>& texts,
                                                const TranslateOptions& options = {});

/// Packs the model first: for repeated calls keep a PackedSeq2Seq.
inline std::vector<std::vector<Translation>> translate(const models::Seq2Seq& model,
                                                       const text::Tokenizer& source,
                                                       const text::Tokenizer& target,
                                                       const std::vector<std::string>& texts,
                                                       const TranslateOptions& options = {}) {
  return translate(models::PackedSeq2Seq(model, options.weight_dtype), source, target, texts, options);
}

}  // namespace multihead
