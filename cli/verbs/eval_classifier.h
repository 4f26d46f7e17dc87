// Evaluation of text classifiers: multihead eval of an encoder's folder with a sequence classification head.
#pragma once

#include <string>

#include "cli/verb.h"
#include "multihead/text/corpus/table.h"

namespace multihead::cli {

/// Prints loss, accuracy and macro F1 over a file of labelled texts (text/corpus/labelled.h). Throws
/// InputError (a label that the model has not, a model of another problem_type).
int eval_classifier(const std::string& folder, const std::string& data, text::TableFormat format,
                    const CommonOptions& common);

}  // namespace multihead::cli
