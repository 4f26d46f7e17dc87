// llama.cpp's names for the weights and sizes of encoders, whose output layers it leaves out.
#include <algorithm>
#include <string_view>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/models/families/family-inl.h"
#include "multihead/models/files/gguf_encoder-inl.h"
#include "multihead/models/files/gguf_weights-inl.h"
#include "multihead/models/weight_map.h"
#include "multihead/nn/unfilled-inl.h"
#include "multihead/ops/shape.h"

namespace multihead::models::detail {
namespace {

using C = EncoderConfig;

// Keys that are followed below or by those who load the file, and those that say what the tensors say as
// well: of all architectures, and of one.
constexpr std::string_view kKeys[] = {"context_length",
                                      "embedding_length",
                                      "block_count",
                                      "feed_forward_length",
                                      "vocab_size",
                                      "pooling_type",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.value_length",
                                      "attention.layer_norm_epsilon",
                                      "attention.causal",
                                      "rope.scaling.type"};
constexpr std::pair<std::string_view, std::string_view> kOwnKeys[] = {
    {"nomic-bert", "rope.freq_base"},
    {"nomic-bert", "rope.dimension_count"},
    {"nomic-bert-moe", "rope.freq_base"},
    {"nomic-bert-moe", "rope.dimension_count"},
    {"nomic-bert-moe", "expert_count"},
    {"nomic-bert-moe", "expert_used_count"},
    {"nomic-bert-moe", "moe_every_n_layers"},
    {"modern-bert", "hidden_activation"},
    {"modern-bert", "classifier.pooling_type"},
    {"modern-bert", "attention.layer_norm_rms_epsilon"},
    {"modern-bert", "attention.sliding_window"},
    {"modern-bert", "attention.sliding_window_pattern"},
    {"modern-bert", "rope.freq_base"},
    {"modern-bert", "rope.freq_base_swa"},
    {"modern-bert", "rope.dimension_count"},
    {"t5encoder", "attention.layer_norm_rms_epsilon"},
    {"t5encoder", "attention.relative_buckets_count"}};

class Metadata {
 public:
  Metadata(const io::GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)), prefix_(architecture_ + ".") {}

  const io::GgufFile& file() const { return file_; }
  bool has(const char* name) const { return file_.has(prefix_ + name); }
  int64_t integer(const char* name) const { return file_.integer(prefix_ + name); }
  int64_t integer_or(const char* name, int64_t missing) const { return has(name) ? integer(name) : missing; }
  // An f32 as the short decimal it was made of.
  double number_or(const char* name, double missing) const {
    return has(name) ? Json(static_cast<float>(file_.number(prefix_ + name))).as_double() : missing;
  }
  bool has_tensor(const std::string& name) const { return file_.tensors().contains(name); }
  // Along the first axis of a tensor of so many axes; 0: there is none.
  int64_t rows_of(const std::string& tensor, size_t rank = 2) const {
    const auto found = file_.tensors().find(tensor);
    return found == file_.tensors().end() || found->second.shape.size() != rank ? 0 : found->second.shape[0];
  }
  template <class... Parts>
  [[noreturn]] void fail(const char* name, const Parts&... problem) const {
    throw FormatError(concat(file_.path(), ": ", prefix_, name, problem...));
  }

  void check_keys() const {
    for (const std::string& key : file_.keys()) {
      if (!key.starts_with(prefix_)) continue;
      const std::string name = key.substr(prefix_.size());
      const std::pair<std::string_view, std::string_view> own = {architecture_, name};
      if (std::ranges::count(kKeys, name) + std::ranges::count(kOwnKeys, own) == 0) {
        fail(name.c_str(), " is not supported: what it means is unknown here, and it may change the model");
      }
    }
    if (has("attention.causal") && file_.boolean(prefix_ + "attention.causal")) {
      fail("attention.causal", " is not supported: expected false");
    }
    if (has("rope.scaling.type") && file_.string(prefix_ + "rope.scaling.type") != "none") {
      fail("rope.scaling.type", " is not supported: expected none");
    }
    const int64_t heads = integer("attention.head_count");
    if (integer_or("attention.head_count_kv", heads) != heads) {
      fail("attention.head_count_kv", " must be ", heads, ", the number of heads");
    }
  }

