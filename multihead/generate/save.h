// Folders of models as others use them: with tokenizer and generation_config.json.
#pragma once

#include <string>

#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead {

/// Writes what load_with_tokenizer() and transformers read: the model, its tokenizer and generation_config.json with
/// saved_defaults(). Throws as models::save_language_model().
void save_with_tokenizer(models::LanguageModel& model, const text::Tokenizer& tokenizer,
                         const std::string& folder, bool overwrite = false);
/// models::save_seq2seq() with generation_config.json.
void save_with_defaults(models::Seq2Seq& model, const std::string& folder, bool overwrite = false);

}  // namespace multihead
