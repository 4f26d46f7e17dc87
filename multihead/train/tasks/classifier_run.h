// A complete classifier run: an encoder of a folder, a head for labelled texts.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "multihead/text/corpus/labelled.h"
#include "multihead/train/data/targets.h"
#include "multihead/train/tasks/encoder_parts.h"
#include "multihead/train/tasks/model_task.h"

namespace multihead::train {

/// Labelled texts as tokens.
struct ClassifierData {
  text::Tokenizer tokenizer;
  Targets targets;
  Encodings training = {}, validation = {};
  DataSums sums = {};
};
/// Throws what read_targets() throws; FormatError (pairs of texts on one side only).
ClassifierData prepare_classifier_data(const text::LabelledTexts& training,
                                       const text::LabelledTexts& validation,
                                       const text::Tokenizer& tokenizer, const ClassifierSettings& settings);

/// How well labels or numbers are predicted.
struct LabelScore {
  models::ProblemType problem = models::ProblemType::single_label;
  double nats = 0;  ///< the losses' sum; of numbers squared errors
  int64_t texts = 0;
  double accuracy = 0;  ///< of several labels, the share of texts all of whose labels are right
  double macro_f1 =
      0;  ///< mean over the labels that occur, in the texts or in the guesses; of several, over all
  double micro_f1 = 0;                                                            ///< of several labels
  double pearson = std::numeric_limits<double>::quiet_NaN(), spearman = pearson;  ///< of numbers
  double loss() const { return nats / static_cast<double>(texts); }
};
Json to_json(const LabelScore& score);
/// The score without its nats; `guesses`: the label that each text is taken for.
LabelScore score_labels(const std::vector<int64_t>& guesses, const std::vector<int64_t>& labels,
                        int64_t num_labels);
/// The same from logits; only of numbers with its nats.
LabelScore score_logits(const Tensor& logits, const Tensor& targets, models::ProblemType problem);

/// The score of these validation rows, `batch` at a time.
LabelScore score_rows(const Sharing& sharing, const std::vector<int64_t>& all, int64_t batch,
                      const Targets& targets,
                      FunctionRef<Tensor(const std::vector<int64_t>& rows)> logits_of);

struct ClassifierSummary : ScoredSummary<LabelScore> {
  std::vector<std::string> labels;
  int64_t texts = 0;
  Json counts() const;
};

/// The training task of a classifier: head_loss() of the labels. Weights are saved in Hugging Face layout.
class ClassifierTask : public ModelTask<ClassifierSettings, models::Encoder, LabelScore> {
 public:
  using Data = ClassifierData;
  using Summary = ClassifierSummary;
  /// `data` must outlive the task.
  ClassifierTask(const ClassifierSettings& settings, const ClassifierData& data, const std::string& init);

  static const Kind& kind();
  static ClassifierSettings preset(const std::string&) { return {}; }
  static Data read(const Run& run);
  static int64_t pass(const ClassifierSettings& s, const Data& data) {
    return (std::ssize(data.training) + s.batch - 1) / s.batch;
  }
  static ClassifierTask make(const Run& run, const Data& data) { return {run.settings, data, run.init}; }

  /// The run, whatever trains it.
  static ClassifierSummary train(const RunOf<ClassifierSettings>& run);
  Loss loss(int64_t index) override;
  double targets(int64_t index) const override;
  std::optional<LabelScore> score(int64_t most, const Sharing& sharing = {}) const override;
  void save(io::CheckpointContents& contents) override;
  void describe(ClassifierSummary& summary) const;
  std::vector<std::string> notes() const;
  std::vector<std::string> warnings() const;

 private:
  const ClassifierData& data_;
  std::string init_;
  Tensor weights_;        // of labels; undefined: all the same
  int64_t known_labels_;  // of a head in the folder that is not used
};

/// `data` and `valid` are files of labelled texts (text/corpus/labelled.h).
using ClassifierRun = RunOf<ClassifierSettings>;
/// See train_task(), train_head().
ClassifierSummary train_classifier(const ClassifierRun& run);

}  // namespace multihead::train
