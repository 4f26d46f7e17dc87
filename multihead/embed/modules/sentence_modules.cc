// How sentence-transformers' folders speak of what follows the encoder.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <variant>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/embed/modules/folder-inl.h"
#include "multihead/embed/modules/modules-inl.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/io/config.h"
#include "multihead/io/safetensors.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/norm.h"

namespace multihead::embed {

namespace detail {

const std::map<std::string, DenseFunction>& dense_functions() {
  const auto activation = [](const char* name, Activation how) {
    return DenseFunction{concat("torch.nn.modules.activation.", name),
                         [how](const Tensor& x) { return activate(x, how); }};
  };
  static const std::map<std::string, DenseFunction> all = {
      {"Identity", {"torch.nn.modules.linear.Identity", [](const Tensor& x) { return x; }}},
      {"Tanh", {"torch.nn.modules.activation.Tanh", [](const Tensor& x) { return tanh(x); }}},
      {"Sigmoid", {"torch.nn.modules.activation.Sigmoid", [](const Tensor& x) { return sigmoid(x); }}},
      {"ReLU", activation("ReLU", Activation::relu)},
      {"GELU", activation("GELU", Activation::gelu)},
      {"SiLU", activation("SiLU", Activation::silu)}};
  return all;
}

}  // namespace detail

namespace {

using detail::dense_functions;
using detail::find_value;
using detail::joined;

std::string text_of(const Json& json) { return json.dump(2) + "\n"; }

// Pooling's config.json: one flag for each way, side by side in this order, or "pooling_mode", one or a list.
struct Mode {
  const char* flag;
  const char* word;
  Pooling pooling;
};
constexpr Mode kModes[] = {{"pooling_mode_cls_token", "cls", Pooling::cls},
                           {"pooling_mode_max_tokens", "max", Pooling::max},
                           {"pooling_mode_mean_tokens", "mean", Pooling::mean},
                           {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::mean_sqrt},
                           {"pooling_mode_weightedmean_tokens", "weightedmean", Pooling::weighted_mean},
                           {"pooling_mode_lasttoken", "lasttoken", Pooling::last}};

Json pooling_config(const std::vector<Pooling>& pooling, int64_t dim, bool pools_prompt) {
  Json json = Json::object({{"word_embedding_dimension", dim}});
  for (const Mode& mode : kModes) {
    json[mode.flag] = Json(std::find(pooling.begin(), pooling.end(), mode.pooling) != pooling.end());
  }
  json["include_prompt"] = Json(pools_prompt);
  return json;
}

std::vector<Pooling> modes_of(io::ConfigReader& config) {
  std::vector<Pooling> modes;
  for (const Mode& mode : kModes) {
    if (config.boolean_or(mode.flag, false)) modes.push_back(mode.pooling);
  }
  const Json* words = config.find("pooling_mode");
  if (words == nullptr || words->is_null()) return modes;
  modes.clear();
  const std::vector<Json> list = words->is_array()
                                     ? std::vector<Json>(words->items().begin(), words->items().end())
                                     : std::vector<Json>{*words};
  for (const Json& word : list) {
    const auto found =
        std::ranges::find_if(kModes, [&](const Mode& mode) { return word == Json(mode.word); });
    if (found == std::end(kModes)) {
      config.fail("pooling_mode", concat(quote(word.dump(), 80), " is not supported"));
    }
    modes.push_back(found->pooling);
  }
  return modes;
}

constexpr const char* kGivesStates = "output_hidden_states";

// Vectors of one kind are all that a module reads and writes.
void check_names(io::ConfigReader& config, const std::string& feature) {
  for (const char* key : {"module_input_name", "module_output_name"}) {
    const Json* given = config.find(key);
    if (given != nullptr && !given->is_null() && *given != Json(feature)) {
      config.fail(key, concat(quote(given->dump(), 80), " is not supported"));
    }
  }
  config.refuse_unknown();
}

Tensor loaded_weight(const io::SafetensorsFile& file, const char* name, const Shape& shape) {
  const Tensor x = file.load(name).to(Dtype::f32);
  MH_CHECK(x.shape() == shape, FormatError, file.path(), ": ", name, " must be ", shape, ", got ", x.shape());
  return x;
}

VectorStep read_dense(const std::string& folder, int64_t in, const std::string& feature) {
  const std::string file = joined(folder, "config.json");
  const Json json = io::load_json(file);
  io::ConfigReader config(json, file);
  VectorStep step;
  step.function = "Tanh";
  if (const Json* given = config.find("activation_function"); given != nullptr && !given->is_null()) {
    const std::string path = config.string("activation_function");
    step.function = path.substr(path.rfind('.') + 1);
    if (!path.starts_with("torch.nn.") || !dense_functions().contains(step.function)) {
      config.fail("activation_function",
                  concat(quote(path, 80),
                         " is not supported; supported are torch.nn's Tanh, Identity, ReLU, GELU, SiLU and "
                         "Sigmoid"));
    }
  }
  const io::SafetensorsFile weights(joined(folder, "model.safetensors"));
  step.weight = weights.load("linear.weight").to(Dtype::f32);
  MH_CHECK(step.weight.rank() == 2 && step.weight.size(1) == in, FormatError, folder,
           ": linear.weight must be [out, ", in, "], got ", step.weight.shape());
  const int64_t out = step.weight.size(0);
  for (const auto& [key, size] : {std::pair("in_features", in), {"out_features", out}}) {
    const int64_t given = config.integer_or(key, size);
    if (given != size) config.fail(key, concat("must be ", size, ", the weight's, got ", given));
  }
  const bool has_bias = weights.contains("linear.bias");
  if (config.boolean_or("bias", has_bias)) {
    step.bias = loaded_weight(weights, "linear.bias", {out});
  } else if (has_bias) {
    config.fail("bias", concat("is false, but ", weights.path(), " has linear.bias"));
  }
  step.has_residual = config.boolean_or("use_residual", false);
  if (step.has_residual && in != out) step.residual = loaded_weight(weights, "residual.weight", {out, in});
  check_names(config, feature);
  return step;
}

VectorStep read_layer_norm(const std::string& folder, int64_t in) {
  const std::string file = joined(folder, "config.json");
  const Json json = io::load_json(file);
  io::ConfigReader config(json, file);
  const int64_t width = config.integer_or("dimension", in);
  if (width != in) config.fail("dimension", concat("must be ", in, ", got ", width));
  config.refuse_unknown();
  const io::SafetensorsFile weights(joined(folder, "model.safetensors"));
  return {.kind = VectorStep::Kind::layer_norm,
          .weight = loaded_weight(weights, "norm.weight", {width}),
          .bias = loaded_weight(weights, "norm.bias", {width})};
}

}  // namespace

namespace detail {

VectorStep read_step(const Module& module, int64_t width, const std::string& feature, const char* supported) {
  if (module.kind == "Dense") return read_dense(module.path, width, feature);
  if (module.kind == "LayerNorm" && feature == "sentence_embedding")
    return read_layer_norm(module.path, width);
  MH_CHECK(module.kind == "Normalize", FormatError, module.path, ": module ", quote(module.kind),
           " is not supported; supported are ", supported);
  const std::string file = joined(module.path, "config.json");
  const Json json = read_json(module.path, "config.json");
  if (json.is_object()) {
    io::ConfigReader config(json, file);
    check_names(config, feature);
  }
  return {.kind = VectorStep::Kind::normalize};
}

Tensor apply(const VectorStep& step, const Tensor& x) {
  if (step.kind == VectorStep::Kind::normalize) return normalized_rows(x);
  if (step.kind == VectorStep::Kind::layer_norm) return layer_norm(x, step.weight, step.bias, 1e-5);
  const Tensor y = dense_functions().at(step.function)(linear(x, step.weight, step.bias));
  if (!step.has_residual) return y;
  return add(y, step.residual.defined() ? linear(x, step.residual) : x);
}

int64_t width_after(const VectorStep& step, int64_t width) {
  return step.kind == VectorStep::Kind::dense ? step.weight.size(0) : width;
}

}  // namespace detail

namespace {

// Whether transformers gives the hidden states, without which sentence-transformers passes over the module.
bool gives_states(const std::string& folder) {
  const Json own = detail::read_json(folder, "config.json");
  const Json outer = detail::read_json(folder, "sentence_bert_config.json");
  for (const Json* settings : {find_value(outer, "config_kwargs"), find_value(outer, "config_args"), &own}) {
    const Json* given = settings == nullptr ? nullptr : find_value(*settings, kGivesStates);
    if (given != nullptr) return *given == Json(true);
  }
  return false;
}

LayerMix mix_of(const std::string& folder, const TextModel& model, const std::string& model_folder) {
  const std::string file = joined(folder, "config.json");
  const Json json = io::load_json(file);
  io::ConfigReader config(json, file);
  const int64_t layers = model.num_layers();
  for (const auto& [key, size] : {std::pair("word_embedding_dimension", model.embed_dim()),
                                  {"embedding_dimension", model.embed_dim()},
                                  {"num_hidden_layers", layers}}) {
    const int64_t given = config.integer_or(key, size);
    if (given != size) config.fail(key, concat("must be ", size, ", the model's, got ", given));
  }
  const int64_t first = config.integer_or("layer_start", 4);
  if (first < 0 || first > layers) {
    config.fail("layer_start", concat("must be in [0, ", layers, "], got ", first));
  }
  config.refuse_unknown();
  MH_CHECK(!std::holds_alternative<models::Seq2Seq>(model.any()), FormatError, file,
           ": WeightedLayerPooling after an encoder-decoder model is not supported");
  MH_CHECK(
      gives_states(model_folder), FormatError, joined(model_folder, "config.json"),
      ": WeightedLayerPooling needs \"output_hidden_states\": true; without it sentence-transformers passes "
      "over the module");
  const io::SafetensorsFile weights(joined(folder, "model.safetensors"));
  LayerMix mix = {first, loaded_weight(weights, "layer_weights", {layers + 1 - first}).to_vector<float>()};
  const double sum = std::accumulate(mix.weights.begin(), mix.weights.end(), 0.0);
  MH_CHECK(sum != 0 && std::isfinite(sum), FormatError, weights.path(),
           ": layer_weights must have a finite sum that is not 0, got ", sum);
  return mix;
}

}  // namespace

void SentenceEncoder::read_mix(const std::string& folder) { mix_ = mix_of(folder, encoder_, source_.model); }

void SentenceEncoder::read_pooling(const std::string& folder) {
  const std::string file = joined(folder, "config.json");
  const Json json = io::load_json(file);
  io::ConfigReader config(json, file);
  MH_CHECK(steps_.empty(), FormatError, file, ": Pooling after other modules is not supported");
  pooling_ = modes_of(config);
  MH_CHECK(!pooling_.empty(), FormatError, file, ": it names no way of pooling");
  pools_prompt_ = config.boolean_or("include_prompt", true);
  for (const char* key : {"word_embedding_dimension", "embedding_dimension"}) {
    const int64_t width = config.integer_or(key, encoder_.embed_dim());
    if (width != encoder_.embed_dim()) {
      config.fail(key, concat("must be ", encoder_.embed_dim(), ", the encoder's, got ", width));
    }
  }
  config.refuse_unknown();
}

std::map<std::string, io::CheckpointContents> SentenceEncoder::module_files() const {
  std::map<std::string, io::CheckpointContents> folders;
  Json modules = Json::array();
  const auto add = [&](const char* kind) -> io::CheckpointContents& {
    const int64_t at = std::ssize(modules.items());
    const std::string path = at == 0 ? "" : concat(at, "_", kind);
    modules.push_back(Json::object({{"idx", at},
                                    {"name", std::to_string(at)},
                                    {"path", path},
                                    {"type", concat("sentence_transformers.models.", kind)}}));
    return folders[path];
  };
  const auto put = [](io::TensorMap& tensors, const char* name, const Tensor& tensor) {
    if (tensor.defined()) tensors[name] = tensor;
  };
  add("Transformer");
  if (!mix_.weights.empty()) {
    io::CheckpointContents& part = add("WeightedLayerPooling");
    part.files["config.json"] = text_of(Json::object({{"embedding_dimension", encoder_.embed_dim()},
                                                      {"layer_start", mix_.first},
                                                      {"num_hidden_layers", encoder_.num_layers()}}));
    part.tensors["model.safetensors"]["layer_weights"] = Tensor::of({std::ssize(mix_.weights)}, mix_.weights);
  }
  add("Pooling").files["config.json"] =
      text_of(pooling_config(pooling_, encoder_.embed_dim(), pools_prompt_));
  for (const VectorStep& step : steps_) {
    if (step.kind == VectorStep::Kind::normalize) {
      add("Normalize");
      continue;
    }
    const bool is_dense = step.kind == VectorStep::Kind::dense;
    io::CheckpointContents& part = add(is_dense ? "Dense" : "LayerNorm");
    io::TensorMap& tensors = part.tensors["model.safetensors"];
    Json config = Json::object({{"dimension", step.weight.size(0)}});
    if (is_dense) {
      config = Json::object({{"in_features", step.weight.size(1)},
                             {"out_features", step.weight.size(0)},
                             {"bias", Json(step.bias.defined())},
                             {"activation_function", dense_functions().at(step.function).path}});
      if (step.has_residual) config["use_residual"] = true;
    }
    part.files["config.json"] = text_of(config);
    put(tensors, is_dense ? "linear.weight" : "norm.weight", step.weight);
    put(tensors, is_dense ? "linear.bias" : "norm.bias", step.bias);
    put(tensors, "residual.weight", step.residual);
  }
  if (normalizes_) add("Normalize");
  Json prompts = Json::object();
  for (const auto& [name, prompt] : prompts_.texts) prompts[name] = prompt;
  std::map<std::string, std::string>& own = folders[""].files;
  own["modules.json"] = text_of(modules);
  Json limits = Json::object({{"max_seq_length", max_length_}, {"do_lower_case", Json(false)}});
  if (!mix_.weights.empty()) limits["config_args"] = Json::object({{kGivesStates, Json(true)}});
  own["sentence_bert_config.json"] = text_of(limits);
  Json usual = Json::object(
      {{"prompts", prompts},
       {"default_prompt_name", prompts_.default_name.empty() ? Json() : Json(prompts_.default_name)},
       {"similarity_fn_name", prompts_.similarity.empty() ? "cosine" : prompts_.similarity}});
  if (prompts_.truncate_dim > 0) usual["truncate_dim"] = prompts_.truncate_dim;
  own["config_sentence_transformers.json"] = text_of(usual);
  return folders;
}

}  // namespace multihead::embed
