// Gemma 1 to 3: Llama's plan with scaled embeddings and norms whose weights are kept as differences from 1;
// from 2 on norms after the sub-layers as well, layers with and without a window, and soft caps.

#include "multihead/core/error.h"
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::gemma {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_like_gemma(const C& c) {
  return c.positions == Positions::rotary && c.norm == nn::NormKind::rms_from_one && c.norm_first &&
         c.final_norm && c.gated && !c.head_bias && c.scale_embeddings && c.attention_bias == c.out_bias &&
         !c.ffn_bias;
}
bool is_gemma(const C& c) {
  return is_like_gemma(c) && c.block == nn::Block::sequential && c.activation != Activation::gelu;
}
bool is_gemma2(const C& c) {
  return is_like_gemma(c) && c.block == nn::Block::sandwich && c.window > 0 && c.scale_dim > 0;
}

void add_sandwich(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  llama::add_layer_weights(map, c, ours, theirs);
  for (WeightRule& rule : map) {
    if (rule.parameter == ours + "norm2.weight") rule.parts = {{theirs + "pre_feedforward_layernorm.weight"}};
  }
  llama::add_post_norms(map, ours, theirs);
}

WeightMap sandwich_map(const C& c) { return llama::weight_map(c, add_sandwich); }

// The first files say "gelu" and mean its approximation by tanh, as transformers reads them.
ConfigKey<C> activation() {
  return R::key("hidden_act", &C::activation, [](Reader& r, const std::string& key, C& c) {
    c.activation = read_word(r, key, std::optional(Activation::gelu_tanh));
    if (c.activation == Activation::gelu) c.activation = Activation::gelu_tanh;
  });
}

// Null: no cap.
ConfigKey<C> softcap(const char* name, double C::*member, double fallback) {
  const auto read = [=](Reader& r, const std::string& key, C& c) {
    const Json* given = r.find(key);
    c.*member = given == nullptr ? fallback : r.number_or(key, 0, kPositive);
  };
  const auto write = [=](const C& c, const std::string& key, Json& json) {
    json[key] = c.*member > 0 ? Json(c.*member) : Json();
  };
  return {name, read, write, row_of(member)};
}

// "layer_types" in full, or "sliding_window_pattern", or neither.
ConfigKey<C> layer_kinds(int64_t fallback) {
  const auto kinds = [](const C& c) {
    std::vector<std::string> all;
    for (int64_t i = 1; i <= c.num_layers; ++i) {
      const bool is_full = c.global_every > 0 && i % c.global_every == 0;
      all.emplace_back(is_full ? "full_attention" : "sliding_attention");
    }
    return all;
  };
  const auto read = [=](Reader& r, const std::string& key, C& c) {
    c.global_every = r.integer_or("sliding_window_pattern", fallback, kSizeOrNone);
    const std::vector<std::string> given = r.strings_or(key, {});
    if (given.empty()) return;
    const auto first = std::find(given.begin(), given.end(), "full_attention");
    c.global_every = first == given.end() ? 0 : first - given.begin() + 1;
    if (given != kinds(c))
      r.fail(key, "must have full_attention at a regular interval, the other layers sliding");
  };
  const auto write = [=](const C& c, const std::string& key, Json& json) {
    json[key] = Json::array();
    for (const std::string& kind : kinds(c)) json[key].push_back(kind);
  };
  return {"layer_types", read, write, row_of(&C::global_every)};
}

// transformers 5 keeps positions for each kind of layer, 4 keeps "rope_theta" and "rope_local_base_freq".
ConfigKey<C> two_rotary_bases() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    c.rotary_base = r.number_or("rope_theta", 1e6, kPositive);
    c.local_rotary_base = r.number_or(key, 10000, kPositive);
    std::optional<Reader> old = r.optional_child("rope_scaling");
    if (old) {
      c.rotary_base = old->number_or("rope_theta", c.rotary_base, kPositive);
      c.rotary_scaling = read_rotary_scaling(*old, c.context);
    }
    std::optional<Reader> kinds = r.optional_child("rope_parameters");
    if (!kinds) return;
    if (std::optional<Reader> full = kinds->optional_child("full_attention")) {
      const double base = full->number_or("rope_theta", c.rotary_base, kPositive);
      const RotaryScaling scaling = read_rotary_scaling(*full, c.context);
      // transformers lets the older key change the newer one's full attention.
      const auto differs = [&] {
        return scaling != c.rotary_scaling || (old->has("rope_theta") && base != c.rotary_base);
      };
      if (old && differs()) r.fail("rope_scaling", "contradicts \"rope_parameters\"");
      c.rotary_base = base, c.rotary_scaling = scaling;
    }
    if (std::optional<Reader> local = kinds->optional_child("sliding_attention")) {
      c.local_rotary_base = local->number_or("rope_theta", c.local_rotary_base, kPositive);
      if (read_rotary_scaling(*local, c.context) != RotaryScaling{})
        r.fail("rope_parameters", "scales local positions, which is not supported");
    }
    kinds->refuse_unknown();
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.local_rotary_base;
    json["rope_theta"] = c.rotary_base;
    json["rope_parameters"] =
        Json::object({{"full_attention", rotary_json(c)},
                      {"sliding_attention",
                       Json::object({{"rope_type", "default"}, {"rope_theta", c.local_rotary_base}})}});
  };
  return {"rope_local_base_freq", read, write, row_of(&C::local_rotary_base)};
}

