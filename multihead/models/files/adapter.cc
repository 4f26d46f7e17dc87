#include "multihead/models/files/adapter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "multihead/autograd/autocast.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/io/config.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/finite_weights-inl.h"
#include "multihead/models/files/peft_config-inl.h"
#include "multihead/nn/linear.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;
using detail::PeftConfig, detail::is_named;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Without ".weight".
std::string layer_of(const std::string& stored) { return stored.substr(0, stored.rfind('.')); }

// Chooses queries and values: of in_proj_weight the first and the last part, or the only one.
bool is_default(const WeightRule& rule, size_t part) {
  if (rule.parameter.ends_with("in_proj_weight")) return part == 0 || part + 1 == rule.parts.size();
  return rule.parameter.ends_with("q_proj.weight") || rule.parameter.ends_with("v_proj.weight");
}

std::string file_in(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

// Our rows from the file's: [3, heads, dim] from [heads, 3, dim], or halves in the other order.
Tensor to_ours(const Tensor& x, int64_t heads, bool swapped_halves) {
  if (swapped_halves) {
    const int64_t half = x.size(0) / 2;
    return concat({slice(x, 0, half, 2 * half), slice(x, 0, 0, half)}, 0);
  }
  if (heads == 0) return x;
  const int64_t dim = x.size(0) / (3 * heads);
  return reshape(permute(reshape(x, {heads, 3, dim, x.size(1)}), {1, 0, 2, 3}), x.shape());
}

}  // namespace

Adapter::Adapter(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                 const AdapterOptions& options, Rng& rng)
    : options_(options) {
  MH_CHECK(options.rank > 0 && options.rank <= 65536, ValueError, "adapter: rank must be in [1, 65536], got ",
           options.rank);
  MH_CHECK(options.alpha > 0 && std::isfinite(options.alpha), ValueError,
           "adapter: alpha must be positive, got ", options.alpha);
  std::set<std::string> known, chosen;
  for (const WeightRule& rule : map) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const auto& p) { return p.name == rule.parameter; });
    const bool is_matrix = found != parameters.end() && found->tensor.rank() == 2 &&
                           rule.parameter.find("embedding") == std::string::npos;
    if (!is_matrix) continue;
    Target target = {
        rule.parameter, found->tensor.detach().clone(), rule.interleaved_heads, rule.swapped_halves, {}};
    int64_t row = 0;
    for (size_t i = 0; i < rule.parts.size(); ++i) {
      const int64_t rows = rule.parts[i].rows > 0 ? rule.parts[i].rows : target.base.size(0);
      const std::string layer = layer_of(rule.parts[i].name);
      known.insert(last_part(layer));
      if (options.targets.empty() ? is_default(rule, i) : is_named(layer, options.targets)) {
        const int64_t in = target.base.size(1);
        target.parts.push_back(
            {layer, row, rows,
             nn::uniform_parameter({options.rank, in}, 1 / std::sqrt(static_cast<double>(in)), rng),
             nn::constant_parameter({rows, options.rank}, 0)});
        chosen.insert(last_part(layer));
        transposed_ = transposed_ || rule.transposed;
      }
      row += rows;
    }
    if (!target.parts.empty()) targets_.push_back(std::move(target));
  }
  for (const std::string& target : options.targets) {
    const auto has = [&](const Part& part) { return is_named(part.layer, {target}); };
    MH_CHECK(std::any_of(targets_.begin(), targets_.end(),
                         [&](const Target& t) { return std::any_of(t.parts.begin(), t.parts.end(), has); }),
             ValueError, "adapter: no layer is called ", quote(target), "; the layers are ",
             Enumeration(known));
  }
  MH_CHECK(!targets_.empty(), ValueError,
           "adapter: the model has no query and value projections; choose targets among ",
           Enumeration(known));
  layers_ =
      options.targets.empty() ? std::vector<std::string>(chosen.begin(), chosen.end()) : options.targets;
}

void Adapter::visit(nn::Visitor& visitor) {
  for (Target& target : targets_) {
    for (Part& part : target.parts) {
      visitor(part.layer + ".lora_A.weight", part.a);
      visitor(part.layer + ".lora_B.weight", part.b);
    }
  }
}

