#include "multihead/models/hugging_face.h"

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"
#include "multihead/io/json.h"
#include "multihead/models/hugging_face-inl.h"
#include "multihead/nn/unfilled-inl.h"

namespace multihead::models {
namespace detail {
namespace {

// Hugging Face's names of the activations, in the order of the enum.
const std::vector<std::string> kActivations = {"linear", "relu", "gelu", "gelu_new", "silu"};
// gelu_pytorch_tanh is gelu_new by another name.
const std::vector<std::string> kReadableActivations = {
    "linear", "relu", "gelu", "gelu_new", "silu", "swish", "gelu_pytorch_tanh"};

}  // namespace

Activation activation_field(io::ConfigReader& config, const std::string& key, Activation fallback) {
  const size_t index = config.choice_or(key, kReadableActivations, static_cast<size_t>(fallback));
  if (index == 5) return Activation::silu;
  if (index == 6) return Activation::gelu_tanh;
  return static_cast<Activation>(index);
}

const std::vector<std::string>& family_names() {
  static const std::vector<std::string> names = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "multihead"};
  return names;
}

const std::string& activation_name(Activation activation) {
  return kActivations[static_cast<size_t>(activation)];
}

}  // namespace detail

namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): models' own internals

const std::vector<std::string> kPositions = {"none", "learned", "sinusoidal", "rotary", "alibi"};
const std::vector<std::string> kNorms = {"layer_norm", "rms_norm"};
const std::vector<std::string> kRotaryLayouts = {"halves", "interleaved"};

Json own_json(const LanguageModelConfig& c) {
  Json json = Json::object({{"architectures", Json(std::vector<Json>{"LanguageModel"})},
                            {"model_type", "multihead"},
                            {"vocab_size", c.vocab_size},
                            {"context", c.context},
                            {"window", c.window},
                            {"num_layers", c.num_layers},
                            {"num_heads", c.num_heads},
                            {"num_kv_heads", c.num_kv_heads},
                            {"head_dim", c.head_dim},
                            {"embed_dim", c.embed_dim},
                            {"ffn_dim", c.ffn_dim},
                            {"positions", kPositions[static_cast<size_t>(c.positions)]},
                            {"rotary_base", c.rotary_base},
                            {"rotary_fraction", c.rotary_fraction},
                            {"rotary_layout", kRotaryLayouts[static_cast<size_t>(c.rotary_layout)]},
                            {"norm", kNorms[static_cast<size_t>(c.norm)]},
                            {"norm_eps", c.norm_eps},
                            {"norm_first", c.norm_first},
                            {"final_norm", c.final_norm},
                            {"activation", activation_name(c.activation)},
                            {"gated", c.gated},
                            {"attention_bias", c.attention_bias},
                            {"qk_norm", c.qk_norm},
                            {"out_bias", c.out_bias},
                            {"ffn_bias", c.ffn_bias},
                            {"head_bias", c.head_bias},
                            {"tie_embeddings", c.tie_embeddings},
                            {"scale_embeddings", c.scale_embeddings},
                            {"attention_dropout_p", c.attention_dropout_p},
                            {"init_std", c.init_std}});
  if (c.rotary_scaling != RotaryScaling{}) write_rotary(c, json);
  return json;
}

LanguageModelConfig own_config(io::ConfigReader& r) {
  LanguageModelConfig c;
  c.vocab_size = r.integer("vocab_size", kSize);
  c.context = r.integer("context", kSize);
  c.window = r.integer_or("window", 0, {.min = 0, .max = kSize.max});
  c.num_layers = r.integer("num_layers", {.min = 1, .max = 1 << 16});
  c.num_heads = r.integer("num_heads", kSize);
  c.num_kv_heads = r.integer("num_kv_heads", kSize);
  c.head_dim = r.integer("head_dim", kSize);
  c.embed_dim = r.integer("embed_dim", kSize);
  c.ffn_dim = r.integer("ffn_dim", kSize);
  c.positions = static_cast<Positions>(r.choice("positions", kPositions));
  read_rotary(r, c);
  c.rotary_base = r.number_or("rotary_base", c.rotary_base, kPositive);
  c.rotary_fraction = r.number_or("rotary_fraction", 1, {.min = 0, .max = 1, .exclude_min = true});
  c.rotary_layout = static_cast<RotaryLayout>(r.choice_or("rotary_layout", kRotaryLayouts, 0));
  c.norm = static_cast<nn::NormKind>(r.choice("norm", kNorms));
  c.norm_eps = r.number("norm_eps", kPositive);
  c.norm_first = r.boolean("norm_first");
  c.final_norm = r.boolean("final_norm");
  c.activation = activation_field(r, "activation", c.activation);
  c.gated = r.boolean("gated");
  c.attention_bias = r.boolean("attention_bias");
  c.qk_norm = r.boolean_or("qk_norm", false);
  c.out_bias = r.boolean("out_bias");
  c.ffn_bias = r.boolean("ffn_bias");
  c.head_bias = r.boolean("head_bias");
  c.tie_embeddings = r.boolean("tie_embeddings");
  c.scale_embeddings = r.boolean("scale_embeddings");
  c.attention_dropout_p = r.number_or("attention_dropout_p", 0, kProbability);
  c.init_std = r.number_or("init_std", 0.02, kPositive);
  r.ignore({"architectures", "torch_dtype", "multihead"});
  r.refuse_unknown();
  return c;
}