Family<C> like_gemma(const char* name, const char* architecture, bool (*expresses)(const C&),
                     const llama::Keys& keys, const llama::Defaults& defaults) {
  Family<C> family = llama::derive(name, architecture, expresses, keys, defaults);
  family.defaults.norm = nn::NormKind::rms_from_one;
  family.defaults.scale_embeddings = true;
  return family;
}

Family<C> with_sandwich(Family<C> family) {
  family.defaults.block = nn::Block::sandwich;
  family.map = sandwich_map;
  return family;
}

ConfigKeys<C> later_keys(const ConfigKey<C>& attention_cap, double logit_cap) {
  return {llama::attention_bias(),
          R::field("query_pre_attn_scalar", &C::scale_dim, 256),
          attention_cap,
          softcap("final_logit_softcapping", &C::logit_softcap, logit_cap),
          {"hidden_act"},
          {"sliding_window_pattern"},
          {"_sliding_window_pattern"},
          {"cache_implementation"}};
}

void read_window(Reader& r, const std::string& key, C& c) { c.window = r.integer_or(key, 4096, kSize); }

// Where tokens see later ones, the file counts both sides of the window.
ConfigKeys<C> window_keys() {
  const auto read_causal = [](Reader& r, const std::string& key, C& c) {
    c.causal = !r.boolean_or(key, false);
  };
  const auto write_causal = [](const C& c, const std::string& key, Json& json) {
    if (!c.causal) json[key] = true;
  };
  const auto read = [](Reader& r, const std::string& key, C& c) {
    read_window(r, key, c);
    if (!c.causal) c.window = c.window / 2 + 1;
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.causal ? c.window : 2 * (c.window - 1);
  };
  return {{"use_bidirectional_attention", read_causal, write_causal, row_of(&C::causal)},
          {"sliding_window", read, write, row_of(&C::window)}};
}

constexpr llama::Defaults kLater = {.num_kv_heads = 4,
                                    .head_dim = 256,
                                    .activation_key = "hidden_activation",
                                    .activation = Activation::gelu_tanh,
                                    .tied = true};

}  // namespace

Family<C> gemma() {
  Family<C> family = like_gemma(
      "gemma", "GemmaForCausalLM", is_gemma,
      {llama::attention_bias(), R::only("use_bidirectional_attention", false), {"hidden_activation"}},
      {.num_kv_heads = 16, .head_dim = 256, .tied = true});
  *std::ranges::find(family.keys, "hidden_act", &ConfigKey<C>::name) = activation();
  return family;
}

Family<C> gemma2() {
  const ConfigKeys<C> keys =
      R::joined({later_keys(softcap("attn_logit_softcapping", &C::attention_softcap, 50), 30),
                 {R::key("sliding_window", &C::window, read_window),
                  R::only("use_bidirectional_attention", false), layer_kinds(2)}});
  return with_sandwich(like_gemma("gemma2", "Gemma2ForCausalLM", is_gemma2, keys, kLater));
}

Family<C> gemma3() {
  // transformers has a key for it, and computes without.
  const ConfigKeys<C> keys =
      R::joined({later_keys(R::only("attn_logit_softcapping", Json()), 0),
                 window_keys(),
                 {layer_kinds(6), two_rotary_bases(), {"rope_theta", {}, {}, row_of(&C::rotary_base)}}});
  Family<C> family = with_sandwich(like_gemma("gemma3_text", "Gemma3ForCausalLM", is_gemma2, keys, kLater));
  const auto is_plain = [](const ConfigKey<C>& key) { return key.name == "rope_theta" && key.read; };
  std::erase_if(family.keys, is_plain);
  family.base = "Gemma3TextModel";
  family.defaults.qk_norm = true;
  return family;
}

}  // namespace multihead::models::detail::gemma
