#include "cli/model_dir.h"

#include <iostream>
#include <iterator>

namespace multihead::cli {

LoadedModel load_model_dir(const std::string& folder) {
  return reading([&] {
    models::LanguageModel model = models::load_language_model(folder);
    text::Tokenizer tokenizer = text::Tokenizer::load(folder);
    if (tokenizer.vocab_size() > model.config().vocab_size) {
      throw InputError(concat(folder, ": the tokenizer has ", tokenizer.vocab_size(),
                              " tokens, the model knows ", model.config().vocab_size,
                              "; they do not belong together"));
    }
    return LoadedModel{std::move(model), std::move(tokenizer)};
  });
}

std::string text_or_stdin(const std::string& text) {
  if (text != "-") return text;
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

}  // namespace multihead::cli
