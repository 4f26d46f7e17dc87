// llama.cpp's names for what Hugging Face's folders hold: the configuration is read through the family's
// config.json, the weights through its map.
#include "multihead/models/files/gguf.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/gguf.h"
#include "multihead/models/files/finite_weights-inl.h"
#include "multihead/models/files/gguf_encoder-inl.h"
#include "multihead/models/files/gguf_metadata-inl.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/packed_weights-inl.h"
#include "multihead/models/weight_map.h"
#include "multihead/nn/unfilled-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

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

// Between our halves and their pairs: [heads, outer, inner, columns] -> [heads, inner, outer, columns].
Tensor exchanged(const Tensor& rows, int64_t heads, int64_t outer) {
  const int64_t inner = rows.size(0) / heads / outer, columns = rows.rank() > 1 ? rows.size(1) : 1;
  const Shape strides = {outer * inner * columns, columns, inner * columns, 1};
  return reshape(rows.as_strided({heads, inner, outer, columns}, strides), rows.shape());
}

// The heads of a matrix (or bias) whose rows are rotated; 0 for others.
int64_t rotated_heads(const LanguageModelConfig& config, const std::string& name) {
  if (name.find(".q_proj.") != name.npos) return config.num_heads;
  return name.find(".k_proj.") != name.npos ? config.num_kv_heads : 0;
}

const GgufArchitecture& architecture_for(const LanguageModelConfig& config) {
  const std::string& family = family_of(config);
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    const bool same =
        family == architecture.name || (family == "mistral" && architecture.name == std::string("llama"));
    if (!same) continue;
    MH_CHECK(config.rotary_scaling == RotaryScaling() && config.rotary_fraction == 1 && config.window == 0 &&
                 config.activation == Activation::silu,
             ValueError,
             "GGUF: scaled or partial rotary positions, windows and activations other than silu cannot be "
             "written");
    return architecture;
  }
  throw ValueError(concat("GGUF: models of the family ", quote(family),
                          " cannot be written; those of llama, mistral, qwen2 and qwen3 can"));
}

// Where the head's row `row` of ours lies in the file.
int64_t stored_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim * head_dim, place = row % head_dim, half = head_dim / 2;
  return head + place % half * 2 + place / half;
}

// Loads the matrices of a model; `rules` says which of the file's make one of ours.
class MatrixLoader {
 public:
  MatrixLoader(const io::GgufFile& file, const LanguageModelConfig& config,
               const GgufArchitecture& architecture)
      : file_(file),
        config_(config),
        interleaved_(architecture.interleaved),
        names_(stored_names(config, architecture)),
        adds_one_(architecture.is_gemma) {}

  Tensor load(const std::string& name) const {
    Tensor stored = file_.load(stored_name(name));
    detail::check_finite(file_.path(), stored_name(name), stored);
    const int64_t heads = interleaved_ ? rotated_heads(config_, name) : 0;
    if (adds_one_ && name.ends_with("norm.weight")) return sub(stored, Tensor::ones({1}));
    return heads > 0 ? exchanged(stored, heads, config_.head_dim / 2) : stored;
  }

  nn::WeightDtype dtype_of(const WeightRule& rule) const {
    const BlockFormat* type = type_of(rule);
    return (type != nullptr ? kernels::packed_dtype_of(*type) : std::nullopt).value_or(nn::WeightDtype::q8);
  }

  nn::PackedLinear pack(const WeightRule& rule, nn::WeightDtype dtype) const {
    std::vector<Tensor> parts;
    for (const WeightPart& part : rule.parts) parts.push_back(load(part.name));
    return {parts.size() == 1 ? parts[0] : multihead::concat(parts, 0), dtype};
  }

  // Blocks that a packed format takes over stay as they are; other types, and mixed ones, are quantised again,
  // to q8.
  nn::PackedLinear pack_stored(const WeightRule& rule, const Tensor& shape_of) const {
    const int64_t out = shape_of.size(0), in = shape_of.size(1);
    const BlockFormat* type = type_of(rule);
    if (type == nullptr || !kernels::packed_dtype_of(*type)) return pack(rule, nn::WeightDtype::q8);
    const auto read = [&](int64_t begin, int64_t count, uint8_t* to) { read_rows(rule, begin, count, to); };
    nn::PackedLinear packed({read, *type}, out, in);
    detail::check_finite(file_.path(), stored_name(rule.parts[0].name), packed);
    return packed;
  }

 private:
  const std::string& stored_name(const std::string& name) const { return names_.at(name); }

  // The type of all parts; null if they differ.
  const BlockFormat* type_of(const WeightRule& rule) const {
    const auto own = [&](const WeightPart& part) { return file_.tensors().at(stored_name(part.name)).type; };
    const BlockFormat* type = own(rule.parts[0]);
    const bool alike = std::all_of(rule.parts.begin(), rule.parts.end(),
                                   [&](const WeightPart& part) { return own(part) == type; });
    return alike ? type : nullptr;
  }

  // Rows [begin, begin + count) of the parts one below the other.
  void read_rows(const WeightRule& rule, int64_t begin, int64_t count, uint8_t* to) const {
    for (const WeightPart& part : rule.parts) {
      const std::string& stored = stored_name(part.name);
      const int64_t rows = file_.tensors().at(stored).shape[0],
                    own = std::clamp(rows - begin, int64_t{0}, count);
      if (own > 0) {
        const bool reorders = interleaved_ && rotated_heads(config_, part.name) > 0;
        reorders ? read_interleaved(stored, begin, own, to) : file_.load_rows(stored, begin, own, to);
        to += own * file_.row_bytes(stored);
      }
      count -= own, begin = std::max(begin - rows, int64_t{0});
    }
  }

