// ESM-2 (Lin et al. 2023), an encoder of protein sequences: RoBERTa with rotary positions and norms first, whose masked
// tokens are dropped rather than embedded.
#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::esm {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_esm(const C& c) {
  return c.rotary_base > 0 && c.rotary_factor == 1 && c.norm_first && !c.embedding_norm && !c.gated &&
         c.bias && c.word_dim == c.embed_dim && c.token_types == 0 && c.activation == Activation::gelu &&
         c.head_activation == Activation::gelu && c.pooler_activation == PoolerActivation::tanh;
}

// Which files say, and the code means, one way only.
ConfigKey<C> positions() {
  const auto read = [](Reader& r, const std::string& key, C&) {
    if (r.string(key) != "rotary") r.fail(key, "must be \"rotary\", as in ESM-2");
  };
  return {"position_embedding_type", read,
          [](const C&, const std::string& key, Json& json) { json[key] = "rotary"; }};
}

// Files hold the frequencies of rotary positions, rounded to 16 bits where they were so in training.
constexpr const char* kFrequencies = "rotary_embeddings.inv_freq";

int64_t digits_of(const C& c, const io::SafetensorsFile& file, const std::string& name) {
  const std::vector<double> got = file.load(name).to_vector<double>(),
                            exact = rotary_frequencies(head_dim(c), c.rotary_base);
  for (const int64_t digits : {0, 11, 8}) {  // f32, f16, bf16
    const auto fits = [&](double w, double v) {
      return std::abs(w - rounded_to(digits, v)) <= (digits == 0 ? 1e-6 : 1e-9) * v;
    };
    if (got.size() == exact.size() && std::equal(got.begin(), got.end(), exact.begin(), fits)) return digits;
  }
  throw FormatError(concat(file.path(), ": ", name, " does not match rope_theta in f32, f16 or bf16"));
}

void add_frequencies(const C& c, io::TensorMap& tensors) {
  if (c.rotary_digits == 0) return;
  std::vector<double> w = rotary_frequencies(head_dim(c), c.rotary_base);
  for (double& x : w) x = rounded_to(c.rotary_digits, x);
  const std::string root = c.head == EncoderHead::none ? "" : "esm.";
  tensors.emplace(root + kFrequencies, Tensor::of<double>({std::ssize(w)}, w).to(Dtype::f32));
}

ConfigKeys<C> keys() {
  return {
      R::field("vocab_size", &C::vocab_size),
      R::field("max_position_embeddings", &C::context, 1026),
      R::field("hidden_size", &C::embed_dim),
      R::field("intermediate_size", &C::ffn_dim),
      R::field("num_hidden_layers", &C::num_layers),
      R::field("num_attention_heads", &C::num_heads),
      R::field("layer_norm_eps", &C::norm_eps, 1e-12),
      R::field("hidden_dropout_prob", &C::dropout_p, 0.1),
      R::field("attention_probs_dropout_prob", &C::attention_dropout_p, 0.1),
      R::field("initializer_range", &C::init_std, 0.02),
      R::field("rope_theta", &C::rotary_base, 10000),
      {kFrequencies, {}, {}, row_of(&C::rotary_digits)},  // see settle()
      R::field("pad_token_id", &C::pad_id, 0),
      R::field("token_dropout", &C::token_dropout, false),
      {"mask_token_id",
       [](Reader& r, const std::string& key, C& c) {
         c.mask_id = c.token_dropout ? r.integer(key, kSizeOrNone) : r.integer_or(key, 0, kSizeOrNone);
       },
       [](const C& c, const std::string& key, Json& json) { json[key] = c.mask_id; }, row_of(&C::mask_id)},
      positions(),
      head_key("Esm"),
      labels_key<C>(),
      problem_key<C>(),
      R::only("emb_layer_norm_before", false),
      R::only("is_folding_model", false),
      R::only("is_decoder", false),
      R::only("tie_word_embeddings", true),
      {"hidden_act"},  // the layers have GELU, whatever it says
      {"esmfold_config"},
      {"vocab_list"}};
}

WeightMap map(const C& c) {
  const std::string root = c.head == EncoderHead::none ? "" : "esm.";
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layer.", i, "."),
                      self = theirs + "attention.self.";
    add_projections(map, ours + "self_attn",
                    {{self + "query", self + "key", self + "value"}, c.embed_dim, c.embed_dim});
    add_pair(map, ours + "self_attn.out_proj", theirs + "attention.output.dense");
    add_pair(map, ours + "norm1", theirs + "attention.LayerNorm");
    add_pair(map, ours + "linear1", theirs + "intermediate.dense");
    add_pair(map, ours + "linear2", theirs + "output.dense");
    add_pair(map, ours + "norm2", theirs + "LayerNorm");
  }
  add_pair(map, "final_norm", root + "encoder.emb_layer_norm_after");
  const bool classifies = c.head == EncoderHead::classification;
  if (c.pooler) add_pair(map, "pooler", classifies ? "classifier.dense" : root + "pooler.dense");
  if (classifies) add_pair(map, "classifier", "classifier.out_proj");
  if (c.head == EncoderHead::tokens) add_pair(map, "classifier", "classifier");
  if (c.head == EncoderHead::masked_lm) {
    add_pair(map, "head_dense", "lm_head.dense");
    add_pair(map, "head_norm", "lm_head.layer_norm");
    map.push_back({"head_bias", {{"lm_head.bias"}}});
  }
  return map;
}

// The head that predicts contacts reads attention, not features, and is left behind; the table of positions has no
// use beside rotary ones. A file may hold a head that its config does not speak of.
std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {{"contact_head.regression.weight"},
                                   {"contact_head.regression.bias"},
                                   {"embeddings.position_embeddings.weight"},
                                   {"embeddings.position_ids"},
                                   {"lm_head.decoder.weight"}};
  list.push_back({kFrequencies});
  if (c.head != EncoderHead::none) return list;
  for (const char* name : {"bias", "dense.weight", "dense.bias", "layer_norm.weight", "layer_norm.bias"}) {
    list.push_back({std::string("lm_head.") + name});
  }
  return list;
}

C settle(C c, const io::SafetensorsFile& file) {
  const std::vector<std::string> names = file.names();
  for (const std::string& name : names) {
    if (name.ends_with(kFrequencies)) c.rotary_digits = digits_of(c, file, name);
  }
  c.pooler = c.head == EncoderHead::classification ||
             std::any_of(names.begin(), names.end(),
                         [](const std::string& name) { return name.ends_with("pooler.dense.weight"); });
  return c;
}

}  // namespace

Family<C> esm() {
  Family<C> family = {.name = "esm",
                      .architecture = "EsmModel",
                      .expresses = is_esm,
                      .keys = keys(),
                      .map = map,
                      .prefix = "esm.",
                      .extras = extras,
                      .complete = add_frequencies,
                      .settle = settle};
  C& c = family.defaults;
  c.token_types = 0;
  c.embedding_norm = false;
  c.norm_first = true;
  return family;
}

}  // namespace multihead::models::detail::esm
