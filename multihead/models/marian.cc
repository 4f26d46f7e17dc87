#include "multihead/models/marian.h"

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/config.h"
#include "multihead/io/json.h"

namespace multihead::models {
namespace {

const std::vector<std::string> kActivations = {"linear",   "relu", "gelu",
                                               "gelu_new", "silu", "swish"};  // swish: silu by another name
const std::vector<std::string> kPositions = {"none", "learned", "sinusoidal"};
const std::vector<std::string> kLayouts = {"interleaved", "halves"};
const std::vector<std::string> kNorms = {"layer_norm", "rms_norm"};
constexpr const char* kOwnType = "multihead_seq2seq";
constexpr const char* kOutputBias = "final_logits_bias";
constexpr io::IntegerRange kSize = {.min = 1, .max = int64_t{1} << 31};
constexpr io::IntegerRange kLayers = {.min = 1, .max = 1 << 16};
constexpr io::IntegerRange kToken = {.min = 0, .max = int64_t{1} << 31};
constexpr io::NumberRange kProbability = {.min = 0, .max = 1};
constexpr io::NumberRange kPositive = {.min = 0, .exclude_min = true};

Json marian_json(const Seq2SeqConfig& c) {
  const std::string& activation = kActivations[static_cast<size_t>(c.activation)];
  return Json::object({{"architectures", Json(std::vector<Json>{"MarianMTModel"})},
                       {"model_type", "marian"},
                       {"vocab_size", c.source_vocab_size},
                       {"decoder_vocab_size", c.target_vocab_size},
                       {"max_position_embeddings", c.max_positions},
                       {"d_model", c.embed_dim},
                       {"encoder_layers", c.encoder_layers},
                       {"decoder_layers", c.decoder_layers},
                       {"encoder_attention_heads", c.num_heads},
                       {"decoder_attention_heads", c.num_heads},
                       {"encoder_ffn_dim", c.ffn_dim},
                       {"decoder_ffn_dim", c.ffn_dim},
                       {"activation_function", activation},
                       {"dropout", c.dropout_p},
                       {"attention_dropout", c.attention_dropout_p},
                       {"activation_dropout", c.ffn_dropout_p},
                       {"init_std", c.init_std},
                       {"scale_embedding", c.scale_embeddings},
                       {"share_encoder_decoder_embeddings", c.share_embeddings},
                       {"tie_word_embeddings", c.tie_output},
                       {"is_encoder_decoder", true},
                       {"pad_token_id", c.pad_id},
                       {"eos_token_id", c.eos_id},
                       {"forced_eos_token_id", c.eos_id},
                       {"decoder_start_token_id", c.decoder_start_id}});
}

Json own_json(const Seq2SeqConfig& c) {
  return Json::object({{"architectures", Json(std::vector<Json>{"Seq2Seq"})},
                       {"model_type", kOwnType},
                       {"source_vocab_size", c.source_vocab_size},
                       {"target_vocab_size", c.target_vocab_size},
                       {"max_positions", c.max_positions},
                       {"encoder_layers", c.encoder_layers},
                       {"decoder_layers", c.decoder_layers},
                       {"num_heads", c.num_heads},
                       {"embed_dim", c.embed_dim},
                       {"ffn_dim", c.ffn_dim},
                       {"positions", kPositions.at(static_cast<size_t>(c.positions))},
                       {"sinusoid_layout", kLayouts.at(static_cast<size_t>(c.sinusoid_layout))},
                       {"norm", kNorms.at(static_cast<size_t>(c.norm))},
                       {"norm_eps", c.norm_eps},
                       {"norm_first", c.norm_first},
                       {"final_norm", c.final_norm},
                       {"activation", kActivations[static_cast<size_t>(c.activation)]},
                       {"bias", c.bias},
                       {"output_bias", c.output_bias},
                       {"share_embeddings", c.share_embeddings},
                       {"tie_output", c.tie_output},
                       {"scale_embeddings", c.scale_embeddings},
                       {"dropout_p", c.dropout_p},
                       {"attention_dropout_p", c.attention_dropout_p},
                       {"ffn_dropout_p", c.ffn_dropout_p},
                       {"init_std", c.init_std},
                       {"pad_id", c.pad_id},
                       {"eos_id", c.eos_id},
                       {"decoder_start_id", c.decoder_start_id}});
}

Activation activation_field(io::ConfigReader& r, const char* key) {
  const size_t index = r.choice_or(key, kActivations, static_cast<size_t>(Activation::gelu));
  return index == 5 ? Activation::silu : static_cast<Activation>(index);
}

// Both stacks of a Marian model share a size here.
int64_t common_size(io::ConfigReader& r, const char* encoder, const char* decoder) {
  const int64_t size = r.integer(encoder, kSize);
  if (r.integer_or(decoder, size, kSize) != size) r.fail(decoder, concat("must equal ", encoder));
  return size;
}

void expect(io::ConfigReader& r, const char* key, bool value) {
  if (r.boolean_or(key, value) != value) {
    r.fail(key, value ? "false is not supported" : "true is not supported");
  }
}

Seq2SeqConfig marian_config(io::ConfigReader& r) {
  Seq2SeqConfig c;
  c.source_vocab_size = r.integer("vocab_size", kSize);
  c.target_vocab_size = r.integer_or("decoder_vocab_size", c.source_vocab_size, kSize);
  c.max_positions = r.integer("max_position_embeddings", kSize);
  c.embed_dim = r.integer("d_model", kSize);
  c.encoder_layers = r.integer("encoder_layers", kLayers);
  c.decoder_layers = r.integer("decoder_layers", kLayers);
  c.num_heads = common_size(r, "encoder_attention_heads", "decoder_attention_heads");
  c.ffn_dim = common_size(r, "encoder_ffn_dim", "decoder_ffn_dim");
  c.activation = activation_field(r, "activation_function");
  c.dropout_p = r.number_or("dropout", 0.1, kProbability);
  c.attention_dropout_p = r.number_or("attention_dropout", 0, kProbability);
  c.ffn_dropout_p = r.number_or("activation_dropout", 0, kProbability);
  c.init_std = r.number_or("init_std", 0.02, kPositive);
  c.scale_embeddings = r.boolean_or("scale_embedding", false);
  c.share_embeddings = r.boolean_or("share_encoder_decoder_embeddings", true);
  c.tie_output = r.boolean_or("tie_word_embeddings", true);
  c.pad_id = r.integer("pad_token_id", kToken);
  c.eos_id = r.integer("eos_token_id", kToken);
  c.decoder_start_id = r.integer_or("decoder_start_token_id", c.pad_id, kToken);
  if (auto ours = r.optional_child("multihead")) c.output_bias = ours->boolean_or("output_bias", true);
  expect(r, "normalize_before", false);
  expect(r, "normalize_embedding", false);
  expect(r, "static_position_embeddings", true);
  expect(r, "add_final_layer_norm", false);
  r.ignore({"forced_eos_token_id", "bos_token_id", "num_beams", "max_length", "bad_words_ids",
            "num_hidden_layers", "encoder_layerdrop", "decoder_layerdrop", "use_cache", "is_encoder_decoder",
            "is_decoder", "classifier_dropout", "add_bias_logits", "extra_pos_embeddings"});
  return c;
}

Seq2SeqConfig own_config(io::ConfigReader& r) {
  Seq2SeqConfig c;
  c.source_vocab_size = r.integer("source_vocab_size", kSize);
  c.target_vocab_size = r.integer("target_vocab_size", kSize);
  c.max_positions = r.integer("max_positions", kSize);
  c.encoder_layers = r.integer("encoder_layers", kLayers);
  c.decoder_layers = r.integer("decoder_layers", kLayers);
  c.num_heads = r.integer("num_heads", kSize);
  c.embed_dim = r.integer("embed_dim", kSize);
  c.ffn_dim = r.integer("ffn_dim", kSize);
  c.positions = static_cast<Positions>(r.choice("positions", kPositions));
  c.sinusoid_layout = static_cast<nn::SinusoidLayout>(r.choice("sinusoid_layout", kLayouts));
  c.norm = static_cast<nn::NormKind>(r.choice("norm", kNorms));
  c.norm_eps = r.number("norm_eps", kPositive);
  c.norm_first = r.boolean("norm_first");
  c.final_norm = r.boolean("final_norm");
  c.activation = activation_field(r, "activation");
  c.bias = r.boolean("bias");
  c.output_bias = r.boolean("output_bias");
  c.share_embeddings = r.boolean("share_embeddings");
  c.tie_output = r.boolean("tie_output");
  c.scale_embeddings = r.boolean("scale_embeddings");
  c.dropout_p = r.number_or("dropout_p", 0, kProbability);
  c.attention_dropout_p = r.number_or("attention_dropout_p", 0, kProbability);
  c.ffn_dropout_p = r.number_or("ffn_dropout_p", 0, kProbability);
  c.init_std = r.number_or("init_std", 0.02, kPositive);
  c.pad_id = r.integer("pad_id", kToken);
  c.eos_id = r.integer("eos_id", kToken);
  c.decoder_start_id = r.integer("decoder_start_id", kToken);
  return c;
}

void add_pair(WeightMap& map, const std::string& ours, const std::string& theirs) {
  for (const char* kind : {"weight", "bias"}) map.push_back({ours + "." + kind, {{theirs + "." + kind}}});
}

void add_attention(WeightMap& map, int64_t rows, const std::string& ours, const std::string& theirs) {
  for (const char* kind : {"weight", "bias"}) {
    map.push_back({ours + ".in_proj_" + kind,
                   {{theirs + ".q_proj." + kind, rows},
                    {theirs + ".k_proj." + kind, rows},
                    {theirs + ".v_proj." + kind, rows}}});
  }
  add_pair(map, ours + ".out_proj", theirs + ".out_proj");
}

void add_stack(WeightMap& map, const Seq2SeqConfig& c, bool decoder) {
  const std::string stack = decoder ? "decoder.layers." : "encoder.layers.";
  const int64_t layers = decoder ? c.decoder_layers : c.encoder_layers;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string ours = concat("transformer.", stack, i, "."), theirs = concat("model.", stack, i, ".");
    add_attention(map, c.embed_dim, ours + "self_attn", theirs + "self_attn");
    add_pair(map, ours + "norm1", theirs + "self_attn_layer_norm");
    if (decoder) {
      add_attention(map, c.embed_dim, ours + "multihead_attn", theirs + "encoder_attn");
      add_pair(map, ours + "norm2", theirs + "encoder_attn_layer_norm");
    }
    add_pair(map, ours + "linear1", theirs + "fc1");
    add_pair(map, ours + "linear2", theirs + "fc2");
    add_pair(map, ours + (decoder ? "norm3" : "norm2"), theirs + "final_layer_norm");
  }
}

WeightMap marian_map(const Seq2SeqConfig& c) {
  WeightMap map;
  if (c.share_embeddings) {
    map.push_back({"source_embedding.weight", {{"model.shared.weight"}}});
  } else {
    map.push_back({"source_embedding.weight", {{"model.encoder.embed_tokens.weight"}}});
    map.push_back({"target_embedding.weight", {{"model.decoder.embed_tokens.weight"}}});
  }
  if (!c.tie_output) map.push_back({"output.weight", {{"lm_head.weight"}}});
  if (c.output_bias) map.push_back({.parameter = "output.bias", .parts = {{kOutputBias}}, .as_row = true});
  add_stack(map, c, false);
  add_stack(map, c, true);
  return map;
}

// What files of other writers repeat or what follows from the config.
std::vector<std::string> redundant_names(const Seq2SeqConfig& c) {
  std::vector<std::string> names = {"embed_positions.weight"};
  if (c.share_embeddings) {
    names.insert(names.end(), {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"});
  }
  if (c.tie_output) names.push_back("lm_head.weight");
  if (!c.output_bias) names.push_back(kOutputBias);
  return names;
}

std::string config_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "config.json").string();
}

}  // namespace

