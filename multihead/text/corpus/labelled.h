// Labelled texts, for training classifiers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/text/corpus/table.h"

namespace multihead::text {

/// texts[i], or texts[i] beside seconds[i], has the label labels[i].
struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<std::string> seconds = {};  ///< empty: single texts
  std::vector<std::string> labels =
      {};                           ///< without spaces around them; a list is as in JSON; empty: no labels
  std::vector<int64_t> lines = {};  ///< of the file
  std::vector<std::string> unused = {};  ///< columns of the file that are not read
  bool has_names = false;                ///< of its columns: a header, or JSON
};

/// A table with the columns "text", "label" and, for pairs, "text_pair" (table.h); without a header: text,
/// label, or text, second text, label. Throws what read_table throws; FormatError for a label that is empty.
LabelledTexts read_labelled(const std::string& path, TableFormat format = TableFormat::by_name);
/// The same where the label may be missing: a lone column has texts, and so has a file whose name does not
/// tell its format, one per line.
LabelledTexts read_texts(const std::string& path, TableFormat format = TableFormat::by_name);
LabelledTexts parse_texts(std::string_view text, const std::string& where,
                          TableFormat format = TableFormat::by_name);

/// The labels of a text that may have several: of a JSON list of strings or integers its members, else what stands between
/// commas, without spaces around it. Throws FormatError naming `where`.
bool is_label_list(const std::string& cell);
std::vector<std::string> labels_in(const std::string& cell, const std::string& where);
/// The distinct labels, integers by value and before other words, which are sorted.
std::vector<std::string> distinct_labels(const std::vector<std::string>& labels);
/// The place of each label of a model's head. Throws FormatError naming `where` and a label that has two.
std::map<std::string, int64_t> label_ids(const std::vector<std::string>& names, const std::string& where);

}  // namespace multihead::text