// In f32 under Autocast, too: it is added to weights.
Tensor Adapter::delta(const Target& target) const {
  const Autocast off(Dtype::f32);
  std::vector<Tensor> rows;
  int64_t row = 0;
  const auto fill_to = [&](int64_t end) {
    if (end > row) rows.push_back(Tensor::zeros({end - row, target.base.size(1)}));
    row = end;
  };
  for (const Part& part : target.parts) {
    fill_to(part.first);
    rows.push_back(scale(matmul(part.b, part.a), options_.alpha / static_cast<double>(options_.rank)));
    row += part.rows;
  }
  fill_to(target.base.size(0));
  return to_ours(rows.size() == 1 ? rows[0] : concat(rows, 0), target.interleaved_heads,
                 target.swapped_halves);
}

std::vector<std::pair<std::string, Tensor>> Adapter::weights() const {
  std::vector<std::pair<std::string, Tensor>> sums;
  for (const Target& target : targets_) sums.emplace_back(target.parameter, add(target.base, delta(target)));
  return sums;
}

std::vector<nn::NamedTensor> Adapter::stored(const std::vector<std::pair<std::string, Tensor>>& whole) const {
  std::vector<nn::NamedTensor> all;
  for (const Target& target : targets_) {
    for (const Part& part : target.parts) {
      all.push_back({kPrefix + part.layer + ".lora_A.weight", part.a});
      all.push_back({kPrefix + part.layer + ".lora_B.weight", part.b});
    }
  }
  for (const auto& [name, tensor] : whole) all.push_back({kPrefix + name, tensor});
  return all;
}

void Adapter::save(io::CheckpointContents& contents, const std::string& base, const std::string& task_type,
                   const std::vector<std::pair<std::string, Tensor>>& whole) const {
  io::TensorMap& tensors = contents.tensors[kWeightsFile];
  for (const nn::NamedTensor& one : stored(whole)) tensors[one.name] = one.tensor.detach().contiguous();
  const auto words = [](const std::vector<std::string>& list) {
    return Json(std::vector<Json>(list.begin(), list.end()));
  };
  // The modules of PEFT's modules_to_save: the first part of a name after the model's own ("bert.").
  std::vector<std::string> modules;
  for (const auto& [name, tensor] : whole) {
    const std::string layer = layer_of(name);
    const size_t pooler = layer.find("pooler");
    const std::string module = pooler != std::string::npos ? "pooler" : layer.substr(0, layer.find('.'));
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) modules.push_back(module);
  }
  contents.files[kConfigFile] = Json::object({{"peft_type", "LORA"},
                                              {"task_type", task_type},
                                              {"base_model_name_or_path", io::path_to_json(base)},
                                              {"r", options_.rank},
                                              {"lora_alpha", options_.alpha},
                                              {"lora_dropout", 0.0},
                                              {"target_modules", words(layers_)},
                                              {"modules_to_save", modules.empty() ? Json() : words(modules)},
                                              {"bias", "none"},
                                              {"fan_in_fan_out", Json(transposed_)},
                                              {"init_lora_weights", Json(true)},
                                              {"inference_mode", Json(true)}})
                                    .dump(2) +
                                "\n";
}

void Adapter::load(const std::string& file, const std::vector<std::pair<std::string, Tensor>>& whole) {
  nn::load_parameters(stored(whole), io::load_safetensors(file), file);
}

bool is_adapter_folder(const std::string& folder) {
  return node_at(file_in(folder, kConfigFile)) != Node::absent &&
         node_at(file_in(folder, "model.safetensors")) == Node::absent &&
         node_at(file_in(folder, "model.safetensors.index.json")) == Node::absent;
}

std::string base_of_adapter(const std::string& folder) {
  const std::string file = file_in(folder, kConfigFile);
  const Json json = io::load_json(file);
  const Json* base = json.find("base_model_name_or_path");
  MH_CHECK(base != nullptr && !base->is_null(), FormatError, file, ": base_model_name_or_path is missing");
  const std::string path = io::path_from_json(*base);
  // "tuned/" and "." lie where "tuned" does.
  const fs::path beside = fs::absolute(fs::path(folder) / "").lexically_normal().parent_path().parent_path();
  for (const std::string& candidate : {path, (beside / path).string()}) {
    std::error_code ignored;
    if (!fs::exists(candidate, ignored)) continue;
    MH_CHECK(!is_adapter_folder(candidate), FormatError, file, ": its base model ", quote(path),
             " is itself an adapter");
    return candidate;
  }
  throw FormatError(concat(file, ": base_model_name_or_path is ", quote(path),
                           ", which is not a folder here; set it to the model's folder"));
}