bool is_marian(const Seq2SeqConfig& config) {
  const Seq2SeqConfig c = resolved(config);
  return c.positions == Positions::sinusoidal && c.sinusoid_layout == nn::SinusoidLayout::halves &&
         c.norm == nn::NormKind::layer && c.norm_eps == 1e-5 && !c.norm_first && !c.final_norm && c.bias;
}

Json config_to_json(const Seq2SeqConfig& config) {
  const Seq2SeqConfig c = resolved(config);
  Json json = is_marian(c) ? marian_json(c) : own_json(c);
  if (is_marian(c)) json["multihead"] = Json::object({{"output_bias", c.output_bias}});
  json["torch_dtype"] = "float32";
  return json;
}

Seq2SeqConfig seq2seq_config_from_json(const Json& json, const std::string& where,
                                       std::vector<std::string>* unknown) {
  io::ConfigReader reader(json, where);
  const size_t family = reader.choice("model_type", {"marian", kOwnType});
  const Seq2SeqConfig c = family == 0 ? marian_config(reader) : own_config(reader);
  reader.ignore({"architectures", "torch_dtype", "dtype", "transformers_version"});
  if (unknown != nullptr) *unknown = reader.unknown_keys();
  try {
    return resolved(c);
  } catch (const std::invalid_argument& error) {
    throw FormatError(concat(where, ": ", error.what()));
  }
}