  // What other keys say as well.
  void check_sizes(const C& c) const {
    const int64_t head = head_dim(c);
    for (const char* name : {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
      if (integer_or(name, head) != head)
        fail(name, " ", integer(name), " is not supported: expected ", head, ", the size of a head");
    }
  }

 private:
  const io::GgufFile& file_;
  std::string architecture_, prefix_;
};

// The fields that all kinds have.
C common(const Metadata& m) {
  C c;
  c.vocab_size = m.rows_of("token_embd.weight");
  if (c.vocab_size == 0) throw FormatError(m.file().path() + ": the matrix token_embd.weight is missing");
  c.context = m.integer("context_length");
  c.embed_dim = m.integer("embedding_length");
  c.num_layers = m.integer("block_count");
  c.num_heads = m.integer("attention.head_count");
  c.ffn_dim = m.integer("feed_forward_length");
  c.norm_eps = m.number_or("attention.layer_norm_epsilon", 1e-12);
  c.token_types = m.rows_of("token_types.weight");
  c.pooler = false;
  return c;
}

C bert(const Metadata& m) {
  C c = common(m);
  c.context =
      std::min(c.context, m.rows_of("position_embd.weight"));  // XLM-R's without the rows before the first
  return c;
}

C nomic_bert(const Metadata& m) {
  C c = common(m);
  c.rotary_base = m.number_or("rope.freq_base", 10000);
  c.gated = true;
  c.layer_bias = false;
  c.activation = Activation::silu;
  return c;
}

C nomic_bert_moe(const Metadata& m) {
  C c = common(m);
  c.rotary_base = m.number_or("rope.freq_base", 10000);
  c.experts = m.rows_of("blk.1.ffn_up_exps.weight", 3);
  c.experts_used = m.integer("expert_used_count");
  c.experts_every = m.integer("moe_every_n_layers");
  if (c.experts == 0) m.fail("moe_every_n_layers", ": blk.1.ffn_up_exps.weight is missing");
  if (m.integer_or("expert_count", c.experts) != c.experts) {
    m.fail("expert_count", " must be ", c.experts, ", that of blk.1.ffn_up_exps.weight");
  }
  return c;
}

C jina_bert(const Metadata& m) {
  C c = common(m);
  c.alibi = c.gated = true;
  c.ffn_in_bias = false;
  return c;
}

C modern_bert(const Metadata& m) {
  C c = common(m);
  c.norm_eps =
      m.number_or("attention.layer_norm_epsilon", m.number_or("attention.layer_norm_rms_epsilon", 1e-5));
  c.rotary_base = m.number_or("rope.freq_base", 160000);
  c.local_rotary_base = m.number_or("rope.freq_base_swa", 10000);
  c.window = m.integer_or("attention.sliding_window", 0) / 2;
  c.global_every = m.integer_or("attention.sliding_window_pattern", 3);
  c.gated = c.norm_first = true;
  c.bias = false;
  if (m.has("hidden_activation")) {
    const std::string word = m.file().string("modern-bert.hidden_activation");
    if (word != "gelu" && word != "silu") m.fail("hidden_activation", " is not supported: ", quote(word, 80));
    c.activation = word == "silu" ? Activation::silu : Activation::gelu;
  }
  return c;
}

C t5_encoder(const Metadata& m) {
  C c = common(m);
  c.head_dim = m.integer("attention.key_length");
  c.norm_eps = m.number_or("attention.layer_norm_rms_epsilon", 1e-6);
  c.relative_buckets = m.integer("attention.relative_buckets_count");
  c.learned_positions = c.embedding_norm = c.bias = c.scale_scores = false;
  c.norm = nn::NormKind::rms;
  c.norm_first = true;
  c.gated = m.has_tensor("enc.blk.0.ffn_gate.weight");
  c.activation = c.gated ? Activation::gelu_tanh : Activation::relu;
  return c;
}

// Stored [experts, ffn_dim, embed_dim] and [experts, embed_dim, ffn_dim].
constexpr const char *kExpertsIn = "ffn_up_exps.weight", *kExpertsOut = "ffn_down_exps.weight";

Tensor in_stored_shape(const C& c, const std::string& name, const Tensor& view) {
  const bool is_out = name.ends_with(kExpertsOut);
  if (!is_out && !name.ends_with(kExpertsIn)) return view;
  const Tensor each = reshape(view, {c.experts, c.ffn_dim, c.embed_dim});
  return is_out ? transpose(each, 1, 2) : each;
}

void add_layer(WeightMap& map, const Metadata& m, const C& c, int64_t layer, const std::string& root) {
  const std::string ours = concat("layers.", layer, "."), theirs = concat(root, "blk.", layer, ".");
  const bool is_joint = m.has_tensor(theirs + "attn_qkv.weight"), has_bias = c.bias && c.layer_bias;
  const int64_t rows = c.num_heads * head_dim(c);
  if (is_joint) {
    map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "attn_qkv.weight"}}});
    if (has_bias) map.push_back({ours + "self_attn.in_proj_bias", {{theirs + "attn_qkv.bias"}}});
  } else {
    add_projections(map, ours + "self_attn", {theirs, {"attn_q", "attn_k", "attn_v"}, rows, rows, has_bias});
  }
  add_pair(map, ours + "self_attn.out_proj", theirs + (root.empty() ? "attn_output" : "attn_o"), has_bias);
  if (c.experts > 0 && layer % c.experts_every == 1) {
    map.push_back({ours + "experts.router.weight", {{theirs + "ffn_gate_inp.weight"}}});
    map.push_back({ours + "experts.in", {{theirs + kExpertsIn}}});
    map.push_back({ours + "experts.out", {{theirs + kExpertsOut}}});
  } else if (c.gated && m.has_tensor(theirs + "ffn_gate.weight")) {
    map.push_back({ours + "linear1.weight",
                   {{theirs + "ffn_gate.weight", c.ffn_dim}, {theirs + "ffn_up.weight", c.ffn_dim}}});
    add_pair(map, ours + "linear2", theirs + "ffn_down", has_bias);
  } else {
    add_pair(map, ours + "linear1", theirs + "ffn_up", has_bias && c.ffn_in_bias);
    add_pair(map, ours + "linear2", theirs + "ffn_down", has_bias);
  }
  if (c.norm_first) {
    if (layer > 0 || !c.embedding_norm) add_pair(map, ours + "norm1", theirs + "attn_norm", c.bias);
    add_pair(map, ours + "norm2", theirs + "ffn_norm", c.bias);
  } else {
    add_pair(map, ours + "norm1", theirs + "attn_output_norm");
    add_pair(map, ours + "norm2", theirs + "layer_output_norm");
  }
}

