// BART (Lewis et al. 2020) and mBART: learned positions, a norm on the embeddings.
#include "multihead/core/error.h"
#include "multihead/models/families/bart-inl.h"

namespace multihead::models::detail::bart {
namespace {

using C = Seq2SeqConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

constexpr int64_t kOffset = 2;  // rows of the table of positions before that of the first token
constexpr const char* kOutputBias = "final_logits_bias";
constexpr const char* kHead = "lm_head.weight";

bool is_bart_like(const C& c) {
  return c.positions == Positions::learned && c.norm == nn::NormKind::layer && c.norm_eps == 1e-5 && c.bias &&
         c.share_embeddings;
}
bool is_bart(const C& c) { return is_bart_like(c) && !c.norm_first && !c.final_norm; }
bool is_mbart(const C& c) { return is_bart_like(c) && c.norm_first && c.final_norm; }

// Both stacks of a model share a size here.
R::Key same_size(const std::string& decoder, const std::string& encoder, int64_t C::*member) {
  return R::key(decoder, member, [=](Reader& r, const std::string& key, C& c) {
    if (r.integer_or(key, c.*member, kSize) != c.*member) r.fail(key, concat("must equal ", encoder));
  });
}

// A sentence that is as long as it may be ends with the end token, here always.
void read_forced_end(Reader& r, const std::string& key, C& c) {
  if (r.has(key) && r.integer(key, kSizeOrNone) != c.eos_id) r.fail(key, "must equal eos_token_id");
}

void add_attention(WeightMap& map, int64_t rows, const std::string& ours, const std::string& theirs) {
  add_projections(map, ours, {theirs + ".", {"q_proj", "k_proj", "v_proj"}, rows, rows});
  add_pair(map, ours + ".out_proj", theirs + ".out_proj");
}

void add_stack(WeightMap& map, const C& c, bool decoder) {
  const std::string stack = decoder ? "decoder.layers." : "encoder.layers.";
  const int64_t layers = decoder ? c.decoder_layers : c.encoder_layers;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string ours = concat("transformer.", stack, i, "."), theirs = concat("model.", stack, i, ".");
    add_attention(map, c.embed_dim, ours + "self_attn", theirs + "self_attn");
    add_pair(map, ours + "norm1", theirs + "self_attn_layer_norm");
    if (decoder) {
      add_attention(map, c.embed_dim, ours + "multihead_attn", theirs + "encoder_attn");
      add_pair(map, ours + "norm2", theirs + "encoder_attn_layer_norm");
    }
    add_pairs(map, ours, theirs,
              {{"linear1", "fc1"}, {"linear2", "fc2"}, {decoder ? "norm3" : "norm2", "final_layer_norm"}});
  }
  const std::string theirs = decoder ? "model.decoder." : "model.encoder.";
  const std::string side = decoder ? "target_" : "source_";
  if (c.embedding_norm) add_pair(map, side + "norm", theirs + "layernorm_embedding");
  if (c.positions == Positions::learned) add_pair(map, side + "positions", theirs + "embed_positions", false);
  if (c.final_norm) {
    add_pair(map, decoder ? "transformer.decoder.norm" : "transformer.encoder.norm", theirs + "layer_norm");
  }
}

// Older files say what the class implies.
ConfigKeys<C> implied(bool norm_first) {
  return {R::only("normalize_before", norm_first),
          R::only("normalize_embedding", true),
          R::only("static_position_embeddings", false),
          R::only("add_final_layer_norm", norm_first),
          R::only("add_bias_logits", false),
          R::only("extra_pos_embeddings", kOffset)};
}

// Files of BartModel, whose names lack the prefix, have no bias of the logits.
C settle(C c, const io::SafetensorsFile& file) {
  c.output_bias = file.contains(kOutputBias);
  return c;
}

Family<C> bart_like(const char* model_type, const char* architecture, bool norm_first) {
  Family<C> family = {
      .name = model_type,
      .architecture = architecture,
      .expresses = norm_first ? is_mbart : is_bart,
      .keys =
          R::joined({config_keys(),
                     {R::field_or("decoder_start_token_id", &C::decoder_start_id, &C::eos_id), {"save_step"}},
                     implied(norm_first)}),
      .map = weight_map,
      .prefix = "model.",
      .extras = extra_tensors,
      .complete = complete,
      .settle = settle};
  family.defaults.positions = Positions::learned;
  family.defaults.position_offset = kOffset;
  family.defaults.embedding_norm = true;
  family.defaults.norm_first = family.defaults.final_norm = norm_first;
  return family;
}

}  // namespace

