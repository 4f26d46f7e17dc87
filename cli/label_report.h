// How well labels are predicted, as text and as a page.
#pragma once

#include <string>
#include <vector>

#include "multihead/train/scores.h"

namespace multihead::cli {

/// A row for each label, the means, and of up to 24 labels the confusion matrix.
std::string to_text(const train::LabelReport& report, const std::vector<std::string>& names);
/// A row for each label and the means.
std::string to_text(const train::LabelSetReport& report, const std::vector<std::string>& names);
/// The first as a page of HTML that needs no other file.
std::string to_html(const train::LabelReport& report, const std::vector<std::string>& names,
                    const std::string& title);

}  // namespace multihead::cli
