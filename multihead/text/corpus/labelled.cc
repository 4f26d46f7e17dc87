#include "multihead/text/corpus/labelled.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::text {
namespace {

struct Row {
  std::string text;
  std::optional<std::string> second;
  std::string label;
};

Row columns_of(std::string_view line, const std::string& where) {
  const auto tabs = std::count(line.begin(), line.end(), '\t');
  MH_CHECK(tabs == 1 || tabs == 2, FormatError, where,
           " must have two columns, text TAB label, or three, with a second text, got ", tabs + 1);
  const size_t first = line.find('\t'), last = line.rfind('\t');
  Row row = {std::string(line.substr(0, first)), {}, std::string(line.substr(last + 1))};
  if (tabs == 2) row.second = std::string(line.substr(first + 1, last - first - 1));
  return row;
}

Row object_of(std::string_view line, const std::string& where) {
  const Json json = Json::parse(line, where);
  const auto text_of = [&](const char* key, bool required) -> std::optional<std::string> {
    const Json* value = json.find(key);
    if (value == nullptr && !required) return std::nullopt;
    MH_CHECK(value != nullptr && value->is_string(), FormatError, where, ": ", quote(key),
             " must be a string");
    return value->as_string();
  };
  Row row = {*text_of("text", true), text_of("text_pair", false), {}};
  const Json* label = json.find("label");
  MH_CHECK(label != nullptr && (label->is_string() || label->is_integer()), FormatError, where,
           ": \"label\" must be a string or an integer");
  row.label = label->is_string() ? label->as_string() : std::to_string(label->as_int());
  return row;
}

}  // namespace

LabelledTexts read_labelled(const std::string& path) {
  const std::string text = read_text(path);
  const bool is_json = path.ends_with(".jsonl");
  LabelledTexts all;
  each_line(text, [&](std::string_view line, int64_t number) {
    const std::string where = concat(path, ": line ", number);
    Row row = is_json ? object_of(line, where) : columns_of(line, where);
    MH_CHECK(!row.label.empty(), FormatError, where, " has no label");
    MH_CHECK(all.texts.empty() || row.second.has_value() == !all.seconds.empty(), FormatError, where,
             row.second ? " has a second text, the lines before have none"
                        : " has no second text, the lines before have one");
    all.texts.push_back(std::move(row.text));
    if (row.second) all.seconds.push_back(std::move(*row.second));
    all.labels.push_back(std::move(row.label));
  });
  MH_CHECK(!all.texts.empty(), FormatError, path, ": the file has blank lines only");
  return all;
}

std::vector<std::string> distinct_labels(const std::vector<std::string>& labels) {
  using Key = std::tuple<bool, int64_t, std::string>;
  std::set<Key> keys;
  for (const std::string& label : labels) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), value);
    const bool is_integer = error == std::errc() && end == label.data() + label.size();
    keys.emplace(!is_integer, is_integer ? value : 0, label);
  }
  std::vector<std::string> distinct;
  for (const Key& key : keys) distinct.push_back(std::get<2>(key));
  return distinct;
}

}  // namespace multihead::text