WeightMap map_of_gguf(const Metadata& m, const C& c) {
  const std::string root = c.relative_buckets > 0 ? "enc." : "";
  WeightMap map = {{"token_embedding.weight", {{"token_embd.weight"}}}};
  if (c.learned_positions && c.rotary_base == 0) {
    map.push_back({"position_embedding.weight", {{"position_embd.weight"}}});
  }
  if (c.token_types > 0) map.push_back({"type_embedding.weight", {{"token_types.weight"}}});
  if (c.embedding_norm) add_pair(map, "embedding_norm", "token_embd_norm", c.bias);
  for (int64_t i = 0; i < c.num_layers; ++i) add_layer(map, m, c, i, root);
  if (c.relative_buckets > 0) add_pair(map, "relative_bias", "enc.blk.0.attn_rel_b", false);
  if (c.norm_first) add_pair(map, "final_norm", root + "output_norm", c.bias);
  return map;
}

struct GgufEncoder {
  const char* name;
  C (*config)(const Metadata&);
};
constexpr GgufEncoder kEncoders[] = {{"bert", bert},
                                     {"nomic-bert", nomic_bert},
                                     {"nomic-bert-moe", nomic_bert_moe},
                                     {"jina-bert-v2", jina_bert},
                                     {"modern-bert", modern_bert},
                                     {"t5encoder", t5_encoder}};

const GgufEncoder* encoder_of(const io::GgufFile& file) {
  const std::string name = file.string("general.architecture");
  const auto found =
      std::ranges::find_if(kEncoders, [&](const GgufEncoder& one) { return one.name == name; });
  return found == std::end(kEncoders) ? nullptr : found;
}

}  // namespace

bool is_gguf_encoder(const std::string& path) { return encoder_of(io::GgufFile(path)) != nullptr; }

Encoder load_gguf_encoder(const std::string& path, bool as_f32, std::optional<nn::WeightDtype> packed_as) {
  const io::GgufFile file(path);
  const GgufEncoder& kind = *encoder_of(file);
  const Metadata metadata(file, kind.name);
  metadata.check_keys();
  const C config = resolved(kind.config(metadata));
  metadata.check_sizes(config);
  const bool as_stored = !as_f32 && is_packed(file);
  check_gguf_size(file, matrix_weights(config), as_stored);
  const nn::UnfilledParameters unfilled;
  Rng rng(0);
  Encoder model(config, rng);
  for (nn::TransformerLayer& layer : model.layers) {
    if (layer.experts.defined()) layer.experts.bias.fill(0);  // which files leave out
  }
  GgufLayout layout;
  layout.view = [&](const std::string& name, const Tensor& view) {
    return in_stored_shape(config, name, view);
  };
  GgufWeights(file, map_of_gguf(metadata, config), layout).fill(model, as_stored, packed_as);
  return model;
}

}  // namespace multihead::models::detail
