// A model folder as verbs use it.
#pragma once

#include <string>

#include "cli/verb.h"
#include "multihead/models/hugging_face.h"
#include "multihead/models/marian.h"
#include "multihead/text/tokenizer.h"
#include "multihead/train/seq2seq_run.h"

namespace multihead::cli {

struct LoadedModel {
  models::LanguageModel model;
  text::Tokenizer tokenizer;
};

/// Throws InputError; also if the tokenizer has ids the model does not know.
LoadedModel load_model_dir(const std::string& folder);

struct LoadedTranslator {
  models::Seq2Seq model;
  train::PairTokenizers tokenizers;
};

/// The same for encoder-decoder models.
LoadedTranslator load_translator_dir(const std::string& folder);

/// Output is text, and tokens may be bytes: what is no UTF-8 becomes the replacement character.
std::string valid_utf8(const std::string& text);
/// The same with spaces for line breaks.
std::string one_line(const std::string& bytes);

/// The text itself; "-": all of stdin.
std::string text_or_stdin(const std::string& text);

}  // namespace multihead::cli
