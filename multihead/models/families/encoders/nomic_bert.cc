// Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions, gated feed-forward layers and projections
// without biases. Folders from before transformers had it name the fields after GPT-2's.
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::nomic_bert {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_nomic_bert(const C& c) {
  return c.rotary_base > 0 && c.gated && c.bias && !c.layer_bias && c.embedding_norm && !c.norm_first &&
         c.word_dim == c.embed_dim && c.token_types > 0 && c.position_offset == 0 &&
         c.head_activation == c.activation && c.pooler == (c.head == EncoderHead::classification) &&
         c.pooler_activation == PoolerActivation::tanh;
}

// A field under transformers' name, or under the published one.
ConfigKey<C> either(const char* name, const char* published, const R::Member& member,
                    const std::optional<FieldValue>& fallback = {}) {
  return R::key(name, member, [=](Reader& r, const std::string& key, C& c) {
    const bool is_ours = r.has(key);
    R::read(r, is_ours ? key : published, c, member, fallback);
    if (is_ours) expect_same(r, published, key);
  });
}

ConfigKey<C> activation_key() {
  return R::key("hidden_act", &C::activation, [](Reader& r, const std::string& key, C& c) {
    c.activation = read_word(r, key, std::optional(Activation::silu));
    if (const char* published = "activation_function"; r.has(published)) {
      c.activation = r.choice(published, {"swiglu", "geglu"}) == 0 ? Activation::silu : Activation::gelu;
    }
    c.head_activation = c.activation;
  });
}

ConfigKey<C> rotary() {
  ConfigKey<C> key = encoder_rotary_key("rotary_emb_base", 1000);
  key.read = [read = key.read](Reader& r, const std::string& name, C& c) {
    // The published code rotates nothing where this key is missing.
    if (r.has("n_embd") && r.number("rotary_emb_fraction") != 1) r.fail("rotary_emb_fraction", "must be 1");
    read(r, name, c);
  };
  return key;
}

ConfigKeys<C> keys() {
  ConfigKeys<C> all =
      R::joined({{either("vocab_size", "vocab_size", &C::vocab_size),
                  either("max_position_embeddings", "n_positions", &C::context),
                  either("hidden_size", "n_embd", &C::embed_dim),
                  either("intermediate_size", "n_inner", &C::ffn_dim),
                  either("num_hidden_layers", "n_layer", &C::num_layers),
                  either("num_attention_heads", "n_head", &C::num_heads),
                  {"head_dim",
                   [](Reader& r, const std::string& key, C& c) { c.head_dim = r.integer_or(key, 0, kSize); },
                   [](const C& c, const std::string& key, Json& json) { json[key] = head_dim(c); },
                   row_of(&C::head_dim)},
                  activation_key(),
                  either("layer_norm_eps", "layer_norm_epsilon", &C::norm_eps, 1e-12),
                  either("hidden_dropout_prob", "resid_pdrop", &C::dropout_p, 0.0),
                  either("attention_probs_dropout_prob", "attn_pdrop", &C::attention_dropout_p, 0.0),
                  R::field("initializer_range", &C::init_std, 0.02),
                  R::field("pad_token_id", &C::pad_id, 0),
                  R::field("type_vocab_size", &C::token_types, 2),
                  rotary(),
                  {"rope_parameters", {}, {}, row_of(&C::rotary_factor)}},
                 head_keys("NomicBert"),
                 {R::only("embd_pdrop", 0), R::only("rotary_emb_fraction", 1),
                  R::only("rotary_emb_scale_base", Json()), R::only("rotary_scaling_factor", Json()),
                  R::only("scale_attn_weights", true), R::only("tie_word_embeddings", true)}});
  for (const char* name : {"prenorm", "parallel_block", "parallel_block_tied_norm", "qkv_proj_bias",
                           "mlp_fc1_bias", "mlp_fc2_bias", "causal", "use_rms_norm",
                           "scale_attn_by_inverse_layer_idx", "rotary_emb_interleaved"}) {
    all.push_back(R::only(name, false));
  }
  return R::with_nothing(
      all, {"fused_bias_fc", "fused_dropout_add_ln", "dense_seq_output", "use_flash_attn", "use_xentropy",
            "pad_vocab_size_multiple", "reorder_and_upcast_attn", "max_trained_positions", "summary_type",
            "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_use_proj"});
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, "nomic_bert.");
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}},
                   {"type_embedding.weight", {{root + "embeddings.token_type_embeddings.weight"}}}};
  add_pair(map, "embedding_norm", root + "emb_ln");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layers.", i, ".");
    map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "attn.Wqkv.weight"}}});
    add_pair(map, ours + "self_attn.out_proj", theirs + "attn.out_proj", false);
    map.push_back({ours + "linear1.weight",
                   {{theirs + "mlp.fc12.weight", c.ffn_dim}, {theirs + "mlp.fc11.weight", c.ffn_dim}}});
    add_pair(map, ours + "linear2", theirs + "mlp.fc2", false);
    add_pairs(map, ours, theirs, {{"norm1", "norm1"}, {"norm2", "norm2"}});
  }
  if (c.pooler) add_pair(map, "pooler", root + "pooler.dense");
  if (c.num_labels > 0) add_pair(map, "classifier", "classifier");
  add_masked_lm(map, c, "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm",
                "cls.predictions.bias");
  return map;
}

}  // namespace

Family<C> nomic_bert() {
  Family<C> family = {.name = "nomic_bert",
                      .architecture = "NomicBertModel",
                      .expresses = is_nomic_bert,
                      .keys = keys(),
                      .map = map,
                      .prefix = "nomic_bert.",
                      .extras = [](const C&) {
                        return unread({"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"});
                      }};
  C& defaults = family.defaults;
  defaults.gated = true;
  defaults.layer_bias = defaults.pooler = false;
  return family;
}

}  // namespace multihead::models::detail::nomic_bert
