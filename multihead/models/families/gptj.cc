// GPT-J: one norm before attention and feed-forward side by side, the first dimensions of each head rotated by
// interleaved pairs, biases in the feed-forward and output layers alone.
#include "multihead/core/error.h"
#include "multihead/models/config/transformer_config-inl.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::gptj {
namespace {

using C = LanguageModelConfig;
using Reader = io::ConfigReader;

bool is_gptj(const C& c) {
  return c.block == nn::Block::parallel_shared && c.positions == Positions::rotary &&
         c.norm == nn::NormKind::layer && c.norm_first && c.final_norm && !c.gated && !c.attention_bias &&
         !c.out_bias && c.ffn_bias && c.head_bias && !c.scale_embeddings && c.num_kv_heads == c.num_heads &&
         c.head_dim * c.num_heads == c.embed_dim && c.rotary_scaling == RotaryScaling{};
}

ConfigKey<C> rotary_dim() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    const int64_t head_dim = c.embed_dim / c.num_heads, dim = r.has(key) ? r.integer(key, kSize) : 64;
    if (dim > head_dim || dim % 2 != 0) {
      r.fail(key, concat("must be even and at most n_embd / n_head = ", head_dim, ", got ", dim));
    }
    c.rotary_fraction = static_cast<double>(dim) / static_cast<double>(head_dim);
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = models::rotary_dim(c);
  };
  return {"rotary_dim", read, write, row_of(&C::rotary_fraction)};
}

ConfigKeys<C> keys() {
  using R = Row<C>;
  const auto inner = [](Reader& r, const std::string& key, C& c) { c.ffn_dim = r.integer_or(key, 0, kSize); };
  return R::with_nothing(
      {R::field("vocab_size", &C::vocab_size), R::field("n_positions", &C::context),
       R::field("n_embd", &C::embed_dim), R::field("n_layer", &C::num_layers),
       R::field("n_head", &C::num_heads), R::key("n_inner", &C::ffn_dim, inner), rotary_dim(),
       R::field("activation_function", &C::activation, Activation::gelu_tanh),
       R::field("layer_norm_epsilon", &C::norm_eps, 1e-5), R::field("resid_pdrop", &C::dropout_p, 0),
       R::copy("embd_pdrop", &C::dropout_p), R::field("attn_pdrop", &C::attention_dropout_p, 0),
       R::field("initializer_range", &C::init_std, 0.02),
       R::field("tie_word_embeddings", &C::tie_embeddings, false), R::only("scale_attn_weights", true)},
      {"n_ctx", "rotary", "gradient_checkpointing", "summary_type", "summary_use_proj", "summary_activation",
       "summary_first_dropout", "summary_proj_to_labels", "task_specific_params"});
}

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"transformer.wte.weight"}}},
                   {"head.bias", {{"lm_head.bias"}}}};
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  add_pair(map, "final_norm", "transformer.ln_f");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat("transformer.h.", i, ".");
    add_projections(map, ours + "self_attn",
                    {theirs + "attn.", {"q_proj", "k_proj", "v_proj"}, c.embed_dim, c.embed_dim, false});
    add_pair(map, ours + "self_attn.out_proj", theirs + "attn.out_proj", false);
    add_pairs(map, ours, theirs, {{"linear1", "mlp.fc_in"}, {"linear2", "mlp.fc_out"}, {"norm1", "ln_1"}});
  }
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {{".attn.bias"}, {".attn.masked_bias"}};
  if (c.tie_embeddings)
    list.push_back(repeated_tensor("lm_head.weight", "transformer.wte.weight", "transformer."));
  return list;
}

}  // namespace

Family<C> gptj() {
  Family<C> family = {.name = "gptj",
                      .architecture = "GPTJForCausalLM",
                      .expresses = is_gptj,
                      .keys = keys(),
                      .map = map,
                      .prefix = "transformer.",
                      .extras = extras};
  C& c = family.defaults;
  c.positions = Positions::rotary;
  c.rotary_layout = RotaryLayout::interleaved;
  c.block = nn::Block::parallel_shared;
  c.attention_bias = c.out_bias = c.tie_embeddings = false;
  c.head_bias = true;
  return family;
}

}  // namespace multihead::models::detail::gptj
