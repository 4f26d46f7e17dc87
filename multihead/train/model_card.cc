#include "multihead/train/model_card.h"

#include <algorithm>
#include <filesystem>

namespace multihead::train {
namespace {

// The folder or file without the path to it, which says nothing elsewhere.
std::string last_part(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

std::string row(const std::string& name, std::string value) {
  for (size_t at = 0; (at = value.find('|', at)) != value.npos; at += 2) value.insert(at, "\\");
  std::ranges::replace(value, '\n', ' ');
  return concat("| ", name, " | ", value, " |\n");
}

std::string text_of(const Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

// A table of an object's members, without those that are empty.
std::string table_of(const Json& object) {
  std::string rows;
  for (const JsonMember& m : object.members()) {
    const std::string text = text_of(m.value);
    if (!text.empty() && !m.value.is_null()) rows += row(std::string(m.key), text);
  }
  return concat("| | |\n|---|---|\n", rows);
}

}  // namespace

std::string model_card(const Kind& kind, const RunRequest& request, const std::vector<Field>& settings,
                       const Json& summary) {
  const std::string base = last_part(request.init), name = last_part(request.folder);
  std::string text = concat("---\npipeline_tag: ", kind.tag, "\n");
  if (!base.empty()) text += concat("base_model: ", Json(base).dump(), "\n");
  text += concat("tags:\n- multihead\n---\n\n# ", name, "\n\nMade by `multihead train ", kind.name, "` from ",
                 base.empty() ? "random weights" : base, ".\n\n## Data\n\n");
  Json data = Json::object({{"training data", last_part(request.data)}});
  if (!request.valid.empty()) data["validation data"] = last_part(request.valid);
  for (const char* key : {"texts", "images", "pairs", "queries", "windows", "labels"}) {
    if (summary.contains(key)) data[key] = summary.at(key);
  }
  data["tokens read in training"] = summary.at("progress").at("tokens");
  text += table_of(data);
  if (const Json* validation = summary.find("validation"); validation != nullptr) {
    text += concat("\n## Validation\n\n", table_of(*validation));
  }
  text += concat("\n## Settings\n\n", table_of(to_json(settings)));
  const std::string& use = kind.examples.back().first;  // the last one uses the model (test_documents.py)
  return text + concat("\n## Use\n\n```sh\n", use, "\n```\n");
}

}  // namespace multihead::train
