// A complete language-model run: from a text to a tokenizer, a trained model and its metrics.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "multihead/text/corpus/token_file.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/train/data/dialogues.h"
#include "multihead/train/data/windows.h"
#include "multihead/train/evaluate.h"
#include "multihead/train/settings.h"
#include "multihead/train/tasks/model_task.h"

namespace multihead::train {

/// A tokenized text, with a held-out validation part.
struct LanguageModelData {
  text::Tokenizer tokenizer;
  text::TokenView training, validation;  ///< of `tokens` or `file`
  DataSums sums = {};
  std::vector<int32_t> tokens = {};
  std::optional<text::TokenFiles> files = {};
  std::vector<std::string> warnings = {};
  /// In place of a text: conversations and other documents.
  std::vector<Dialogue> dialogues = {}, dialogue_validation = {};
};

/// Trains a tokenizer unless one is given, and encodes the text. `validation`: a text in place of a part of it.
/// Throws FormatError unless the training part has more than one window of tokens.
LanguageModelData prepare_language_model_data(const std::string& text, const std::string& name,
                                              const LanguageModelSettings& settings,
                                              const text::Tokenizer* tokenizer = nullptr,
                                              const std::string& validation = {});
/// The same from conversations; `valid`: a file of them, or "" for a part of those.
LanguageModelData read_dialogue_data(const std::string& path, const std::string& valid,
                                     const LanguageModelSettings& settings, const text::Tokenizer& tokenizer);
/// The same from a token file or a list of some, which stay on disk: for corpora larger than memory. The last
/// part is the validation text. Of `ranks` each reads its share of a list's files to verify them, of a single
/// file all. Throws IoError, FormatError.
LanguageModelData map_language_model_data(const std::string& path, const LanguageModelSettings& settings,
                                          const text::Tokenizer& tokenizer, int rank = 0, int ranks = 1);

/// Bytes of the activations of a micro-batch of `rows`, about: what its backward reads again.
double activation_bytes(const LanguageModelSettings& settings, const LanguageModelData& data, int64_t rows);

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
  /// The texts of data and valid; empty where those are tokens or conversations.
  struct Texts {
    std::string training, validation;
  };
  static Texts read(const Run& run);
  static Data prepare(const Run& run, const RunFolder* folder, const Texts& texts);
  static int64_t pass(const LanguageModelSettings& s, const Data& data) {
    if (!data.dialogues.empty()) return (std::ssize(data.dialogues) + s.batch - 1) / s.batch;
    return std::max<int64_t>(1, data.training.size() / (s.model.context * s.batch));
  }
  /// Throws MemoryError for a batch that cannot fit, naming the largest that does.
  static LanguageModelTask make(const Run& run, const Data& data);
  static models::LanguageModel load_init(const std::string& init);

  Loss loss(int64_t index) override;
  double targets(int64_t index) const override;
  std::optional<TextLoss> score(int64_t most, const Sharing& sharing = {}) const override;
  Figures rates(const Json&) const override { return {}; }
  void save(io::CheckpointContents& contents) override;
  std::vector<std::string> warnings() const { return data_.warnings; }
  int64_t length() const override { return settings_.model.context; }
  std::unique_ptr<Task> twin(std::vector<nn::NamedTensor>& parameters) const override;

 private:
  std::vector<int64_t> dialogue_rows(int64_t index) const;
  Tensor dialogue_logits(const DialogueBatch& batch, Rng* rng) const;
  std::optional<TextLoss> score_dialogues(int64_t most, const Sharing& sharing) const;

  const LanguageModelData& data_;
  std::optional<WindowOrder> order_;  // of a text
  std::string defaults_;              // generation_config.json, of the leader
};

/// `data` is a text file, a file of conversations (read_dialogues), a token file or a list of token files,
/// which need the tokenizer that made them; `valid` is a file of the same kind, in place of a part of the data.
using LanguageModelRun = RunOf<LanguageModelSettings>;
using LanguageModelSummary = ScoredSummary<TextLoss>;
/// See train_task().
LanguageModelSummary train_language_model(const LanguageModelRun& run);

}  // namespace multihead::train
