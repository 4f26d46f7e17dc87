// Nomic Embed v2 (Nussbaum & Duderstadt 2025): Nomic BERT whose every second feed-forward layer is a choice of
// experts. Its folders call themselves "nomic_bert" and bring code of their own, whose names of fields are
// GPT-2's.
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::nomic_bert_moe {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_moe(const C& c) {
  return c.experts > 0 && c.rotary_base > 0 && !c.gated && c.bias && c.layer_bias && c.ffn_in_bias &&
         c.embedding_norm && !c.norm_first && c.word_dim == c.embed_dim && c.token_types > 0 &&
         c.position_offset == 0 && c.activation == Activation::gelu && c.head == EncoderHead::none &&
         !c.pooler && c.rotary_factor == 1;
}

bool claims(Reader& r) {
  const Json* every = r.find("moe_every_n_layers");
  return every != nullptr && every->is_number() && every->as_double() > 0;
}

void write_code(const C&, const std::string& key, Json& json) {
  const std::string code = "nomic-ai/nomic-bert-2048--";
  json[key] = Json::object({{"AutoConfig", code + "configuration_hf_nomic_bert.NomicBertConfig"},
                            {"AutoModel", code + "modeling_hf_nomic_bert.NomicBertModel"}});
}

// embd_pdrop drops the embeddings alone in training, which is not followed.
ConfigKeys<C> keys() {
  ConfigKeys<C> all = {R::field("vocab_size", &C::vocab_size),
                       R::field("n_positions", &C::context),
                       R::field("n_embd", &C::embed_dim),
                       R::field("n_inner", &C::ffn_dim),
                       R::field("n_layer", &C::num_layers),
                       R::field("n_head", &C::num_heads),
                       R::field("layer_norm_epsilon", &C::norm_eps, 1e-5),
                       R::field("resid_pdrop", &C::dropout_p, 0.0),
                       R::field("attn_pdrop", &C::attention_dropout_p, 0.0),
                       R::field("initializer_range", &C::init_std, 0.02),
                       R::field("pad_token_id", &C::pad_id, 0),
                       R::field("type_vocab_size", &C::token_types, 2),
                       R::field("rotary_emb_base", &C::rotary_base, 10000.0),
                       R::field("num_experts", &C::experts, 8),
                       R::field("moe_top_k", &C::experts_used, 2),
                       R::field("moe_every_n_layers", &C::experts_every, 2),
                       {"auto_map", {}, write_code}};
  for (const char* name : {"qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"}) {
    all.push_back(R::constant(name, true));
  }
  for (const char* name :
       {"prenorm", "parallel_block", "parallel_block_tied_norm", "causal", "scale_attn_by_inverse_layer_idx",
        "rotary_emb_interleaved", "expert_choice_router", "moe_normalize_expert_weights", "use_rms_norm"}) {
    all.push_back(R::constant(name, false));
  }
  for (const auto& [name, value] : {std::pair("activation_function", Json("gelu")),
                                    {"rotary_emb_fraction", Json(1.0)},
                                    {"ffn_div", Json(1)},
                                    {"num_shared_experts", Json(0)},
                                    {"moe_resid_pdrop", Json(0.0)},
                                    {"rotary_emb_scale_base", Json()},
                                    {"rotary_scaling_factor", Json()},
                                    {"scale_attn_weights", Json(true)},
                                    {"add_pooling_layer", Json(false)},
                                    {"max_trained_positions", Json(2048)}}) {
    all.push_back(R::constant(name, value));
  }
  return R::with_nothing(
      R::joined({all,
                 {R::only("architectures", Json(std::vector<Json>{Json("NomicBertModel")})),
                  R::only("tie_word_embeddings", true)}}),
      {"fused_bias_fc", "fused_dropout_add_ln", "dense_seq_output", "use_flash_attn", "use_xentropy",
       "pad_vocab_size_multiple", "reorder_and_upcast_attn", "moe_impl", "router_aux_loss_coef", "embd_pdrop",
       "summary_type", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
       "summary_use_proj"});
}

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"embeddings.word_embeddings.weight"}}},
                   {"type_embedding.weight", {{"embeddings.token_type_embeddings.weight"}}}};
  add_pair(map, "embedding_norm", "emb_ln");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat("encoder.layers.", i, ".");
    map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "attn.Wqkv.weight"}}});
    map.push_back({ours + "self_attn.in_proj_bias", {{theirs + "attn.Wqkv.bias"}}});
    add_pair(map, ours + "self_attn.out_proj", theirs + "attn.out_proj");
    if (i % c.experts_every == 1) {
      map.push_back({ours + "experts.router.weight", {{theirs + "mlp.router.layer.weight"}}});
      map.push_back({ours + "experts.in", {{theirs + "mlp.experts.mlp.w1"}}});
      map.push_back({ours + "experts.out", {{theirs + "mlp.experts.mlp.w2"}}});
      map.push_back({ours + "experts.bias", {{theirs + "mlp.experts.bias"}}});
    } else {
      add_pairs(map, ours, theirs, {{"linear1", "mlp.fc1"}, {"linear2", "mlp.fc2"}});
    }
    add_pairs(map, ours, theirs, {{"norm1", "norm1"}, {"norm2", "norm2"}});
  }
  return map;
}

}  // namespace

Family<C> nomic_bert_moe() {
  Family<C> family = {.name = "nomic_bert",
                      .architecture = "NomicBertModel",
                      .expresses = is_moe,
                      .keys = keys(),
                      .map = map,
                      .prefix = "nomic_bert.",
                      .claims = claims};
  family.defaults.pooler = false;
  family.defaults.experts = 8;
  return family;
}

}  // namespace multihead::models::detail::nomic_bert_moe
