// A complete run of a masked language model: an encoder that guesses hidden words of a text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "multihead/train/data/masking.h"
#include "multihead/train/run.h"
#include "multihead/train/tasks/encoder_parts.h"
#include "multihead/train/tasks/language_model_run.h"

namespace multihead::train {

/// The model of a folder, to be trained on. Throws IoError, FormatError.
void start_from(MaskedLmSettings& settings, const std::string& init);

/// Cross-entropy on hidden tokens.
struct MaskedLoss {
  double nats = 0;
  int64_t tokens = 0, right = 0;
  double loss() const { return nats / static_cast<double>(tokens); }
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(tokens); }
};

/// The training task: windows of the text with some words hidden (Masker), anew in every epoch.
class MaskedLmTask : public Task {
 public:
  /// `data` must outlive the task. `init`: the folder whose weights it begins with; empty: random ones.
  MaskedLmTask(const MaskedLmSettings& settings, const LanguageModelData& data, const std::string& init);

  Loss loss(int64_t index) override;
  int64_t targets(int64_t index) const override;
  std::optional<double> evaluate(const Sharing& sharing) override;
  std::vector<std::pair<std::string, double>> metrics() const override;
  void save(io::CheckpointContents& contents) override;
  void load(const std::string& path) override;
  Json identity() const override;

  /// Over `windows` validation windows, evenly spread; 0: all.
  MaskedLoss score(int64_t windows, const Sharing& sharing = {}) const;
  models::Encoder& model() { return model_; }
  /// Parameters that the encoder's folder does not hold.
  const std::vector<std::string>& fresh() const { return fresh_; }

 private:
  struct Batch {
    models::TokenRows rows;
    Tensor places, targets;
  };
  struct Window {
    int64_t begin;        // its first token
    RandomStream hidden;  // what is hidden of it
  };
  Batch batch_of(const text::TokenView& text, std::span<const Window> windows) const;
  Batch training_batch(int64_t index) const;

  MaskedLmSettings settings_;
  const LanguageModelData& data_;
  std::string init_;
  std::vector<int32_t> before_, after_;  // the tokenizer's template
  int64_t window_;                       // tokens between them
  WindowOrder order_;
  Masker masker_;
  std::vector<std::string> fresh_;
  models::Encoder model_;
  MaskedLoss latest_;
};

/// `data` is a text file or a token file, which needs the tokenizer that made it.
struct MaskedLmRun : RunRequest {
  MaskedLmSettings settings = {};
};

struct MaskedLmSummary : RunSummary {
  std::optional<MaskedLoss> validation;  ///< of the kept model, over the whole validation text
};

/// Throws IoError, FormatError (data, checkpoints), ValueError (settings), NumericError. An interrupted run
/// leaves a checkpoint and no model.
MaskedLmSummary train_masked_lm(const MaskedLmRun& run);

Json to_json(const MaskedLmSummary& summary);

}  // namespace multihead::train
