#include "multihead/models/marian.h"

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"
#include "multihead/io/json.h"
#include "multihead/models/hugging_face-inl.h"
#include "multihead/nn/positions.h"
#include "multihead/nn/unfilled-inl.h"

namespace multihead::models {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): models' own internals

const std::vector<std::string> kActivations = {"linear",   "relu", "gelu",
                                               "gelu_new", "silu", "swish"};  // swish: silu by another name
const std::vector<std::string> kPositions = {"none", "learned", "sinusoidal"};
const std::vector<std::string> kLayouts = {"interleaved", "halves"};
const std::vector<std::string> kNorms = {"layer_norm", "rms_norm"};
constexpr const char* kOwnType = "multihead_seq2seq";
constexpr const char* kOutputBias = "final_logits_bias";
constexpr io::IntegerRange kToken = {.min = 0, .max = int64_t{1} << 31};

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

Activation activation_field(io::ConfigReader& r, const std::string& key) {
  const size_t index = r.choice_or(key, kActivations, static_cast<size_t>(Activation::gelu));
  return index == 5 ? Activation::silu : static_cast<Activation>(index);
}

using C = Seq2SeqConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

// Both stacks of a Marian model share a size here.
R::Key same_size(const std::string& decoder, const std::string& encoder) {
  return {decoder, [=](Reader& r, const std::string& key, C&) {
            const int64_t size = r.integer(encoder, kSize);
            if (r.integer_or(key, size, kSize) != size) r.fail(key, concat("must equal ", encoder));
          }};
}

// A sentence that is as long as it may be ends with the end token, here always.
R::Key forced_end() {
  return {"forced_eos_token_id", [](Reader& r, const std::string& key, C& c) {
            if (r.has(key) && r.integer(key, kToken) != c.eos_id) r.fail(key, "must equal eos_token_id");
          }};
}

ConfigKeys<C> marian_keys() {
  const auto target_size = [](Reader& r, const std::string& key, C& c) {
    c.target_vocab_size = r.integer_or(key, c.source_vocab_size, kSize);
    if (c.share_embeddings && c.target_vocab_size != c.source_vocab_size) {
      r.fail(key, "must equal vocab_size where share_encoder_decoder_embeddings is true");
    }
  };
  const auto activation = [](Reader& r, const std::string& key, C& c) {
    c.activation = activation_field(r, key);
  };
  const auto start = [](Reader& r, const std::string& key, C& c) {
    c.decoder_start_id = r.integer_or(key, c.pad_id, kToken);
  };
  return {R::integer("vocab_size", &C::source_vocab_size, kSize),
          R::integer("max_position_embeddings", &C::max_positions, kSize),
          R::integer("d_model", &C::embed_dim, kSize),
          R::alias("hidden_size", "d_model"),
          R::integer("encoder_layers", &C::encoder_layers, kLayers),
          R::alias("num_hidden_layers", "encoder_layers"),
          R::integer("decoder_layers", &C::decoder_layers, kLayers),
          R::integer("encoder_attention_heads", &C::num_heads, kSize),
          R::alias("num_attention_heads", "encoder_attention_heads"),
          same_size("decoder_attention_heads", "encoder_attention_heads"),
          R::integer("encoder_ffn_dim", &C::ffn_dim, kSize),
          same_size("decoder_ffn_dim", "encoder_ffn_dim"),
          {"activation_function", activation},
          R::boolean_or("scale_embedding", &C::scale_embeddings, false),
          R::boolean_or("share_encoder_decoder_embeddings", &C::share_embeddings, true),
          {"decoder_vocab_size", target_size},
          R::boolean_or("tie_word_embeddings", &C::tie_output, true),
          R::integer("pad_token_id", &C::pad_id, kToken),
          R::integer("eos_token_id", &C::eos_id, kToken),
          {"decoder_start_token_id", start},
          forced_end(),
          R::only("is_encoder_decoder", true),
          R::only("is_decoder", false),
          R::only("normalize_before", false),
          R::only("normalize_embedding", false),
          R::only("static_position_embeddings", true),
          R::only("add_final_layer_norm", false),
          R::only("add_bias_logits", false),
          R::only("force_bos_token_to_be_generated", false),
          R::number_or("dropout", &C::dropout_p, 0.1, kProbability),
          R::number_or("attention_dropout", &C::attention_dropout_p, 0, kProbability),
          R::number_or("activation_dropout", &C::ffn_dropout_p, 0, kProbability),
          R::number_or("init_std", &C::init_std, 0.02, kPositive),
          R::nothing("encoder_layerdrop"),
          R::nothing("decoder_layerdrop"),
          R::nothing("extra_pos_embeddings")};  // Bart's, of no meaning for sinusoids
}