ConfigKey<C> output_bias_key() {
  return {"multihead",
          [](Reader& r, const std::string& key, C& c) {
            auto ours = r.optional_child(key);
            if (!ours) return;
            c.output_bias = ours->boolean_or("output_bias", true);
            ours->refuse_unknown();
          },
          [](const C& c, const std::string& key, Json& json) {
            json[key] = Json::object({{"output_bias", c.output_bias}});
          }};
}

ConfigKeys<C> config_keys() {
  return R::with_nothing({R::field("vocab_size", &C::source_vocab_size),
                          R::field("max_position_embeddings", &C::max_positions),
                          R::field("d_model", &C::embed_dim),
                          R::alias("hidden_size", "d_model"),
                          R::field("encoder_layers", &C::encoder_layers),
                          R::alias("num_hidden_layers", "encoder_layers"),
                          R::field("decoder_layers", &C::decoder_layers),
                          R::field("encoder_attention_heads", &C::num_heads),
                          R::alias("num_attention_heads", "encoder_attention_heads"),
                          same_size("decoder_attention_heads", "encoder_attention_heads", &C::num_heads),
                          R::field("encoder_ffn_dim", &C::ffn_dim),
                          same_size("decoder_ffn_dim", "encoder_ffn_dim", &C::ffn_dim),
                          R::field("activation_function", &C::activation, Activation::gelu),
                          R::field("dropout", &C::dropout_p, 0.1),
                          R::field("attention_dropout", &C::attention_dropout_p, 0),
                          R::field("activation_dropout", &C::ffn_dropout_p, 0),
                          R::field("init_std", &C::init_std, 0.02),
                          R::field("scale_embedding", &C::scale_embeddings, false),
                          R::field("tie_word_embeddings", &C::tie_output, true),
                          R::constant("is_encoder_decoder", true),
                          R::field("pad_token_id", &C::pad_id),
                          R::field("eos_token_id", &C::eos_id),
                          R::key("forced_eos_token_id", &C::eos_id, read_forced_end),
                          R::only("is_decoder", false)},
                         {"encoder_layerdrop", "decoder_layerdrop", "force_bos_token_to_be_generated"});
}

WeightMap weight_map(const C& c) {
  WeightMap map;
  if (c.share_embeddings) {
    map.push_back({"source_embedding.weight", {{kShared}}});
  } else {
    map.push_back({"source_embedding.weight", {{kSource}}});
    map.push_back({"target_embedding.weight", {{kTarget}}});
  }
  if (!c.tie_output) map.push_back({"output.weight", {{kHead}}});
  if (c.output_bias) map.push_back({.parameter = "output.bias", .parts = {{kOutputBias}}, .as_row = true});
  add_stack(map, c, false);
  add_stack(map, c, true);
  return map;
}

std::vector<ExtraTensor> extra_tensors(const C& c) {
  std::vector<ExtraTensor> extras;
  if (c.share_embeddings) {
    extras.push_back(repeated_tensor("encoder.embed_tokens.weight", kShared, "model."));
    extras.push_back(repeated_tensor("decoder.embed_tokens.weight", kShared, "model."));
  } else {
    extras.push_back({kShared});  // transformers 5 saves it, and looks nothing up in it
  }
  if (c.tie_output) extras.push_back(repeated_tensor(kHead, c.share_embeddings ? kShared : kTarget));
  if (!c.output_bias) extras.push_back({kOutputBias});
  return extras;
}

void complete(const C& c, io::TensorMap& tensors) {
  if (!c.output_bias) tensors[kOutputBias] = Tensor::zeros({1, c.target_vocab_size});
  // For transformers 5, which shares nothing without tie_word_embeddings.
  if (c.share_embeddings && !c.tie_output) tensors[kSource] = tensors[kTarget] = tensors.at(kShared);
}

Family<C> bart() { return bart_like("bart", "BartForConditionalGeneration", false); }
Family<C> mbart() { return bart_like("mbart", "MBartForConditionalGeneration", true); }

}  // namespace multihead::models::detail::bart