std::string config_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "config.json").string();
}

}  // namespace

Family family_of(const LanguageModelConfig& config) {
  const LanguageModelConfig c = resolved(config);
  return is_gpt2(c) ? Family::gpt2 : llama_family(c);
}

const char* family_name(Family family) { return family_names()[static_cast<size_t>(family)].c_str(); }

Json config_to_json(const LanguageModelConfig& config) {
  const LanguageModelConfig c = resolved(config);
  const Family family = family_of(c);
  Json json = family == Family::gpt2        ? gpt2_json(c)
              : family == Family::multihead ? own_json(c)
                                            : llama_json(c, family);
  json["multihead"] = Json::object({{"dropout_p", c.dropout_p},
                                    {"ffn_dropout_p", c.ffn_dropout_p},
                                    {"scaled_residual_init", c.scaled_residual_init},
                                    {"default_linear_init", c.default_linear_init}});
  json["torch_dtype"] = "float32";
  return json;
}

LanguageModelConfig config_from_json(const Json& json, const std::string& where) {
  io::ConfigReader reader(json, where);
  const std::string type = reader.string_or("model_type", "");
  if (type == "marian" || type == "multihead_seq2seq") {
    reader.fail("model_type", concat("is ", quote(type),
                                     ", a translator, which load_seq2seq() and the verb translate read"));
  }
  const auto family = static_cast<Family>(reader.choice("model_type", family_names()));
  LanguageModelConfig c = family == Family::gpt2        ? gpt2_config(reader)
                          : family == Family::multihead ? own_config(reader)
                                                        : llama_config(reader, family);
  if (auto training = reader.optional_child("multihead")) {
    c.dropout_p = training->number_or("dropout_p", c.dropout_p, kProbability);
    c.ffn_dropout_p = training->number_or("ffn_dropout_p", c.ffn_dropout_p, kProbability);
    c.scaled_residual_init = training->boolean_or("scaled_residual_init", c.scaled_residual_init);
    c.default_linear_init = training->boolean_or("default_linear_init", c.default_linear_init);
    training->refuse_unknown();
  }
  try {
    return resolved(c);
  } catch (const ValueError& error) {
    throw FormatError(concat(where, ": ", error.what()));
  }
}

WeightMap weight_map(LanguageModel& model) {
  switch (family_of(model.config())) {
    case Family::gpt2:
      return gpt2_map(model.config());
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
      return llama_map(model.config());
    case Family::multihead:
      break;
  }
  return identity_map(nn::named_parameters(model));
}

io::TensorMap language_model_tensors(LanguageModel& model) {
  return export_weights(nn::named_parameters(model), weight_map(model));
}

void save_language_model(LanguageModel& model, const std::string& folder) {
  io::save_files(folder, io::kModelFiles, [&](io::DirectoryWriter& writer) {
    io::write_contents(writer, {.tensors = {{"model.safetensors", language_model_tensors(model)}},
                                .files = {{"config.json", config_to_json(model.config()).dump(2) + "\n"}}});
  });
}

namespace {

// What files hold besides the weights: copies of tied ones, and buffers of older versions of transformers.
std::vector<ExtraTensor> extra_tensors(const LanguageModelConfig& c, const WeightMap& map,
                                       const std::string& prefix) {
  std::vector<ExtraTensor> extras;
  if (c.tie_embeddings) extras.push_back(repeated_tensor("lm_head.weight", map[0].parts[0].name, prefix));
  if (family_of(c) == Family::gpt2) {
    extras.push_back({".attn.bias"});  // the triangle of causality
    extras.push_back({".attn.masked_bias"});
  } else if (c.positions == Positions::rotary) {
    extras.push_back(rotary_buffers(c));
  }
  return extras;
}

}  // namespace

LanguageModel load_language_model(const std::string& folder) {
  io::check_complete(folder, "config.json");
  const std::string path = config_path(folder);
  const LanguageModelConfig config = config_from_json(io::load_json(path), path);
  const io::SafetensorsFile file = open_weights(folder, "AutoModelForCausalLM");
  check_size(file, matrix_weights(config));
  const nn::UnfilledParameters unfilled;
  Rng rng(0);
  LanguageModel model(config, rng);
  const WeightMap map = weight_map(model);
  const std::string prefix = family_of(config) == Family::gpt2 ? "transformer." : "";
  import_weights(nn::named_parameters(model), map, file,
                 {.optional_prefix = prefix, .extras = extra_tensors(config, map, prefix), .fresh = true});
  return model;
}

}  // namespace multihead::models
