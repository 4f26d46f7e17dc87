// What a model folder has for generation: model and tokenizer, and the defaults of generation_config.json.
#pragma once

#include <optional>
#include <string>

#include "multihead/generate/beam_search.h"
#include "multihead/generate/generate.h"
#include "multihead/models/generation_config.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead {

struct LoadedModel {
  models::LanguageModel model;
  text::Tokenizer tokenizer;
};

/// As models::load_language_model(), with the tokenizer of the same folder or GGUF file. Throws FormatError also
/// if the tokenizer has ids outside the model's vocabulary.
LoadedModel load_with_tokenizer(const std::string& path, std::optional<nn::WeightDtype> weights = {},
                                bool packed = false);

/// Sampling and stop tokens; the length stays the caller's choice.
/// Throws    FormatError naming a key that generate() has no option for
void apply(const models::GenerationConfig& config, GenerateOptions& options);

/// Tokens that end an answer where the tokenizer's chat template writes them, besides the end of the text.
std::vector<int32_t> turn_ends(const text::Tokenizer& tokenizer);

/// generation_config.json of a language model with this config.json that is saved: what the folder or GGUF file
/// `from` that it comes from says (empty: nothing), and the tokens that end and pad texts, without which others
/// never stop. Throws IoError, FormatError.
std::string saved_defaults(const std::string& from, const Json& config, const text::Tokenizer& tokenizer);
/// The same for an encoder-decoder model, with the beams and the length of beam_search(), where others have
/// their own.
std::string saved_defaults(const std::string& from, const models::Seq2SeqConfig& model);

/// Writes what load_with_tokenizer() and transformers read: the model, its tokenizer and generation_config.json with
/// saved_defaults(). Throws as models::save_language_model().
void save_with_tokenizer(models::LanguageModel& model, const text::Tokenizer& tokenizer,
                         const std::string& folder, bool overwrite = false);
/// models::save_seq2seq() with generation_config.json.
void save_with_defaults(models::Seq2Seq& model, const std::string& folder, bool overwrite = false);

/// Beam search options for `model`.
/// Throws    FormatError naming a key that beam_search() has no option for, or an id that is not the model's
void apply(const models::GenerationConfig& config, const models::Seq2SeqConfig& model, BeamOptions& options);

}  // namespace multihead
