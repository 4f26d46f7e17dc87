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
  tensors.emplace(root_of(c, "esm.") + kFrequencies, Tensor::of<double>({std::ssize(w)}, w).to(Dtype::f32));
}

ConfigKeys<C> keys() {
  return R::joined(
      {size_keys<C>(R::field("max_position_embeddings", &C::context, 1026)),
       dropout_keys(1e-12),
       {R::field("rope_theta", &C::rotary_base, 10000),
        {kFrequencies, {}, {}, row_of(&C::rotary_digits)},  // see settle()
        R::field("pad_token_id", &C::pad_id, 0),
        R::field("token_dropout", &C::token_dropout, false),
        {"mask_token_id",
         [](Reader& r, const std::string& key, C& c) {
           c.mask_id = c.token_dropout ? r.integer(key, kSizeOrNone) : r.integer_or(key, 0, kSizeOrNone);
         },
         [](const C& c, const std::string& key, Json& json) { json[key] = c.mask_id; }, row_of(&C::mask_id)},
        R::required("position_embedding_type", "rotary")},
       head_keys("Esm"),
       {R::only("emb_layer_norm_before", false),
        R::only("is_folding_model", false),
        R::only("is_decoder", false),
        R::only("tie_word_embeddings", true),
        {"hidden_act"},  // the layers have GELU, whatever it says
        {"esmfold_config"},
        {"vocab_list"}}});
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, "esm.");
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layer.", i, ".");
    add_projections(map, ours + "self_attn",
                    {theirs + "attention.self.", {"query", "key", "value"}, c.embed_dim, c.embed_dim});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "attention.output.dense"},
               {"norm1", "attention.LayerNorm"},
               {"linear1", "intermediate.dense"},
               {"linear2", "output.dense"},
               {"norm2", "LayerNorm"}});
  }
  add_pair(map, "final_norm", root + "encoder.emb_layer_norm_after");
  if (c.head == EncoderHead::tokens) add_pair(map, "classifier", "classifier");
  add_roberta_heads(map, c, root);
  return map;
}

// The head that predicts contacts reads attention, not features, and is left behind; the table of positions has no
// use beside rotary ones. A file may hold a head that its config does not speak of.
std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = unread({"contact_head.regression.weight", "contact_head.regression.bias",
                                          "embeddings.position_embeddings.weight", "embeddings.position_ids",
                                          "lm_head.decoder.weight", kFrequencies});
  if (c.head != EncoderHead::none) return list;
  for (const char* name : {"bias", "dense.weight", "dense.bias", "layer_norm.weight", "layer_norm.bias"}) {
    list.push_back({std::string("lm_head.") + name});
  }
  return list;
}

C settle(C c, const io::SafetensorsFile& file) {
  for (const std::string& name : file.names()) {
    if (name.ends_with(kFrequencies)) c.rotary_digits = digits_of(c, file, name);
  }
  return settle_pooler(std::move(c), file);
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
