// One row per kind of training; a new one is its file and a row here.
#include <algorithm>
#include <array>

#include "multihead/core/error.h"
#include "multihead/train/tasks/classifier_run.h"
#include "multihead/train/tasks/embedder_run.h"
#include "multihead/train/tasks/image_classifier_run.h"
#include "multihead/train/tasks/language_model_run.h"
#include "multihead/train/tasks/masked_lm_run.h"
#include "multihead/train/tasks/reranker_run.h"
#include "multihead/train/tasks/seq2seq_run.h"
#include "multihead/train/tasks/tagger_run.h"

namespace multihead::train {

std::span<const Kind* const> kinds() {
  static const std::array list = {&LanguageModelTask::kind(), &Seq2SeqTask::kind(),
                                  &ClassifierTask::kind(),    &TaggerTask::kind(),
                                  &EmbedderTask::kind(),      &RerankerTask::kind(),
                                  &MaskedLmTask::kind(),      &ImageClassifierTask::kind()};
  return list;
}

const Kind& kind_of(const std::string& name) {
  const auto found = std::ranges::find_if(kinds(), [&](const Kind* kind) { return kind->name == name; });
  MH_CHECK(found != kinds().end(), ValueError, "train: there is no kind of training called ", quote(name));
  return **found;
}

void check_request(const RunRequest& request, const Kind& kind) {
  MH_CHECK(!kind.presets.empty() || !request.init.empty(), ValueError, "train ", kind.name,
           ": it fine-tunes a model and needs its folder, init");
  MH_CHECK(kind.valid != nullptr || request.valid.empty(), ValueError, "train ", kind.name,
           ": it takes no file of validation data, got ", quote(request.valid));
  MH_CHECK(kind.has_columns || request.format == text::TableFormat::by_name, ValueError, "train ", kind.name,
           ": its data are no table and have no format, got ", word_of(request.format));
  MH_CHECK(kind.tokenizer != nullptr || request.tokenizer.empty(), ValueError, "train ", kind.name,
           ": it takes the tokenizer of init, got ", quote(request.tokenizer));
}

}  // namespace multihead::train
