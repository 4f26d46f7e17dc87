#include "cli/model_dir.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "multihead/io/safetensors.h"

namespace multihead::cli {

LoadedModel load_model_dir(const std::string& folder) {
  return reading([&] {
    models::LanguageModel model = models::load_language_model(folder);
    text::Tokenizer tokenizer = text::Tokenizer::load(folder);
    if (tokenizer.vocab_size() > model.config().vocab_size) {
      throw InputError(concat(folder, ": the tokenizer has ", tokenizer.vocab_size(),
                              " tokens, the model expects ", model.config().vocab_size,
                              "; they do not match"));
    }
    return LoadedModel{std::move(model), std::move(tokenizer)};
  });
}

LoadedTranslator load_translator_dir(const std::string& folder) {
  return reading([&] {
    models::Seq2Seq model = models::load_seq2seq(folder);
    train::PairTokenizers tokenizers = train::load_pair_tokenizers(folder);
    const auto check = [&](const char* side, int64_t tokens, int64_t known) {
      if (tokens > known) {
        throw InputError(concat(folder, ": the ", side, "'s tokenizer has ", tokens,
                                " tokens, the model expects ", known, "; they do not match"));
      }
    };
    check("source", tokenizers.source.vocab_size(), model.config().source_vocab_size);
    check("target", tokenizers.target.vocab_size(), model.config().target_vocab_size);
    return LoadedTranslator{std::move(model), std::move(tokenizers)};
  });
}

void check_weights(const std::string& folder, const std::string& problem) {
  const auto is_number = [](double x) { return std::isfinite(x); };
  reading([&] {
    const io::SafetensorsFile file(folder);
    for (const std::string& name : file.names()) {
      const auto dtype = file.info(name).dtype;
      if (!dtype || !is_floating(*dtype)) continue;
      const std::vector<double> values = file.load(name).to_vector<double>();
      if (std::all_of(values.begin(), values.end(), is_number)) continue;
      throw InputError(concat(file.path(), ": tensor ", quote(name), " holds NaN or Inf: ", problem));
    }
  });
}

void check_number(const std::string& folder, const std::string& what, double value) {
  if (std::isfinite(value)) return;
  const std::string problem = concat(what, " is ", value);
  check_weights(folder, problem);
  throw NumericError(concat(folder, ": ", problem, " although all weights are finite"));
}

}  // namespace multihead::cli
