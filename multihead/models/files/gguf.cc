// llama.cpp's names for what Hugging Face's folders hold: the configuration is read through the family's
// config.json, the weights through its map.
#include "multihead/models/files/gguf.h"

#include <map>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/gguf.h"
#include "multihead/models/files/gguf_metadata-inl.h"
#include "multihead/models/files/gguf_weights-inl.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/weight_map.h"
#include "multihead/nn/unfilled-inl.h"

namespace multihead::models {
namespace {

struct Name {
  const char *theirs, *ours;
};
constexpr Name kNames[] = {{"token_embd", "embed_tokens"}, {"output_norm", "norm"}, {"output", "lm_head"}};
constexpr Name kLayerNames[] = {{"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
                                {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
                                {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
                                {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
                                {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                                {"ffn_down", "mlp.down_proj"}};

constexpr Name kGemmaLayerNames[] = {{"post_attention_norm", "post_attention_layernorm"},
                                     {"ffn_norm", "pre_feedforward_layernorm"},
                                     {"post_ffw_norm", "post_feedforward_layernorm"}};

// Hugging Face's name of a tensor -> the file's.
std::map<std::string, std::string> stored_names(const LanguageModelConfig& config,
                                                const GgufArchitecture& architecture) {
  const int64_t layers = config.num_layers;
  const std::string root = config.head ? "model." : "";
  std::map<std::string, std::string> map;
  for (const char* kind : {".weight", ".bias"}) {
    for (const Name& name : kNames) {
      const bool is_head = std::string_view(name.ours) == "lm_head";
      map[concat(is_head ? "" : root, name.ours, kind)] = std::string(name.theirs) + kind;
    }
    for (int64_t i = 0; i < layers; ++i) {
      for (const Name& name : kLayerNames) {
        map[concat(root, "layers.", i, ".", name.ours, kind)] = concat("blk.", i, ".", name.theirs, kind);
      }
      if (!architecture.is_gemma) continue;
      for (const Name& name : kGemmaLayerNames) {
        map[concat(root, "layers.", i, ".", name.ours, kind)] = concat("blk.", i, ".", name.theirs, kind);
      }
    }
  }
  return map;
}

// The heads of a matrix (or bias) whose rows are rotated, by the file's name; 0 for others.
int64_t rotated_heads(const LanguageModelConfig& config, const std::string& name) {
  if (name.find(".attn_q.") != name.npos) return config.num_heads;
  return name.find(".attn_k.") != name.npos ? config.num_kv_heads : 0;
}

const GgufArchitecture& architecture_for(const LanguageModelConfig& config) {
  const std::string& family = family_of(config);
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    const bool same =
        family == architecture.name || (family == "mistral" && architecture.name == std::string("llama"));
    if (!same) continue;
    MH_CHECK(config.causal, ValueError, "GGUF: a model whose tokens see the whole text cannot be written");
    MH_CHECK(config.rotary_scaling == RotaryScaling() && config.rotary_fraction == 1 && config.window == 0 &&
                 config.activation == Activation::silu,
             ValueError,
             "GGUF: scaled or partial rotary positions, windows and activations other than silu cannot be "
             "written");
    MH_CHECK(family != "qwen3" || !config.attention_bias, ValueError,
             "GGUF: a qwen3 with attention_bias cannot be written; llama.cpp reads none with biases");
    return architecture;
  }
  throw ValueError(concat("GGUF: models of the family ", quote(family),
                          " cannot be written; those of llama, mistral, qwen2 and qwen3 can"));
}

// With the file's names.
WeightMap stored_map(LanguageModel& model, const GgufArchitecture& architecture) {
  const std::map<std::string, std::string> names = stored_names(model.config(), architecture);
  WeightMap map = weight_map(model);
  for (WeightRule& rule : map) {
    for (WeightPart& part : rule.parts) {
      if (const auto found = names.find(part.name); found != names.end()) part.name = found->second;
    }
  }
  return map;
}

}  // namespace

bool is_gguf(const std::string& path) { return io::is_gguf_file(path); }

LanguageModel load_gguf(const std::string& path, bool as_f32, std::optional<nn::WeightDtype> packed_as) {
  const io::GgufFile file(path);
  const LanguageModelConfig config = config_from_json(gguf_config(file), path);
  const bool as_stored = !as_f32 && detail::is_packed(file);
  detail::check_gguf_size(file, matrix_weights(config), as_stored);
  const nn::UnfilledParameters unfilled;
  Rng rng(0);
  LanguageModel model(config, rng);
  const GgufArchitecture& architecture = gguf_architecture(file);
  detail::GgufLayout layout{.head_dim = config.head_dim, .adds_one = architecture.is_gemma};
  if (architecture.interleaved) {
    layout.paired_heads = [&](const std::string& name) { return rotated_heads(config, name); };
  }
  if (architecture.is_gemma) layout.others = {"dense_2.weight", "dense_3.weight"};  // read by embedders
  detail::GgufWeights(file, stored_map(model, architecture), layout).fill(model, as_stored, packed_as);
  return model;
}

void save_gguf(LanguageModel& model, const std::string& path, std::string_view type_name,
               const io::GgufMetadata& vocabulary) {
  const LanguageModelConfig& c = model.config();
  check_plain_attention(c, "save_gguf");
  MH_CHECK(!model.packed_dtype(), ValueError, "save_gguf: the model's weights are packed in ",
           kernels::name(model.weight_dtype()), ", expected f32");
  const GgufArchitecture& architecture = architecture_for(c);
  const BlockFormat &f32 = io::writable_gguf_type("F32"), &type = io::writable_gguf_type(type_name);
  // As in llama.cpp's own files the output layer, whose errors reach the logits directly, keeps eight bits.
  const BlockFormat& outer = type.bits() < 8 ? io::writable_gguf_type("Q8_0") : type;
  const std::string prefix = std::string(architecture.name) + ".";
  io::GgufContents contents;
  contents.metadata = {{"general.architecture", architecture.name},
                       {"general.file_type", type.file_type},
                       {"general.quantization_version", 2},
                       {prefix + "block_count", c.num_layers},
                       {prefix + "context_length", c.context},
                       {prefix + "embedding_length", c.embed_dim},
                       {prefix + "feed_forward_length", c.ffn_dim},
                       {prefix + "attention.head_count", c.num_heads},
                       {prefix + "attention.head_count_kv", c.num_kv_heads},
                       {prefix + "attention.key_length", c.head_dim},
                       {prefix + "attention.value_length", c.head_dim},
                       {prefix + "attention.layer_norm_rms_epsilon", c.norm_eps},
                       {prefix + "rope.dimension_count", c.head_dim},
                       {prefix + "rope.freq_base", c.rotary_base},
                       {prefix + "vocab_size", c.vocab_size}};
  contents.metadata.insert(contents.metadata.end(), vocabulary.begin(), vocabulary.end());
  const WeightMap map = stored_map(model, architecture);
  for (const auto& [name, view] : stored_views(nn::named_parameters(model), map)) {
    Tensor tensor = view.to(Dtype::f32).contiguous();
    const int64_t heads = architecture.interleaved ? rotated_heads(c, name) : 0;
    if (heads > 0) tensor = detail::exchanged(tensor, heads, 2);
    const bool in_layer = name.starts_with("blk.");
    contents.tensors.push_back({name, tensor, tensor.rank() == 1 ? &f32 : in_layer ? &type : &outer});
  }
  io::write_gguf(path, contents);
}

}  // namespace multihead::models