namespace {

// A stored weight of the model and what is added to it or, without b, what it becomes.
struct Change {
  std::string parameter;
  Tensor view;
  bool transposed = false;
  Tensor a, b;
};

// The places of stored weights in their views, by name, with or without the family's prefix.
class Places {
 public:
  using Place = std::pair<size_t, const WeightRule*>;

  Places(const WeightMap& map, const std::string& optional_prefix) : prefix_(optional_prefix) {
    size_t at = 0;
    for (const WeightRule& rule : map) {
      for (const WeightPart& part : rule.parts) places_[part.name] = {at++, &rule};
    }
  }
  /// Null: there is none.
  const Place* find(const std::string& name) const {
    auto found = places_.find(name);
    if (found == places_.end() && !prefix_.empty()) {
      found = places_.find(name.starts_with(prefix_) ? name.substr(prefix_.size()) : prefix_ + name);
    }
    return found == places_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::string, Place> places_;
  std::string prefix_;
};

// Whether the tensors have the shapes that the view needs.
bool fits(const Change& change) {
  const int64_t numel = change.view.numel(),
                columns = change.transposed ? change.view.size(0) : change.view.size(-1);
  if (!change.b.defined()) {
    // Views of matrices have their columns last, and may have more axes than the file.
    const bool is_vector = change.parameter.ends_with("bias") || change.view.rank() == 1;
    return change.a.numel() == numel &&
           (is_vector ? change.a.rank() == 1
                      : change.a.rank() > 1 && change.a.size(-1) == change.view.size(-1));
  }
  return change.a.rank() == 2 && change.b.rank() == 2 && change.a.size(1) == columns &&
         change.b.size(1) == change.a.size(0) && change.b.size(0) * columns == numel;
}

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";

// Of "model.layers.3.mlp": 3; -1: it is in none.
int64_t number_of_layer(const std::string& name) {
  const size_t at = name.find_first_of("0123456789");
  const bool is_number = at != name.npos && at > 0 && name[at - 1] == '.';
  return is_number ? std::atoll(name.c_str() + at) : -1;
}

bool is_inside(const std::string& name, const std::string& module) {
  return ("." + name + ".").find("." + module + ".") != std::string::npos;
}

// Says why PEFT would not apply a tensor of the file, or nothing. `layer`: without prefix and ending.
std::string problem_of(const PeftConfig& config, const std::string& layer, const Change& change,
                       const std::vector<std::string>& tied) {
  if (change.b.defined()) {
    if (change.a.size(0) != config.rank) {
      return concat("has rank ", change.a.size(0), ", but r is ", config.rank);
    }
    if (!config.targets.empty() && !is_named(layer, config.targets)) return "is none of target_modules";
    if (config.pattern && !std::regex_match(layer, *config.pattern)) return "does not fit target_modules";
    if (is_named(layer, config.excluded)) return "is one of exclude_modules";
    const bool is_left_out = !config.layers.empty() && !config.layers.contains(number_of_layer(layer));
    return is_left_out ? "is of none of layers_to_transform" : "";
  }
  const bool is_copy = std::any_of(config.saved.begin(), config.saved.end(),
                                   [&](const std::string& module) { return is_inside(layer, module); });
  const bool splits = is_copy && std::find(tied.begin(), tied.end(), change.parameter) != tied.end();
  return splits ? "is in modules_to_save, which unties it from the other weights that the model ties to it; "
                  "that is not supported"
                : "";
}

}  // namespace

std::vector<std::string> tied_parameters(const LanguageModelConfig& c) {
  return std::vector<std::string>(c.tie_embeddings && c.head ? 1 : 0, "token_embedding.weight");
}
std::vector<std::string> tied_parameters(const EncoderConfig& c) {
  return std::vector<std::string>(c.head == EncoderHead::masked_lm ? 1 : 0, "token_embedding.weight");
}
std::vector<std::string> tied_parameters(const Seq2SeqConfig& c) {
  std::vector<std::string> tied;
  if (c.share_embeddings) tied.emplace_back("source_embedding.weight");
  if (c.tie_output) tied.emplace_back("target_embedding.weight");
  return tied;
}

std::vector<std::string> merge_adapter(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                                       const MergeOptions& options, const std::string& folder) {
  const PeftConfig config = detail::load_peft_config(folder);
  const std::string file = file_in(folder, kWeightsFile);
  const io::TensorMap tensors = io::load_safetensors(file);
  for (const auto& [name, tensor] : tensors) detail::check_finite(file, name, tensor);
  const auto views = stored_views(parameters, map);
  const Places places(map, options.optional_prefix);
  std::vector<Change> changes;
  std::set<size_t> places_changed;
  std::string problems = tensors.empty() ? "\n  it has none" : "";
  for (const auto& [full, tensor] : tensors) {
    const bool is_low_rank = full.ends_with(kA), is_second = full.ends_with(kB);
    const std::string stem = full.substr(0, full.size() - (is_low_rank || is_second ? kA.size() : 0));
    if (is_second && tensors.contains(stem + std::string(kA))) continue;
    const bool is_prefixed = full.starts_with(kPrefix);
    const std::string layer = is_prefixed ? stem.substr(std::string(kPrefix).size()) : stem;
    const auto b = is_low_rank ? tensors.find(stem + std::string(kB)) : tensors.end();
    const Places::Place* place = places.find(is_low_rank ? layer + ".weight" : layer);
    if (!is_prefixed || is_second || place == nullptr || (is_low_rank && b == tensors.end())) {
      problems += concat("\n  unexpected ", full, " ", tensor.shape());
      continue;
    }
    const auto& [index, rule] = *place;
    Change change = {rule->parameter, views[index].second, rule->transposed, tensor.to(Dtype::f32), {}};
    if (is_low_rank) change.b = b->second.to(Dtype::f32);
    if (!places_changed.insert(index).second) {
      problems += concat("\n  ", full, " changes what another tensor of the file changes, too");
    } else if (!fits(change)) {
      problems += concat("\n  ", full, " ", tensor.shape(), " does not fit ", change.view.shape());
    } else if (const std::string problem =
                   problem_of(config, is_low_rank ? layer : layer_of(layer), change, options.tied);
               !problem.empty()) {
      problems += concat("\n  ", full, " ", problem);
    }
    changes.push_back(std::move(change));
  }
  for (const std::string& module : config.saved) {
    const auto holds = [&](const auto& entry) { return is_inside(entry.first, module); };
    if (std::any_of(views.begin(), views.end(), holds) && std::none_of(tensors.begin(), tensors.end(), holds))
      problems += concat("\n  missing ", module, ", which modules_to_save names");
  }
  MH_CHECK(problems.empty(), FormatError, file, ": the tensors do not fit the model:", problems);
  std::vector<std::string> changed;
  for (const Change& change : changes) {
    Tensor value = change.a;
    if (change.b.defined()) {
      value = scale(matmul(change.b, change.a), config.factor);
      if (change.transposed) value = transpose(value, 0, 1);
      value = add(change.view.detach(), reshape(value, change.view.shape()));
    }
    change.view.copy_from(reshape(value, change.view.shape()));
    changed.push_back(change.parameter);
  }
  return changed;
}

std::string tokenizer_folder(const std::string& folder) {
  if (!is_adapter_folder(folder)) return folder;
  for (const char* name : {"tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model",
                           "sentencepiece.bpe.model", "spm.model", "source.spm"}) {
    if (node_at(file_in(folder, name)) != Node::absent) return folder;
  }
  return base_of_adapter(folder);
}

void check_vocabulary(const std::string& folder, const char* tokenizer, int64_t tokens, int64_t known) {
  MH_CHECK(tokens <= known, FormatError, folder, ": the ", tokenizer, " has ", tokens,
           " tokens, the model expects ", known, "; they do not match");
}

}  // namespace multihead::models
