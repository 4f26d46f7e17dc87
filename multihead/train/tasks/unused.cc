// Settings that were given and that the others leave without effect.
#include <algorithm>
#include <span>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/train/tasks/kind.h"

namespace multihead::train {
namespace {

// `name` has an effect if `setting` has one of `values`; none: any but 0.
struct Need {
  std::string_view name, setting;
  std::vector<std::string_view> values;
};

const std::vector<Need>& needs() {
  constexpr std::string_view kAdam = "\"adam\"", kAdamW = "\"adamw\"", kWsd = "\"wsd\"";
  static const std::vector<Need> list = {{"lora-alpha", "lora-rank", {}},
                                         {"lora-targets", "lora-rank", {}},
                                         {"freeze", "lora-rank", {"0"}},
                                         {"momentum", "optimizer", {"\"sgd\""}},
                                         {"beta1", "optimizer", {kAdam, kAdamW}},
                                         {"beta2", "optimizer", {kAdam, kAdamW}},
                                         {"eps", "optimizer", {kAdam, kAdamW}},
                                         {"eps-hat", "optimizer", {kAdam, kAdamW}},
                                         {"decay-share", "schedule", {kWsd}},
                                         {"vocab-size", "tokenizer", {"\"bpe\""}},
                                         {"rotary-base", "positions", {"\"rotary\""}},
                                         {"rotary-fraction", "positions", {"\"rotary\""}},
                                         {"labels-as-names", "multi-label", {"false"}},
                                         {"patience", "eval-every", {}},
                                         {"final-ratio", "schedule", {kWsd, "\"linear\"", "\"cosine\""}}};
  return list;
}

// As in a record; null if this kind has no such setting.
Json value_of_setting(std::span<const Field> settings, std::string_view name) {
  const auto found = std::ranges::find(settings, name, &Field::name);
  return found == settings.end() ? Json() : to_json(*found);
}

bool validates(const RunRequest& request, std::span<const Field> settings) {
  const Json share = value_of_setting(settings, "validation-share");
  return !request.valid.empty() || (!share.is_null() && share.as_double() > 0);
}

bool has_effect(const Need& need, const std::string& value) {
  return need.values.empty() ? value != "0" : std::ranges::find(need.values, value) != need.values.end();
}

// Why this one changes nothing; empty: it does.
std::string reason(const RunRequest& request, std::span<const Field> settings, std::string_view name) {
  for (const Need& need : needs()) {
    const Json other = need.name == name ? value_of_setting(settings, need.setting) : Json();
    if (!other.is_null() && !has_effect(need, other.dump()))
      return concat("with --", need.setting, " ", other.dump());
  }
  const bool of_feed_forward = name.starts_with("ff") || name == "activation" || name == "gated";
  if (of_feed_forward && value_of_setting(settings, "block") == Json("attention_only"))
    return "with --block \"attention_only\"";
  const bool of_evaluations = name == "patience" || name == "validation-blocks" || is_sample(name);
  if (of_evaluations && !validates(request, settings)) return "without validation data";
  const bool of_tokenizer = name == "tokenizer" || name == "vocab-size" || name == "shared-vocabulary";
  if (of_tokenizer && (!request.init.empty() || !request.tokenizer.empty()))
    return "on a tokenizer that is given";
  const bool of_start = name == "init-std" || name == "scaled-residual-init" || name == "default-linear-init";
  if (of_start && !request.init.empty()) return "on weights that --init gives";
  if (name == "time" && request.resume) return "with --resume, which keeps the number of steps";
  if (name.starts_with("validation-") && !request.valid.empty()) return "with --valid";
  return "";
}

}  // namespace

bool is_given(const RunRequest& request, std::string_view name) {
  const auto same = [](char a, char b) { return a == b || (a == '_' && b == '-'); };
  return std::ranges::any_of(request.given,
                             [&](const std::string& given) { return std::ranges::equal(given, name, same); });
}

void refuse_unused(const RunRequest& request, std::span<const Field> settings,
                   std::span<const Field> defaults) {
  for (size_t i = 0; i < settings.size(); ++i) {
    const Field& setting = settings[i];
    if (!is_given(request, setting.name) || to_json(setting) == to_json(defaults[i])) continue;
    const std::string why = reason(request, settings, setting.name);
    MH_CHECK(why.empty(), ValueError, "train: --", setting.name, " has no effect ", why);
  }
}

}  // namespace multihead::train