  // Out of the whole heads that they belong to.
  void read_interleaved(const std::string& stored, int64_t begin, int64_t count, uint8_t* to) const {
    const int64_t head = config_.head_dim, bytes = file_.row_bytes(stored), first = begin / head * head,
                  last = (begin + count + head - 1) / head * head;
    const auto rows = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>((last - first) * bytes));
    file_.load_rows(stored, first, last - first, rows.get());
    for (int64_t row = begin; row < begin + count; ++row) {
      to = std::copy_n(rows.get() + (stored_row(row, head) - first) * bytes, bytes, to);
    }
  }

  const io::GgufFile& file_;
  const LanguageModelConfig& config_;
  bool interleaved_;
  std::map<std::string, std::string> names_;
  bool adds_one_;
};

bool is_half(const BlockFormat& type) { return kernels::packed_dtype_of(type) == nn::WeightDtype::f16; }

// Whether the matrices are used without conversion and take less memory than f32: some are quantised, or all
// are f16.
bool is_packed(const io::GgufFile& file) {
  bool quantised = false, halves = true;
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.type == nullptr || tensor.shape.size() != 2) continue;
    quantised |= tensor.type->block > 1;
    halves &= is_half(*tensor.type);
  }
  return quantised || halves;
}

// Packs as `as`, or as stored, without memory for the matrices in f32.
void pack(LanguageModel& model, const MatrixLoader& loader, const WeightMap& map,
          std::optional<nn::WeightDtype> as) {
  const auto rule_of = [&](const std::string& name) -> const WeightRule& {
    return *std::find_if(map.begin(), map.end(),
                         [&](const WeightRule& rule) { return rule.parameter == name; });
  };
  const nn::WeightDtype dtype = as.value_or(loader.dtype_of(rule_of("layers.0.linear2.weight")));
  model.pack_weights(dtype, [&](const std::string& name, const Tensor& weight) {
    const WeightRule& rule = rule_of(name);
    return as ? loader.pack(rule, detail::dtype_of(name, dtype)) : loader.pack_stored(rule, weight);
  });
}

}  // namespace

bool is_gguf(const std::string& path) { return io::is_gguf_file(path); }

LanguageModel load_gguf(const std::string& path, bool as_f32, std::optional<nn::WeightDtype> packed_as) {
  const io::GgufFile file(path);
  const LanguageModelConfig config = config_from_json(gguf_config(file), path);
  const bool as_stored = !as_f32 && is_packed(file), packed = as_stored || packed_as;
  int64_t numbers = 0;
  double bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.type == nullptr) continue;
    numbers += tensor.numel();
    bytes += static_cast<double>(tensor.numel()) * (!as_stored ? 4 : is_half(*tensor.type) ? 2.25 : 1.25);
  }
  MH_CHECK(matrix_weights(config) <= numbers, FormatError, path, ": the metadata needs at least ",
           matrix_weights(config), " weights, but the file has ", numbers);
  check_memory(bytes, path + ": loading its weights");
  const nn::UnfilledParameters unfilled;
  Rng rng(0);
  LanguageModel model(config, rng);
  const GgufArchitecture& architecture = gguf_architecture(file);
  const MatrixLoader loader(file, config, architecture);
  const WeightMap map = weight_map(model);
  // Held until all is packed: if untouched f32 weights were released one by one, what is decoded next would
  // touch them.
  auto views = stored_views(nn::named_parameters(model), map);
  const std::map<std::string, std::string> all = stored_names(config, architecture);
  std::vector<std::pair<std::string, Tensor>> stored;
  for (const auto& [name, view] : views) stored.emplace_back(all.at(name), view);
  std::set<std::string> after_pooling;  // read by embedders
  if (architecture.is_gemma) after_pooling = {"dense_2.weight", "dense_3.weight"};
  detail::check_gguf_fit(file, stored, after_pooling);
  if (packed) pack(model, loader, map, as_stored ? std::nullopt : packed_as);
  views = stored_views(nn::named_parameters(model), map);
  for (const auto& [name, view] : views) {
    view.copy_from(loader.load(name));
  }
  return model;
}

void save_gguf(LanguageModel& model, const std::string& path, std::string_view type_name,
               const io::GgufMetadata& vocabulary) {
  const LanguageModelConfig& c = model.config();
  check_plain_attention(c, "save_gguf");
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
  const std::map<std::string, std::string> all = stored_names(c, architecture);
  for (const auto& [name, view] : stored_views(nn::named_parameters(model), weight_map(model))) {
    Tensor tensor = view.to(Dtype::f32).contiguous();
    const int64_t heads = architecture.interleaved ? rotated_heads(c, name) : 0;
    if (heads > 0) tensor = exchanged(tensor, heads, 2);
    const bool in_layer = name.find(".layers.") != name.npos;
    contents.tensors.push_back({all.at(name), tensor, tensor.rank() == 1 ? &f32 : in_layer ? &type : &outer});
  }
  io::write_gguf(path, contents);
}

}  // namespace multihead::models
