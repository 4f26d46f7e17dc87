#include "multihead/text/corpus/labelled.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/json.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/core/text/utf8.h"

namespace multihead::text {
namespace {

TableLayout layout_of(bool needs_labels) {
  TableLayout layout = {.columns = {{{"text", "sentence", "sentence1", "premise", "query"}},
                                    {{"text_pair", "sentence2", "hypothesis", "document"}, false},
                                    {{"label", "labels", "relevance"}, needs_labels}},
                        .headerless = {{0, 2}, {0, 1, 2}},
                        .expected = "two columns, text and label, or three, with a second text between them",
                        .otherwise = TableFormat::tsv};
  if (needs_labels) return layout;
  layout.headerless.push_back({0});
  layout.expected = "one column, the text, two, text and label, or three, with a second text between them";
  layout.otherwise = TableFormat::lines;
  return layout;
}

LabelledTexts texts_of(Table table, const std::string& where) {
  LabelledTexts all = {std::move(table.cells[0]), std::move(table.cells[1]), {},
                       std::move(table.lines),    std::move(table.unused),   table.has_names};
  for (const std::string& label : table.cells[2]) all.labels.emplace_back(trimmed(label));
  for (size_t row = 0; row < all.labels.size(); ++row) {
    MH_CHECK(!all.labels[row].empty(), FormatError, where, ": line ", all.lines[row], " has no label");
  }
  return all;
}

}  // namespace

LabelledTexts read_labelled(const std::string& path, TableFormat format) {
  return texts_of(read_table(path, layout_of(true), format), path);
}

LabelledTexts read_texts(const std::string& path, TableFormat format) {
  return texts_of(read_table(path, layout_of(false), format), path);
}

LabelledTexts parse_texts(std::string_view text, const std::string& where, TableFormat format) {
  return texts_of(parse_table(text, where, layout_of(false), format), where);
}

// "[net]" and "[-a]" are names.
bool is_label_list(const std::string& cell) {
  if (cell.size() < 2 || cell.front() != '[' || cell.back() != ']') return false;
  std::string_view list = trimmed(std::string_view(cell).substr(1));
  if (list[0] == '"' || list[0] == ']' || list[0] == '\'') return true;
  if (list[0] == '-') list.remove_prefix(1);
  return list[0] >= '0' && list[0] <= '9';
}

std::vector<std::string> labels_in(const std::string& cell, const std::string& where) {
  std::vector<std::string> labels;
  if (is_label_list(cell)) {
    MH_CHECK(cell.find('"') != cell.npos || cell.find('\'') == cell.npos, FormatError, where,
             ": a list of labels is JSON, with double quotes, got ", quote(cell, 60));
    const Json list = Json::parse(cell, where);
    for (const Json& label : list.items()) {
      MH_CHECK(label.is_string() || label.is_integer(), FormatError, where,
               ": a list of labels must hold strings or integers, got ", quote(label.dump(), 40));
      labels.emplace_back(trimmed(label.is_string() ? label.as_string() : label.dump()));
      MH_CHECK(std::ranges::count(labels, labels.back()) == 1, FormatError, where, ": label ",
               quote(labels.back(), 40), " stands twice in ", quote(cell, 60),
               "; a list holds the labels themselves, not a 0 or 1 for each");
    }
  } else {
    for (size_t begin = 0; begin <= cell.size();) {
      const size_t end = std::min(cell.find(',', begin), cell.size());
      labels.emplace_back(trimmed(std::string_view(cell).substr(begin, end - begin)));
      begin = end + 1;
    }
  }
  for (const std::string& label : labels) {
    MH_CHECK(!label.empty(), FormatError, where, ": a label is empty in ", quote(cell, 60));
  }
  return labels;
}

std::vector<std::string> distinct_labels(const std::vector<std::string>& labels) {
  using Key = std::tuple<bool, int64_t, std::string>;
  std::set<Key> keys;
  for (const std::string& label : labels) {
    const auto value = spelled_number<int64_t>(label);
    keys.emplace(!value, value.value_or(0), label);
  }
  std::vector<std::string> distinct;
  for (const Key& key : keys) distinct.push_back(std::get<2>(key));
  return distinct;
}

std::map<std::string, int64_t> label_ids(const std::vector<std::string>& names, const std::string& where) {
  std::map<std::string, int64_t> ids;
  for (const std::string& name : names) {
    const auto [known, is_new] = ids.emplace(name, std::ssize(ids));
    MH_CHECK(is_new, FormatError, where, ": the labels ", known->second, " and ", std::ssize(ids),
             " of the model are both called ", quote(name, 40), "; give each its own name in \"id2label\"");
  }
  return ids;
}

}  // namespace multihead::text
