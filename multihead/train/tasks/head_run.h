// A classifier on vectors that stay as they are: the folder's own pooling, then a linear head.
#pragma once

#include "multihead/train/tasks/classifier_run.h"

namespace multihead::train {

/// The run of a classifier with ClassifierSettings::head_only. Every text's vector is computed once, by all ranks
/// together, as SentenceEncoder has it (a model's plain folder: the mean of the tokens); fit_linear_head() takes
/// them to the end. The result is a folder of sentence-transformers whose last module is a Dense of logits;
/// TextClassifier reads it. There are no checkpoints: a run that was interrupted begins again. Throws what
/// train_task() throws; ValueError (pairs of texts, checkpoints of another kind of run in the folder).
ClassifierSummary train_head(const ClassifierRun& run);

}  // namespace multihead::train
