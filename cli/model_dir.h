// A model folder as verbs use it.
#pragma once

#include <string>

#include "cli/verb.h"
#include "multihead/models/hugging_face.h"
#include "multihead/text/tokenizer.h"

namespace multihead::cli {

struct LoadedModel {
  models::LanguageModel model;
  text::Tokenizer tokenizer;
};

/// Throws InputError; also if the tokenizer has ids the model does not know.
LoadedModel load_model_dir(const std::string& folder);

/// The text itself; "-": all of stdin.
std::string text_or_stdin(const std::string& text);

}  // namespace multihead::cli
