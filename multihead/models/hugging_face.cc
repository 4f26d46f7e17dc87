#include "multihead/models/hugging_face.h"

#include <array>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/json.h"
#include "multihead/models/hugging_face-inl.h"

namespace multihead::models {
namespace detail {
namespace {

// Hugging Face's names of the activations, in the order of the enum.
const std::vector<std::string> kActivations = {"linear", "relu", "gelu", "gelu_new", "silu"};
// gelu_pytorch_tanh is gelu_new by another name.
const std::vector<std::string> kReadableActivations = {
    "linear", "relu", "gelu", "gelu_new", "silu", "swish", "gelu_pytorch_tanh"};

}  // namespace

Activation activation_field(io::ConfigReader& config, const char* key, Activation fallback) {
  const size_t index = config.choice_or(key, kReadableActivations, static_cast<size_t>(fallback));
  if (index == 5) return Activation::silu;
  if (index == 6) return Activation::gelu_tanh;
  return static_cast<Activation>(index);
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
bool is_gpt2(const LanguageModelConfig& c) {
  return c.window == 0 && c.positions == Positions::learned && c.norm == nn::NormKind::layer &&
         c.norm_first && c.final_norm && !c.gated && !c.qk_norm && c.attention_bias && c.out_bias &&
         c.ffn_bias && !c.head_bias && !c.scale_embeddings && c.num_kv_heads == c.num_heads &&
         c.head_dim * c.num_heads == c.embed_dim;
}

Json gpt2_json(const LanguageModelConfig& c) {
  return Json::object({{"architectures", Json(std::vector<Json>{"GPT2LMHeadModel"})},
                       {"model_type", "gpt2"},
                       {"vocab_size", c.vocab_size},
                       {"n_positions", c.context},
                       {"n_embd", c.embed_dim},
                       {"n_layer", c.num_layers},
                       {"n_head", c.num_heads},
                       {"n_inner", c.ffn_dim},
                       {"activation_function", activation_name(c.activation)},
                       {"resid_pdrop", c.dropout_p},
                       {"embd_pdrop", c.dropout_p},
                       {"attn_pdrop", c.attention_dropout_p},
                       {"layer_norm_epsilon", c.norm_eps},
                       {"initializer_range", c.init_std},
                       {"tie_word_embeddings", c.tie_embeddings}});
}

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

LanguageModelConfig gpt2_config(io::ConfigReader& r) {
  LanguageModelConfig c;
  c.vocab_size = r.integer("vocab_size", kSize);
  c.context = r.integer("n_positions", kSize);
  c.embed_dim = r.integer("n_embd", kSize);
  c.num_layers = r.integer("n_layer", {.min = 1, .max = 1 << 16});
  c.num_heads = r.integer("n_head", kSize);
  c.ffn_dim = r.optional_integer("n_inner", kSize).value_or(0);
  c.activation = activation_field(r, "activation_function", Activation::gelu_tanh);
  c.dropout_p = r.number_or("resid_pdrop", 0.1, kProbability);
  c.attention_dropout_p = r.number_or("attn_pdrop", 0.1, kProbability);
  c.norm_eps = r.number_or("layer_norm_epsilon", 1e-5, kPositive);
  c.init_std = r.number_or("initializer_range", 0.02, kPositive);
  c.tie_embeddings = r.boolean_or("tie_word_embeddings", true);
  r.ignore({"embd_pdrop", "n_ctx", "summary_type", "summary_use_proj", "summary_activation",
            "summary_proj_to_labels", "summary_first_dropout", "task_specific_params"});
  if (!r.boolean_or("scale_attn_weights", true)) r.fail("scale_attn_weights", "false is not supported");
  if (r.boolean_or("scale_attn_by_inverse_layer_idx", false)) {
    r.fail("scale_attn_by_inverse_layer_idx", "true is not supported");
  }
  if (r.boolean_or("add_cross_attention", false)) r.fail("add_cross_attention", "true is not supported");
  r.ignore({"reorder_and_upcast_attn"});
  return c;
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

const char* family_name(Family family) {
  constexpr std::array<const char*, 6> kNames = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "multihead"};
  return kNames[static_cast<size_t>(family)];
}

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

LanguageModelConfig config_from_json(const Json& json, const std::string& where,
                                     std::vector<std::string>* unknown) {
  io::ConfigReader reader(json, where);
  if (reader.string_or("model_type", "") == "marian") {
    reader.fail("model_type",
                "is \"marian\", a translator, which load_seq2seq() and the verb translate read");
  }
  const auto family = static_cast<Family>(
      reader.choice("model_type", {"gpt2", "llama", "mistral", "qwen2", "qwen3", "multihead"}));
  LanguageModelConfig c = family == Family::gpt2        ? gpt2_config(reader)
                          : family == Family::multihead ? own_config(reader)
                                                        : llama_config(reader, family);
  if (auto training = reader.optional_child("multihead")) {
    c.dropout_p = training->number_or("dropout_p", c.dropout_p, kProbability);
    c.ffn_dropout_p = training->number_or("ffn_dropout_p", c.ffn_dropout_p, kProbability);
    c.scaled_residual_init = training->boolean_or("scaled_residual_init", c.scaled_residual_init);
    c.default_linear_init = training->boolean_or("default_linear_init", c.default_linear_init);
  }
  reader.ignore({"architectures", "torch_dtype", "dtype", "transformers_version", "bos_token_id",
                 "eos_token_id", "pad_token_id", "use_cache", "_name_or_path"});
  if (unknown != nullptr) *unknown = reader.unknown_keys();
  try {
    return resolved(c);
  } catch (const ValueError& error) {
    throw FormatError(concat(where, ": ", error.what()));
  }
}

namespace {

void add_gpt2_layer(WeightMap& map, const std::string& ours, const std::string& theirs) {
  const auto add = [&](const char* our_name, const char* their_name, bool matrix) {
    for (const char* kind : {".weight", ".bias"}) {
      map.push_back({ours + our_name + kind, {{theirs + their_name + kind}}, matrix});
    }
  };
  map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "attn.c_attn.weight"}}, true});
  map.push_back({ours + "self_attn.in_proj_bias", {{theirs + "attn.c_attn.bias"}}});
  add("self_attn.out_proj", "attn.c_proj", true);
  add("linear1", "mlp.c_fc", true);
  add("linear2", "mlp.c_proj", true);
  add("norm1", "ln_1", false);
  add("norm2", "ln_2", false);
}

