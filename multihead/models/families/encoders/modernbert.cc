// ModernBERT (Warner et al. 2024): rotary positions, layers with a window between those that see all, gated
// feed-forward layers, norms first, no biases.
#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::modernbert {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_modernbert(const C& c) {
  return c.rotary_base > 0 && c.window > 0 && c.global_every > 0 && c.norm_first && c.gated && !c.bias &&
         c.word_dim == c.embed_dim && c.token_types == 0 && c.position_offset == 0 && !c.pooler &&
         c.dropout_p == 0 && c.attention_dropout_p == 0;
}

std::vector<std::string> layer_kinds(const C& c) {
  std::vector<std::string> kinds;
  for (int64_t i = 0; i < c.num_layers; ++i)
    kinds.emplace_back(i % c.global_every == 0 ? "full_attention" : "sliding_attention");
  return kinds;
}

// "layer_types" in full, or "global_attn_every_n_layers", or neither.
ConfigKey<C> kinds_key() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    c.global_every = r.integer_or(key, 3, kSize);
    const std::vector<std::string> given = r.strings_or("layer_types", {});
    if (given.empty()) return;
    const auto second = std::find(std::next(given.begin()), given.end(), "full_attention");
    c.global_every = second - given.begin();
    if (given != layer_kinds(c))
      r.fail("layer_types",
             "must have full_attention at a regular interval from the first layer on, the others sliding");
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.global_every;
    json["layer_types"] = Json::array();
    for (const std::string& kind : layer_kinds(c)) json["layer_types"].push_back(kind);
  };
  return {"global_attn_every_n_layers", read, write, row_of(&C::global_every)};
}

// transformers 5 keeps an object for each kind of layer, 4 two numbers.
ConfigKey<C> rotary_bases() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    c.rotary_base = r.number_or("global_rope_theta", 160000, kPositive);
    c.local_rotary_base = r.number_or("local_rope_theta", 10000, kPositive);
    std::optional<Reader> kinds = r.optional_child(key);
    if (!kinds) return;
    const auto read_kind = [&](const char* kind, double& base) {
      std::optional<Reader> rope = kinds->optional_child(kind);
      if (!rope) return;
      base = rope->number_or("rope_theta", base, kPositive);
      if (read_rotary_scaling(*rope, c.context) != RotaryScaling{})
        r.fail(key, "scales positions, which is not supported");
    };
    read_kind("full_attention", c.rotary_base);
    read_kind("sliding_attention", c.local_rotary_base);
    kinds->refuse_unknown();
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    const auto rope = [](double base) {
      return Json::object({{"rope_type", "default"}, {"rope_theta", base}});
    };
    json["global_rope_theta"] = c.rotary_base;
    json["local_rope_theta"] = c.local_rotary_base;
    json[key] = Json::object(
        {{"full_attention", rope(c.rotary_base)}, {"sliding_attention", rope(c.local_rotary_base)}});
  };
  return {"rope_parameters", read, write, row_of(&C::rotary_base)};
}

ConfigKeys<C> keys() {
  ConfigKeys<C> all = R::joined(
      {size_keys<C>(),
       {R::field("hidden_activation", &C::activation, Activation::gelu),
        R::field("classifier_activation", &C::head_activation, Activation::gelu),
        R::field("norm_eps", &C::norm_eps, 1e-5),
        R::field("initializer_range", &C::init_std, 0.02),
        R::field("pad_token_id", &C::pad_id, 50283),
        kinds_key(),
        rotary_bases(),
        {"local_rope_theta", {}, {}, row_of(&C::local_rotary_base)},
        // The file counts both sides of the window.
        {"local_attention",
         [](Reader& r, const std::string& key, C& c) {
           c.window = r.integer_or(key, 128, {.min = 2, .max = kSize.max}) / 2;
         },
         [](const C& c, const std::string& key, Json& json) { json[key] = 2 * c.window; },
         row_of(&C::window)}},
       head_keys("ModernBert"),
       {{"classifier_pooling",
         [](Reader& r, const std::string& key, C& c) {
           c.pooler = false;  // whatever the head
           c.mean_pooling = r.has(key) && r.choice(key, {"cls", "mean"}) == 1;
         },
         [](const C& c, const std::string& key, Json& json) { json[key] = c.mean_pooling ? "mean" : "cls"; },
         row_of(&C::mean_pooling)},
        R::only("decoder_bias", true),
        R::only("tie_word_embeddings", true)}});
  for (const char* name : {"norm_bias", "attention_bias", "mlp_bias", "classifier_bias"})
    all.push_back(R::only(name, false));
  for (const char* name : {"embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout"})
    all.push_back(R::only(name, 0));
  return R::with_nothing(all, {"layer_types", "global_rope_theta", "initializer_cutoff_factor",
                               "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index",
                               "reference_compile", "repad_logits_with_grad", "cls_token_id", "sep_token_id",
                               "position_embedding_type", "layer_norm_eps", "gradient_checkpointing"});
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, "model.");
  WeightMap map;
  add_pair(map, "token_embedding", root + "embeddings.tok_embeddings", false);
  add_pair(map, "embedding_norm", root + "embeddings.norm", false);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "layers.", i, ".");
    if (i > 0) add_pair(map, ours + "norm1", theirs + "attn_norm", false);
    map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "attn.Wqkv.weight"}}});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "attn.Wo"},
               {"norm2", "mlp_norm"},
               {"linear1", "mlp.Wi"},
               {"linear2", "mlp.Wo"}},
              false);
  }
  add_pair(map, "final_norm", root + "final_norm", false);
  if (c.head == EncoderHead::none) return map;
  add_pair(map, "head_dense", "head.dense", false);
  add_pair(map, "head_norm", "head.norm", false);
  if (c.head == EncoderHead::masked_lm) {
    map.push_back({"head_bias", {{"decoder.bias"}}});
  } else {
    add_pair(map, "classifier", "classifier");
  }
  return map;
}

// The tied output layer; and a head that the config does not speak of.
std::vector<ExtraTensor> extras(const C& c) {
  if (c.head != EncoderHead::none) return {{"decoder.weight"}};
  return {{"decoder.weight"}, {"decoder.bias"}, {"head.dense.weight"}, {"head.norm.weight"}};
}

}  // namespace

Family<C> modernbert() {
  Family<C> family = {.name = "modernbert",
                      .architecture = "ModernBertModel",
                      .expresses = is_modernbert,
                      .keys = keys(),
                      .map = map,
                      .prefix = "model.",
                      .extras = extras};
  C& defaults = family.defaults;
  defaults.token_types = 0;
  defaults.pooler = false;
  defaults.norm_first = defaults.gated = defaults.transforms_labels = true;
  defaults.bias = false;
  return family;
}

}  // namespace multihead::models::detail::modernbert
