// A complete run of a masked language model: an encoder that guesses hidden words of a text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "multihead/train/data/masking.h"
#include "multihead/train/tasks/encoder_parts.h"
#include "multihead/train/tasks/language_model_run.h"

namespace multihead::train {

/// Cross-entropy on hidden tokens.
struct MaskedLoss {
  double nats = 0;
  int64_t tokens = 0, right = 0;
  double loss() const { return nats / static_cast<double>(tokens); }
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(tokens); }
};

Json to_json(const MaskedLoss& loss);

/// The training task: windows of the text with some words hidden (Masker), anew in every epoch.
class MaskedLmTask : public ModelTask<MaskedLmSettings, models::Encoder, MaskedLoss> {
 public:
  using Data = LanguageModelData;
  /// `data` must outlive the task. `init`: the folder whose weights it begins with; empty: random ones.
  MaskedLmTask(const MaskedLmSettings& settings, const LanguageModelData& data, const std::string& init);

  static const Kind& kind();
  static MaskedLmSettings preset(const std::string& name) { return masked_lm_settings(name); }
  static std::string read(const Run& run);
  static Data prepare(const Run& run, const RunFolder* folder, const std::string& text);
  static int64_t pass(const MaskedLmSettings& s, const Data& data) {
    return std::max<int64_t>(1, data.training.size() / (length_of(s) * s.batch));
  }
  static MaskedLmTask make(const Run& run, const Data& data) { return {run.settings, data, run.init}; }

  Loss loss(int64_t index) override;
  double targets(int64_t index) const override;
  std::optional<MaskedLoss> score(int64_t most, const Sharing& sharing = {}) const override;
  void save(io::CheckpointContents& contents) override;

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

  const LanguageModelData& data_;
  std::string init_;
  std::vector<int32_t> before_, after_;  // the tokenizer's template
  int64_t window_;                       // tokens between them
  WindowOrder order_;
  Masker masker_;
};

/// `data` is a text file.
using MaskedLmRun = RunOf<MaskedLmSettings>;
using MaskedLmSummary = ScoredSummary<MaskedLoss>;
/// See train_task().
MaskedLmSummary train_masked_lm(const MaskedLmRun& run);

}  // namespace multihead::train
