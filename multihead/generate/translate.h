// Text in, text out: beam search between two tokenizers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/generate/beam_search.h"
#include "multihead/text/tokenizer.h"

namespace multihead {

struct TranslateOptions {
  BeamOptions beam = {};                   ///< prefixes must be empty: see `prefixes`
  std::vector<std::string> prefixes = {};  ///< per text (or empty): what its translation starts with
  int64_t batch_tokens = 1024;             ///< source tokens searched together, padding counted
  /// What the weights are packed to; of no effect on a model that is packed already.
  models::WeightDtype weight_dtype = models::WeightDtype::f32;
};

struct Translation {
  std::string text;
  Hypothesis hypothesis;
};

/// Source ids as the model reads them, the end token behind. Throws ValueError naming `what` (for instance
/// "line 3") if the text is empty, has a character without a token, or is longer than the model can read.
std::vector<int32_t> encode_source(const models::Seq2SeqConfig& config, const text::Tokenizer& tokenizer,
                                   const std::string& text, const std::string& what);

/// Per text, the best translations. Texts of about the same length are searched together; the results do not
/// depend on it.
///
/// Throws    ValueError (options, texts: "text 3 is empty"); nothing has been translated then
std::vector<std::vector<Translation>> translate(const models::PackedSeq2Seq& model,
                                                const text::Tokenizer& source, const text::Tokenizer& target,
                                                const std::vector<std::string>& texts,
                                                const TranslateOptions& options = {});

/// Packs the model first: for more than one call keep a PackedSeq2Seq.
inline std::vector<std::vector<Translation>> translate(const models::Seq2Seq& model,
                                                       const text::Tokenizer& source,
                                                       const text::Tokenizer& target,
                                                       const std::vector<std::string>& texts,
                                                       const TranslateOptions& options = {}) {
  return translate(models::PackedSeq2Seq(model, options.weight_dtype), source, target, texts, options);
}

}  // namespace multihead