bool is_seq2seq_folder(const std::string& folder) {
  const Json json = io::load_json(config_path(folder));
  const Json* type = json.is_object() ? json.find("model_type") : nullptr;
  return type != nullptr && type->is_string() &&
         (type->as_string() == "marian" || type->as_string() == kOwnType);
}

WeightMap weight_map(Seq2Seq& model) {
  return is_marian(model.config()) ? marian_map(model.config()) : identity_map(nn::named_parameters(model));
}

io::TensorMap seq2seq_tensors(Seq2Seq& model) {
  io::TensorMap tensors = export_weights(nn::named_parameters(model), weight_map(model));
  const Seq2SeqConfig& c = model.config();
  if (is_marian(c) && !c.output_bias) tensors[kOutputBias] = Tensor::zeros({1, c.target_vocab_size});
  return tensors;
}

void save_seq2seq(Seq2Seq& model, const std::string& folder) {
  const std::filesystem::path path(folder);
  io::save_safetensors((path / "model.safetensors").string(), seq2seq_tensors(model));
  io::save_json(config_path(folder), config_to_json(model.config()));
}

void load_weights(Seq2Seq& model, const std::string& path) {
  const io::SafetensorsFile file(path);
  const bool own_names = file.contains("source_embedding.weight");  // as models without output bias once had
  const std::vector<nn::NamedTensor> parameters = nn::named_parameters(model);
  import_weights(parameters, own_names ? identity_map(parameters) : weight_map(model), file,
                 {.ignored_suffixes = redundant_names(model.config())});
}

Seq2Seq load_seq2seq(const std::string& folder) {
  const std::string path = config_path(folder);
  const Seq2SeqConfig config = seq2seq_config_from_json(io::load_json(path), path);
  check_size(io::SafetensorsFile(folder), matrix_weights(config));
  Rng rng(0);
  Seq2Seq model(config, rng);
  load_weights(model, folder);
  return model;
}

}  // namespace multihead::models
