// Llama with multi-head latent attention: Youtu-LLM, and MiniCPM 3, which scales embeddings, sub-layers and logits.
#include <cmath>
#include <optional>

#include "multihead/core/error.h"
#include "multihead/models/config/transformer_config-inl.h"
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::latent {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

// Where a file does not name them.
struct Sizes {
  int64_t latent, query_latent, plain, rotated;
};

bool is_like(const C& c) { return llama::is_like(c) && c.attention_bias == c.out_bias && c.latent_dim > 0; }

bool is_youtu(const C& c) { return is_like(c) && !c.ffn_bias; }

// "dim_model_base" is an integer.
bool is_minicpm3(const C& c) {
  const double base = static_cast<double>(c.embed_dim) / c.logit_divisor;
  return is_like(c) && base >= 1 && base == std::round(base);
}

// transformers scales scores by the square of a number that it computes from "mscale_all_dim".
void refuse_score_factor(Reader& r) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    std::optional<Reader> rope = r.optional_child(key);
    if (rope && rope->number_or("mscale_all_dim", 0) != 0) {
      rope->fail("mscale_all_dim", "is not supported beside latent attention");
    }
  }
}

// A number that follows from others.
ConfigKey<C> same(const std::string& name, const std::string& others, int64_t (*value)(const C&)) {
  return {name, [=](Reader& r, const std::string& key, C& c) {
            if (r.has(key) && r.integer(key, kSize) != value(c)) {
              r.fail(key, concat("must be ", others, " = ", value(c)));
            }
          }};
}

// "qk_nope_head_dim" and "qk_rope_head_dim", whose sum is our head_dim.
ConfigKeys<C> head_keys(const Sizes& usual) {
  const auto read = [=](Reader& r, const std::string& key, C& c) {
    const int64_t plain = r.integer_or(key, usual.plain, kSize),
                  rotated = r.integer_or("qk_rope_head_dim", usual.rotated, kSize);
    if (rotated % 2 != 0) r.fail("qk_rope_head_dim", concat("must be even, got ", rotated));
    c.head_dim = plain + rotated;
    c.rotary_fraction = static_cast<double>(rotated) / static_cast<double>(c.head_dim);
    refuse_score_factor(r);
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.head_dim - rotary_dim(c);
    json["qk_rope_head_dim"] = rotary_dim(c);
  };
  return {{"qk_nope_head_dim", read, write, row_of(&C::head_dim)},
          {"qk_rope_head_dim", {}, {}, row_of(&C::rotary_fraction)},
          same("qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim", [](const C& c) { return c.head_dim; }),
          same("head_dim", "qk_rope_head_dim", rotary_dim<C>)};
}

// null, which is written, means that queries are projected from the token itself.
ConfigKey<C> query_latent(int64_t usual) {
  const auto read = [=](Reader& r, const std::string& key, C& c) {
    c.query_latent_dim = r.find(key) == nullptr ? usual : r.integer_or(key, 0, kSize);
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.query_latent_dim > 0 ? Json(c.query_latent_dim) : Json();
  };
  return {"q_lora_rank", read, write, row_of(&C::query_latent_dim)};
}

WeightMap map(const C& c) {
  return llama::weight_map(
      c, [](WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
        const std::string own = ours + "self_attn.", other = theirs + "self_attn.";
        if (c.query_latent_dim > 0) {
          add_pair(map, own + "q_down", other + "q_a_proj", c.attention_bias);
          add_pair(map, own + "q_norm", other + "q_a_layernorm", false);
        }
        add_pair(map, own + "q_proj", other + (c.query_latent_dim > 0 ? "q_b_proj" : "q_proj"), false);
        add_pair(map, own + "kv_down", other + "kv_a_proj_with_mqa", c.attention_bias);
        add_pairs(map, own, other, {{"kv_norm", "kv_a_layernorm"}, {"kv_up", "kv_b_proj"}}, false);
        add_pair(map, own + "out_proj", other + "o_proj", c.out_bias);
        llama::add_network_weights(map, c, ours, theirs);
      });
}

Family<C> derive(const char* name, const char* architecture, bool (*expresses)(const C&), const Sizes& usual,
                 double norm_eps, const ConfigKeys<C>& keys) {
  Family<C> family = llama::derive(name, architecture, expresses, keys, {.tied = true, .norm_eps = norm_eps});
  std::erase_if(family.keys, [](const ConfigKey<C>& key) { return key.name == "head_dim"; });
  family.keys = R::joined({family.keys,
                           head_keys(usual),
                           {R::field("kv_lora_rank", &C::latent_dim, usual.latent),
                            query_latent(usual.query_latent), llama::attention_bias(), llama::no_padding()}});
  family.map = map;
  return family;
}

// Of each sub-layer's output, times the root of the number of layers.
ConfigKey<C> depth_scale() {
  const auto root = [](const C& c) { return std::sqrt(static_cast<double>(c.num_layers)); };
  const auto read = [=](Reader& r, const std::string& key, C& c) {
    const double usual = r.find(key) == nullptr ? 1.4 : root(c);
    c.residual_factor = r.number_or(key, usual, kPositive) / root(c);
  };
  const auto write = [=](const C& c, const std::string& key, Json& json) {
    json[key] = c.residual_factor * root(c);
  };
  return {"scale_depth", read, write, row_of(&C::residual_factor)};
}

ConfigKey<C> model_base() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    const int64_t base = r.integer_or(key, r.find(key) == nullptr ? 256 : c.embed_dim, kSize);
    c.logit_divisor = static_cast<double>(c.embed_dim) / static_cast<double>(base);
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = std::llround(static_cast<double>(c.embed_dim) / c.logit_divisor);
  };
  return {"dim_model_base", read, write, row_of(&C::logit_divisor)};
}

}  // namespace

Family<C> youtu() {
  const auto interleaved = [](Reader& r, const std::string& key, C& c) {
    const bool usual = r.find(key) == nullptr;  // transformers takes null for false
    c.rotary_layout = r.boolean_or(key, usual) ? RotaryLayout::interleaved : RotaryLayout::halves;
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.rotary_layout == RotaryLayout::interleaved;
  };
  return derive("youtu", "YoutuForCausalLM", is_youtu, {512, 1536, 128, 64}, 1e-6,
                {R::field("v_head_dim", &C::value_head_dim, 128),
                 {"rope_interleave", interleaved, write, row_of(&C::rotary_layout)},
                 {"embedding_initializer_range"}});
}

Family<C> minicpm3() {
  const auto values = [](Reader& r, const std::string& key, C& c) {
    c.value_head_dim = r.integer_or(key, c.embed_dim / c.num_heads, kSize);
  };
  return derive("minicpm3", "MiniCPM3ForCausalLM", is_minicpm3, {256, 768, 64, 32}, 1e-5,
                {R::key("v_head_dim", &C::value_head_dim, values), R::field("mlp_bias", &C::ffn_bias, false),
                 R::field("scale_emb", &C::embedding_factor, 12), depth_scale(), model_base()});
}

}  // namespace multihead::models::detail::latent
