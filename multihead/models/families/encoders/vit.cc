// ViT: a pre-norm encoder of patches.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::vit {
namespace {

using C = ImageEncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

constexpr const char *kModel = "ViTModel", *kClassifier = "ViTForImageClassification", *kPrefix = "vit.";

bool is_vit(const C& c) { return c.head == EncoderHead::none || !c.pooler; }

ConfigKey<C> architectures() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    const std::vector<std::string> given = r.strings_or(key, {});
    if (given.empty() || given[0] == kModel) return;
    if (given[0] != kClassifier) {
      r.fail(key, concat("is ", quote(given[0], 80), "; supported are ", kModel, " and ", kClassifier));
    }
    c.head = EncoderHead::classification, c.pooler = false;
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = Json(std::vector<Json>{c.head == EncoderHead::none ? kModel : kClassifier});
  };
  return {"architectures", read, write, row_of(&C::head)};
}

ConfigKeys<C> keys() {
  return R::with_nothing(
      {R::field("image_size", &C::image_size, 224), R::field("patch_size", &C::patch_size, 16),
       R::field("num_channels", &C::channels, 3), R::field("num_hidden_layers", &C::num_layers),
       R::field("num_attention_heads", &C::num_heads), R::field("hidden_size", &C::embed_dim),
       R::field("intermediate_size", &C::ffn_dim), R::field("qkv_bias", &C::qkv_bias, true),
       R::field("layer_norm_eps", &C::norm_eps, 1e-12),
       R::field("hidden_act", &C::activation, Activation::gelu),
       R::field("pooler_act", &C::pooler_activation, PoolerActivation::tanh),
       R::alias("pooler_output_size", "hidden_size"), R::field("hidden_dropout_prob", &C::dropout_p, 0.0),
       R::field("attention_probs_dropout_prob", &C::attention_dropout_p, 0.0),
       R::field("initializer_range", &C::init_std, 0.02), architectures(), labels_key<C>(), problem_key<C>()},
      {"encoder_stride"});  // of a head for masked images
}

WeightMap map(const C& c) {
  const std::string root = c.head == EncoderHead::none ? "" : kPrefix, embeddings = root + "embeddings.";
  WeightMap map = {{"class_token", {{embeddings + "cls_token"}}},
                   {"position_embedding", {{embeddings + "position_embeddings"}}},
                   {"patch_weight", {{embeddings + "patch_embeddings.projection.weight"}}},
                   {"patch_bias", {{embeddings + "patch_embeddings.projection.bias"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layer.", i, ".");
    add_projections(
        map, ours + "self_attn",
        {theirs + "attention.attention.", {"query", "key", "value"}, c.embed_dim, c.embed_dim, c.qkv_bias});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "attention.output.dense"},
               {"norm1", "layernorm_before"},
               {"linear1", "intermediate.dense"},
               {"linear2", "output.dense"},
               {"norm2", "layernorm_after"}});
  }
  add_pair(map, "final_norm", root + "layernorm");
  if (c.pooler) add_pair(map, "pooler", "pooler.dense");
  if (c.head != EncoderHead::none) add_pair(map, "classifier", "classifier");
  return map;
}

// The token that masks patches is for pre-training.
std::vector<ExtraTensor> extras(const C&) { return {{"embeddings.mask_token"}}; }

C settle(C c, const io::SafetensorsFile& file) {
  c.pooler = c.pooler && (file.contains("pooler.dense.weight") || file.contains("vit.pooler.dense.weight"));
  return c;
}

}  // namespace

Family<C> vit() {
  return {.name = "vit",
          .architecture = kModel,
          .expresses = is_vit,
          .keys = keys(),
          .map = map,
          .prefix = kPrefix,
          .extras = extras,
          .settle = settle};
}

}  // namespace multihead::models::detail::vit
