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
#include "multihead/train/settings.h"
#include "multihead/train/tasks/model_task.h"

namespace multihead::train {

/// A tokenized text, with a held-out validation part.
struct LanguageModelData {
  text::Tokenizer tokenizer;
  text::TokenView training, validation;  ///< of `tokens` or `file`
  uint64_t checksum = 0;                 ///< of the text
  std::vector<int32_t> tokens = {};
  std::optional<text::TokenFiles> files = {};
  std::vector<std::string> warnings = {};
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
class LanguageModelTask : public ModelTask<LanguageModelSettings, models::LanguageModel, TextLoss> {
 public:
  using Data = LanguageModelData;
  /// `data` must outlive the task. settings.model.vocab_size is the tokenizer's, or more.
  LanguageModelTask(const LanguageModelSettings& settings, const LanguageModelData& data);

  static const Kind& kind();
  static LanguageModelSettings preset(const std::string& name) { return language_model_settings(name); }
  /// The text; empty if the data is tokens.
  static std::string read(const Run& run);
  static Data prepare(const Run& run, const RunFolder* folder, const std::string& text);
  static LanguageModelTask make(const Run& run, const Data& data) { return {run.settings, data}; }
  static models::LanguageModel load_init(const std::string& init);

  Loss loss(int64_t index) override;
  int64_t targets(int64_t index) const override;
  std::optional<TextLoss> score(int64_t most, const Sharing& sharing = {}) const override;
  std::vector<std::pair<std::string, double>> metrics() const override { return {}; }
  void save(io::CheckpointContents& contents) override;
  std::vector<std::string> warnings() const { return data_.warnings; }
  int64_t length() const override { return settings_.model.context; }
  std::unique_ptr<Task> twin(std::vector<nn::NamedTensor>& parameters) const override;

 private:
  const LanguageModelData& data_;
  WindowOrder order_;
};

/// `data` is a text file, a token file or a list of token files, which need the tokenizer that made them.
using LanguageModelRun = RunOf<LanguageModelSettings>;
using LanguageModelSummary = ScoredSummary<TextLoss>;
/// See train_task().
LanguageModelSummary train_language_model(const LanguageModelRun& run);

}  // namespace multihead::train