Seq2SeqConfig marian_config(io::ConfigReader& r) {
  static const ConfigKeys<C> keys = marian_keys();
  C c;
  if (auto ours = r.optional_child("multihead")) {
    c.output_bias = ours->boolean_or("output_bias", true);
    ours->refuse_unknown();
  }
  read_keys(r, keys, c);
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
  r.ignore({"architectures", "torch_dtype"});
  r.refuse_unknown();
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

constexpr const char* kShared = "model.shared.weight";
constexpr const char* kSource = "model.encoder.embed_tokens.weight";
constexpr const char* kTarget = "model.decoder.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

WeightMap marian_map(const Seq2SeqConfig& c) {
  WeightMap map;
  if (c.share_embeddings) {
    map.push_back({"source_embedding.weight", {{kShared}}});
  } else {
    map.push_back({"source_embedding.weight", {{kSource}}});
    map.push_back({"target_embedding.weight", {{kTarget}}});
  }
  if (!c.tie_output) map.push_back({"output.weight", {{kHead}}});
  if (c.output_bias) map.push_back({.parameter = "output.bias", .parts = {{kOutputBias}}, .as_row = true});
  add_stack(map, c, false);
  add_stack(map, c, true);
  return map;
}

// What files of other writers repeat or what follows from the config.
std::vector<ExtraTensor> extra_tensors(const Seq2SeqConfig& c) {
  const auto sinusoids = [c](const Shape& stored) -> std::vector<Tensor> {
    if (stored != Shape({c.max_positions, c.embed_dim})) return {};
    return {nn::sinusoidal_positions(c.max_positions, c.embed_dim, 0, nn::SinusoidLayout::halves)};
  };
  std::vector<ExtraTensor> extras = {constant_tensor("embed_positions.weight", sinusoids, 1e-4)};
  if (c.share_embeddings) {
    extras.push_back(repeated_tensor(kSource, kShared));
    extras.push_back(repeated_tensor(kTarget, kShared));
  } else {
    extras.push_back({kShared});  // transformers 5 saves it, and looks nothing up in it
  }
  if (c.tie_output) extras.push_back(repeated_tensor(kHead, c.share_embeddings ? kShared : kTarget));
  if (!c.output_bias) extras.push_back({kOutputBias});
  return extras;
}

// share_encoder_decoder_embeddings without tie_word_embeddings: transformers 5 unties everything and saves
// three tables besides the shared one, which nothing reads; 4 shares the two embeddings and saves one table.
// The file says which of them wrote it.
Seq2SeqConfig settled(Seq2SeqConfig c, const io::SafetensorsFile& file) {
  if (!is_marian(c) || !c.share_embeddings || c.tie_output) return c;
  c.share_embeddings =
      !file.contains(kSource) || !file.contains(kTarget) ||
      (file.contains(kShared) && file.is_repeated(kSource, kShared) && file.is_repeated(kTarget, kShared));
  return c;
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

namespace {

[[noreturn]] void refuse_type(const io::ConfigReader& reader, const std::string& type) {
  for (const std::string& family : family_names()) {
    if (type != family) continue;
    reader.fail("model_type", concat("is ", quote(type),
                                     ", a language model, which load_language_model() and the verb generate "
                                     "read"));
  }
  reader.fail("model_type", concat("is ", quote(type),
                                   ", which is not read; of encoder-decoder models "
                                   "\"marian\" is, and what train seq2seq writes"));
}

}  // namespace

Seq2SeqConfig seq2seq_config_from_json(const Json& json, const std::string& where) {
  io::ConfigReader reader(json, where);
  const std::string type = reader.string("model_type");
  if (type != "marian" && type != kOwnType) refuse_type(reader, type);
  const Seq2SeqConfig c = type == "marian" ? marian_config(reader) : own_config(reader);
  try {
    return resolved(c);
  } catch (const std::invalid_argument& error) {
    throw FormatError(concat(where, ": ", error.what()));
  }
}

bool is_seq2seq_folder(const std::string& folder) {
  io::check_complete(folder, "config.json");
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
  if (!is_marian(c)) return tensors;
  if (!c.output_bias) tensors[kOutputBias] = Tensor::zeros({1, c.target_vocab_size});
  // For transformers 5, which shares nothing without tie_word_embeddings.
  if (c.share_embeddings && !c.tie_output) tensors[kSource] = tensors[kTarget] = tensors.at(kShared);
  return tensors;
}

void save_seq2seq(Seq2Seq& model, const std::string& folder) {
  io::save_files(folder, io::kModelFiles, [&](io::DirectoryWriter& writer) {
    io::write_contents(writer, {.tensors = {{"model.safetensors", seq2seq_tensors(model)}},
                                .files = {{"config.json", config_to_json(model.config()).dump(2) + "\n"}}});
  });
}

namespace {

void fill(Seq2Seq& model, const io::SafetensorsFile& file, bool fresh) {
  const bool own_names = file.contains("source_embedding.weight");  // as models without output bias once had
  const std::vector<nn::NamedTensor> parameters = nn::named_parameters(model);
  import_weights(parameters, own_names ? identity_map(parameters) : weight_map(model), file,
                 {.extras = extra_tensors(model.config()), .fresh = fresh});
}

}  // namespace

void load_weights(Seq2Seq& model, const std::string& path) { fill(model, io::SafetensorsFile(path), false); }

Seq2Seq load_seq2seq(const std::string& folder) {
  io::check_complete(folder, "config.json");
  const std::string path = config_path(folder);
  const Seq2SeqConfig read = seq2seq_config_from_json(io::load_json(path), path);
  const io::SafetensorsFile file = open_weights(folder, "AutoModelForSeq2SeqLM");
  const Seq2SeqConfig config = settled(read, file);
  check_size(file, matrix_weights(config));
  const nn::UnfilledParameters unfilled;
  Rng rng(0);
  Seq2Seq model(config, rng);
  fill(model, file, true);
  return model;
}

}  // namespace multihead::models
