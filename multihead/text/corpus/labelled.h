// Labelled texts, for training classifiers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace multihead::text {

/// texts[i], or texts[i] beside seconds[i], has the label labels[i].
struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<std::string> seconds;  ///< empty: single texts
  std::vector<std::string> labels;
};

/// A file of lines: text TAB label, or text TAB second text TAB label; of a name ending in .jsonl, objects
/// {"text": …, "label": …} that may have a "text_pair", the label a string or an integer. Every line has the
/// same columns, and no column but a text is empty. Throws what read_text throws; FormatError naming the
/// line.
LabelledTexts read_labelled(const std::string& path);

/// The distinct labels, integers by value and before other words, which are sorted.
std::vector<std::string> distinct_labels(const std::vector<std::string>& labels);

}  // namespace multihead::text
