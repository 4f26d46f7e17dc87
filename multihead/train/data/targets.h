// What a classifier learns of its texts: one label of each, several, or a number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/models/encoder.h"
#include "multihead/text/corpus/labelled.h"

namespace multihead::train {

struct Targets {
  models::ProblemType problem = models::ProblemType::single_label;
  std::vector<std::string> names = {};  ///< of the labels; of a number LABEL_0, as transformers calls it
  /// i64 [n], f32 [n, names] of 0 and 1 (several labels), or f32 [n, 1] (numbers).
  Tensor training, validation;
  /// Counts of labels, what looks like a mistake.
  std::vector<std::string> notes = {}, warnings = {};
};
/// The names are those of `known`, an encoder with a head, if the texts have no other labels. Throws FormatError
/// (a single label, numbers as labels unless they are names, a validation text whose label no training text has,
/// a list where one label or a number is expected). `unit`: what the notes call them.
Targets read_targets(const text::LabelledTexts& training, const text::LabelledTexts& validation,
                     models::ProblemType problem, const models::EncoderConfig& known, bool labels_as_names,
                     const char* unit = "texts");
/// The targets of some texts.
Tensor target_rows(const Tensor& targets, const std::vector<int64_t>& rows);

/// The mean loss of logits [n, names] with its gradient: the cross-entropy of one label; of several the binary
/// cross-entropy of each, their mean; of numbers the square of the difference. As transformers'
/// ...ForSequenceClassification. `weights`, f32 [names]: the mean of one label's is weighted by them, as torch's.
Tensor head_loss(Tensor logits, const Tensor& targets, models::ProblemType problem,
                 double label_smoothing = 0, const Tensor& weights = {});
/// The weights [names] by which labels count for as much as each other: n / (names that occur · texts with the
/// label), scikit-learn's "balanced".
Tensor balanced_weights(const Tensor& targets, int64_t names);

}  // namespace multihead::train
