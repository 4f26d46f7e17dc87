// Loading model folders.
#pragma once

#include <string>

#include "cli/verb.h"
#include "multihead/generate/defaults.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/train/tasks/seq2seq_run.h"

namespace multihead::cli {

using train::LoadedTranslator;

/// load_with_tokenizer(); throws InputError. `weights`: of --weights.
LoadedModel load_model_dir(const std::string& folder, const std::string& weights = "f32",
                           bool packed = false);
/// --weights of a model; "stored" among them if its folder may hold packed ones.
void declare_weights(Flags& flags, std::string& weights, bool stored = true, bool f32 = true);

/// --overwrite of verbs that write a model.
void declare_overwrite(Flags& flags, bool& overwrite);
/// Refuses a folder that holds a model, a tokenizer or a training run of ours, and a GGUF file that exists.
void check_vacant(const std::string& to);

/// Writes a model that was loaded from `from`, with its tokenizer and defaults of generation, as one.
/// Defaults that somebody else has put into `to` stay.
void save_model_dir(LoadedModel& loaded, const std::string& from, const std::string& to);

/// The same for encoder-decoder models.
LoadedTranslator load_translator_dir(const std::string& folder);
void save_translator_dir(models::Seq2Seq& model, const train::PairTokenizers& tokenizers,
                         const std::string& from, const std::string& to);

/// On stderr, if `from` says how texts become vectors, which the language model written from it does not.
void note_pooling(const std::string& from);

/// Throws InputError "<file>: tensor "x" holds NaN or Inf: <problem>" if the weights of a model folder do.
void check_weights(const std::string& folder, const std::string& problem);
/// Throws unless `value` (such as the loss) is finite: InputError naming the weight tensor that holds NaN or
/// Inf, or NumericError if none does.
void check_number(const std::string& folder, const std::string& what, double value);
/// The same if `call` throws: its error is rethrown when all weights are finite.
template <class F>
auto with_weights_of(const std::string& folder, F&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const ValueError& error) {
    check_weights(folder, error.what());
    throw;
  }
}

}  // namespace multihead::cli
