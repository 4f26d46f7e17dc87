// A complete language-model run: from a text to a tokenizer, a trained model and its metrics.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "multihead/text/corpus/token_file.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/train/data/windows.h"
#include "multihead/train/evaluate.h"
#include "multihead/train/run.h"
#include "multihead/train/settings.h"

namespace multihead::train {

/// A tokenized text, with a held-out validation part.
struct LanguageModelData {
  text::Tokenizer tokenizer;
  text::TokenView training, validation;  ///< of `tokens` or `file`
  uint64_t checksum = 0;                 ///< of the text
  std::vector<int32_t> tokens = {};
  std::optional<text::TokenFiles> files = {};
};

/// Trains a tokenizer unless one is given, and encodes the text. Throws FormatError
/// unless the training part has more than one window of tokens.
LanguageModelData prepare_language_model_data(const std::string& text, const std::string& name,
                                              const LanguageModelSettings& settings,
                                              const text::Tokenizer* tokenizer = nullptr);
/// The same from a token file or a list of some, which stay on disk: for corpora larger than memory. The last
/// part is the validation text. Of `ranks` each reads its share of a list's files to verify them, of a single
/// file all. Throws IoError, FormatError.
LanguageModelData map_language_model_data(const std::string& path, const LanguageModelSettings& settings,
                                          const text::Tokenizer& tokenizer, int rank = 0, int ranks = 1);

/// The model of a folder, to be trained on; see RunRequest::init. Throws IoError, FormatError.
void start_from(LanguageModelSettings& settings, const std::string& init);

/// The training task of a language model. Weights are saved in Hugging Face layout.
class LanguageModelTask : public Task {
 public:
  /// `data` must outlive the task. settings.model.vocab_size is the tokenizer's, or more.
  LanguageModelTask(const LanguageModelSettings& settings, const LanguageModelData& data);

  Loss loss(int64_t index) override;
  int64_t targets(int64_t index) const override;
  std::optional<double> evaluate(const Sharing& sharing) override;
  void save(io::CheckpointContents& contents) override;
  void load(const std::string& path) override;
  Json identity() const override;
  int64_t length() const override { return settings_.model.context; }
  std::unique_ptr<Task> twin(std::vector<nn::NamedTensor>& parameters) const override;

  models::LanguageModel& model() { return model_; }

 private:
  LanguageModelSettings settings_;
  const LanguageModelData& data_;
  WindowOrder order_;
  models::LanguageModel model_;
};

/// `data` is a text file, a token file or a list of token files, which need the tokenizer that made them.
struct LanguageModelRun : RunRequest {
  LanguageModelSettings settings = {};
};

struct LanguageModelSummary : RunSummary {
  std::optional<TextLoss> validation;  ///< of the kept model, over the whole validation text
};

/// Throws IoError, FormatError (data, checkpoints), ValueError (settings), NumericError. An interrupted run
/// leaves a checkpoint and no model.
LanguageModelSummary train_language_model(const LanguageModelRun& run);

Json to_json(const LanguageModelSummary& summary);

}  // namespace multihead::train
