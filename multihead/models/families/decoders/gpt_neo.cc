// GPT-Neo: GPT-2 with separate projections, scores that are not scaled, and a window in some layers.
#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::gpt_neo {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;
using Reader = io::ConfigReader;
using Kinds = std::vector<std::string>;

bool is_gpt_neo(const C& c) {
  return c.positions == Positions::learned && c.norm == nn::NormKind::layer && c.norm_first && c.final_norm &&
         !c.gated && !c.attention_bias && c.out_bias && c.ffn_bias && !c.head_bias && !c.scale_embeddings &&
         c.num_kv_heads == c.num_heads && c.head_dim * c.num_heads == c.embed_dim;
}

// Whether each layer attends to all or to a window.
Kinds kinds_of(const C& c) {
  Kinds kinds;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const bool is_global = c.global_every > 0 && (i + (c.global_first ? 0 : 1)) % c.global_every == 0;
    kinds.emplace_back(c.window == 0 || is_global ? "global" : "local");
  }
  return kinds;
}

// [[["global", "local"], 12]]: kinds, and how often they follow each other.
Kinds expanded(Reader& r, const std::string& key) {
  static const Json usual = Json(std::vector<Json>{
      Json(std::vector<Json>{Json(std::vector<Json>{"global", "local"}), Json(int64_t{12})})});
  const Json* given = r.find(key);
  if (given == nullptr || given->is_null()) given = &usual;
  const auto fail = [&] {
    r.fail(key, concat("must be [[[\"global\" or \"local\", …], times], …], got ", quote(given->dump(), 80)));
  };
  Kinds kinds;
  if (!given->is_array()) fail();
  for (const Json& item : given->items()) {
    const bool is_pair = item.is_array() && item.size() == 2 && item.items()[0].is_array() &&
                         item.items()[1].is_integer() && item.items()[1].as_int() <= kLayers.max;
    if (!is_pair) fail();
    for (int64_t n = 0; n < item.items()[1].as_int() && std::ssize(kinds) <= kLayers.max; ++n) {
      for (const Json& kind : item.items()[0].items()) {
        if (!kind.is_string()) fail();
        kinds.push_back(kind.as_string());
      }
    }
  }
  return kinds;
}

ConfigKey<C> layer_kinds() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    const Kinds kinds = expanded(r, key), listed = r.strings_or("attention_layers", kinds);
    if (listed != kinds) r.fail("attention_layers", concat("differs from ", quote(key)));
    const auto next = [&](size_t from) {
      const size_t at = std::find(kinds.begin() + from, kinds.end(), "global") - kinds.begin();
      return static_cast<int64_t>(at);
    };
    c.window = r.integer_or("window_size", 256, kSize);
    c.global_every = 0;
    if (kinds == Kinds(static_cast<size_t>(c.num_layers), "global")) {
      c.window = 0;
    } else if (std::find(kinds.begin(), kinds.end(), "global") != kinds.end()) {
      c.global_first = kinds[0] == "global";
      c.global_every = c.global_first ? next(1) : next(0) + 1;
    }
    if (kinds != kinds_of(c)) {
      r.fail(key, concat("must name global or local for each of ", c.num_layers,
                         " layers, with the global ones at a regular interval"));
    }
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    Json kinds = Json::array();
    for (const std::string& kind : kinds_of(c)) kinds.push_back(kind);
    json["attention_layers"] = kinds;
    json[key] = Json(std::vector<Json>{Json(std::vector<Json>{kinds, Json(int64_t{1})})});
    json["window_size"] = c.window > 0 ? c.window : 256;
  };
  return {"attention_types", read, write, row_of(&C::global_every)};
}

ConfigKeys<C> keys() {
  return R::with_nothing({R::field("vocab_size", &C::vocab_size),
                          R::field("max_position_embeddings", &C::context),
                          R::field("hidden_size", &C::embed_dim),
                          R::field("num_layers", &C::num_layers),
                          R::alias("num_hidden_layers", "num_layers"),
                          R::field("num_heads", &C::num_heads),
                          R::alias("num_attention_heads", "num_heads"),
                          R::field("intermediate_size", &C::ffn_dim, 0),
                          layer_kinds(),
                          {"attention_layers", {}, {}, row_of(&C::global_first)},
                          {"window_size", {}, {}, row_of(&C::window)},
                          R::field("activation_function", &C::activation, Activation::gelu_tanh),
                          R::field("resid_dropout", &C::dropout_p, 0),
                          R::copy("embed_dropout", &C::dropout_p),
                          R::field("attention_dropout", &C::attention_dropout_p, 0),
                          R::field("layer_norm_epsilon", &C::norm_eps, 1e-5),
                          R::field("initializer_range", &C::init_std, 0.02),
                          R::field("tie_word_embeddings", &C::tie_embeddings, true)},
                         {"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                          "summary_first_dropout", "tokenizer_class", "gradient_checkpointing"});
}

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"transformer.wte.weight"}}},
                   {"position_embedding.weight", {{"transformer.wpe.weight"}}}};
  add_pair(map, "final_norm", "transformer.ln_f");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat("transformer.h.", i, ".");
    add_projections(
        map, ours + "self_attn",
        {theirs + "attn.attention.", {"q_proj", "k_proj", "v_proj"}, c.embed_dim, c.embed_dim, false});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "attn.attention.out_proj"},
               {"linear1", "mlp.c_fc"},
               {"linear2", "mlp.c_proj"},
               {"norm1", "ln_1"},
               {"norm2", "ln_2"}});
  }
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {{".attn.attention.bias"}, {".attn.attention.masked_bias"}};  // the masks
  if (c.tie_embeddings) {
    list.push_back(repeated_tensor("lm_head.weight", "transformer.wte.weight", "transformer."));
  }
  return list;
}

}  // namespace

Family<C> gpt_neo() {
  Family<C> family = {.name = "gpt_neo",
                      .architecture = "GPTNeoForCausalLM",
                      .expresses = is_gpt_neo,
                      .keys = keys(),
                      .map = map,
                      .prefix = "transformer.",
                      .extras = extras};
  C& c = family.defaults;
  c.attention_bias = false;
  c.scale_dim = 1;
  return family;
}

}  // namespace multihead::models::detail::gpt_neo
