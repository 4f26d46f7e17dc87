// A complete classifier run: an encoder of a folder, a head for labelled texts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "multihead/text/corpus/labelled.h"
#include "multihead/train/run.h"
#include "multihead/train/tasks/encoder_parts.h"

namespace multihead::train {

/// Labelled texts as tokens.
struct ClassifierData {
  text::Tokenizer tokenizer;
  std::vector<std::string> labels;
  Encodings training = {}, validation = {};
  std::vector<int64_t> training_labels = {}, validation_labels = {};
  uint64_t checksum = 0;  ///< of the training texts
};
/// `known`: the labels of the encoder's own head; used if they are all there are in the texts. Throws
/// ValueError (a single label, a validation text whose label no training text has).
ClassifierData prepare_classifier_data(const text::LabelledTexts& training,
                                       const text::LabelledTexts& validation,
                                       const text::Tokenizer& tokenizer, const ClassifierSettings& settings);

/// How well labels are predicted.
struct LabelScore {
  double nats = 0;
  int64_t texts = 0;
  double accuracy = 0;
  double macro_f1 = 0;  ///< mean over the labels that occur, in the texts or in the guesses
  double loss() const { return nats / static_cast<double>(texts); }
};
/// Of logits [n, labels] without the nats.
LabelScore score_labels(const std::vector<int64_t>& guesses, const std::vector<int64_t>& labels,
                        int64_t num_labels);

/// The model of a folder, to be trained on. Throws IoError, FormatError.
void start_from(ClassifierSettings& settings, const std::string& init);

/// The training task of a classifier: cross-entropy of the labels. Weights are saved in Hugging Face layout.
class ClassifierTask : public Task {
 public:
  /// `data` must outlive the task.
  ClassifierTask(const ClassifierSettings& settings, const ClassifierData& data, const std::string& init);

  Loss loss(int64_t index) override;
  int64_t targets(int64_t index) const override;
  std::optional<double> evaluate(const Sharing& sharing) override;
  std::vector<std::pair<std::string, double>> metrics() const override;
  void save(io::CheckpointContents& contents) override;
  void load(const std::string& path) override;
  Json identity() const override;

  /// Over `texts` validation texts, evenly spread; 0: all.
  LabelScore score(int64_t texts, const Sharing& sharing = {}) const;
  models::Encoder& model() { return model_; }
  /// Parameters that the encoder's folder does not hold.
  const std::vector<std::string>& fresh() const { return fresh_; }

 private:
  ClassifierSettings settings_;
  const ClassifierData& data_;
  std::string init_;
  std::vector<std::string> fresh_;
  models::Encoder model_;
  LabelScore latest_;
};

/// `data` is a file of labelled texts (text/corpus/labelled.h).
struct ClassifierRun : RunRequest {
  ClassifierSettings settings = {};
  std::string valid = {};  ///< another; may be empty
};

struct ClassifierSummary : RunSummary {
  std::optional<LabelScore> validation;  ///< of the kept model, over all validation texts
  std::vector<std::string> labels;
  int64_t texts = 0;
};

/// Throws IoError, FormatError (data, checkpoints), ValueError (settings), NumericError. An interrupted run
/// leaves a checkpoint and no model.
ClassifierSummary train_classifier(const ClassifierRun& run);

Json to_json(const ClassifierSummary& summary);

}  // namespace multihead::train