WeightMap gpt2_map(const LanguageModelConfig& c) {
  WeightMap map = {{"token_embedding.weight", {{"transformer.wte.weight"}}},
                   {"position_embedding.weight", {{"transformer.wpe.weight"}}},
                   {"final_norm.weight", {{"transformer.ln_f.weight"}}},
                   {"final_norm.bias", {{"transformer.ln_f.bias"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    add_gpt2_layer(map, concat("layers.", i, "."), concat("transformer.h.", i, "."));
  }
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  return map;
}

}  // namespace

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
  const std::filesystem::path path(folder);
  io::save_safetensors((path / "model.safetensors").string(), language_model_tensors(model));
  io::save_json(config_path(folder), config_to_json(model.config()));
}

LanguageModel load_language_model(const std::string& folder) {
  const std::string path = config_path(folder);
  const LanguageModelConfig config = config_from_json(io::load_json(path), path);
  const io::SafetensorsFile file(folder);
  check_size(file, matrix_weights(config));
  Rng rng(0);
  LanguageModel model(config, rng);
  ImportOptions options;
  if (family_of(config) == Family::gpt2) {
    options = {"transformer.", {".attn.bias", ".attn.masked_bias"}};
  }
  // Files that repeat a tied matrix say nothing new.
  if (config.tie_embeddings) options.ignored_suffixes.push_back("lm_head.weight");
  import_weights(nn::named_parameters(model), weight_map(model), file, options);
  return model;
}

}  // namespace multihead::models
