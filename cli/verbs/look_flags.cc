#include "cli/verbs/look_flags.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "cli/verb.h"
#include "multihead/core/text/json.h"
#include "multihead/core/text/numbers-inl.h"

namespace multihead::cli {
namespace {

// "0,3-5" of `count`; "" is all. In order, each once.
std::vector<int64_t> selected(const char* flag, const std::string& text, int64_t count) {
  if (text.empty()) return {};
  std::set<int64_t> chosen;
  const auto wrong = [&] {
    return UsageError(fmt::format("{}: expected numbers and ranges from 0 to {}, like 0,2-4; got {}", flag,
                                  count - 1, quote(text)));
  };
  const auto number = [&](const std::string& digits) {
    const int64_t value = spelled_number<int64_t>(digits).value_or(-1);
    if (value < 0 || value >= count) throw wrong();
    return value;
  };
  std::istringstream parts(text + ",");  // a comma at the end asks for another number
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int64_t first = number(part.substr(0, dash));
    const int64_t last = dash == std::string::npos ? first : number(part.substr(dash + 1));
    if (last < first) throw wrong();
    for (int64_t i = first; i <= last; ++i) chosen.insert(i);
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace

void Selection::declare(Flags& flags, bool has_rows) {
  flags.text("layers", "LIST", layers, "these layers only: 0,2-4 (default: all)");
  flags.text("heads", "LIST", heads, "these heads only: 0,2-4 (default: all)");
  if (has_rows) flags.text("rows", "LIST", rows, "these queries only, by token: 0,500-511 (default: all)");
}

look::Look Selection::of(int64_t layers_of_model, int64_t heads_of_model, int64_t tokens) const {
  return {.layers = selected("--layers", layers, layers_of_model),
          .heads = selected("--heads", heads, heads_of_model),
          .rows = selected("--rows", rows, tokens)};
}

look::AttentionRun look_at(const LoadedModel& loaded, const std::string& text, const Selection& selection,
                           double most_cost, const look::Look& changes) {
  const models::LanguageModelConfig& c = loaded.model.config();
  const int64_t tokens = std::ssize(loaded.tokenizer.encode(text));
  look::Look wanted = selection.of(c.num_layers, c.num_heads, tokens);
  wanted.off = changes.off, wanted.cut = changes.cut;
  wanted.measures = look::cost_of_measures(c, tokens) < most_cost;
  return look::look(loaded.model, loaded.tokenizer, text, wanted);
}

void check_numbers(const std::string& folder, const look::AttentionRun& run) {
  for (const look::AttentionView& view : run.views) {
    for (const Tensor& layer : view.weights) {
      for (const float weight : layer.to_vector<float>()) check_number(folder, "an attention weight", weight);
    }
  }
}

std::string page_title(const std::string& folder, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(folder + "/").parent_path();
  const size_t shown = complete_utf8(std::string_view(text).substr(0, 80));
  return concat("Attention of ", path.filename().string(), ": ", text.substr(0, shown),
                shown < text.size() ? "…" : "");
}

}  // namespace multihead::cli
