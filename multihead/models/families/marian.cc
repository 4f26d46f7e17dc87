// Marian as Hugging Face keeps it: MarianMTModel.
#include "multihead/core/error.h"
#include "multihead/models/family-inl.h"
#include "multihead/nn/positions.h"

namespace multihead::models::detail {
namespace {

using C = Seq2SeqConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

constexpr const char* kOutputBias = "final_logits_bias";

// Sinusoids in halves, layer norm behind each sub-layer, biases everywhere (an output bias that is missing is
// saved as zeros).
bool is_marian(const C& c) {
  return c.positions == Positions::sinusoidal && c.sinusoid_layout == nn::SinusoidLayout::halves &&
         c.norm == nn::NormKind::layer && c.norm_eps == 1e-5 && !c.norm_first && !c.final_norm && c.bias;
}

// Both stacks of a Marian model share a size here.
R::Key same_size(const std::string& decoder, const std::string& encoder, int64_t C::*member) {
  return R::key(decoder, member, [=](Reader& r, const std::string& key, C& c) {
    if (r.integer_or(key, c.*member, kSize) != c.*member) r.fail(key, concat("must equal ", encoder));
  });
}

void read_shared(Reader& r, const std::string& key, C& c) {
  c.share_embeddings = r.boolean_or(key, true);
  if (c.share_embeddings && c.target_vocab_size != c.source_vocab_size) {
    r.fail("decoder_vocab_size", concat("must equal vocab_size where ", key, " is true"));
  }
}

// A sentence that is as long as it may be ends with the end token, here always.
void read_forced_end(Reader& r, const std::string& key, C& c) {
  if (r.has(key) && r.integer(key, kSizeOrNone) != c.eos_id) r.fail(key, "must equal eos_token_id");
}

// Marian has no field for it.
R::Key output_bias() {
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

ConfigKeys<C> keys() {
  return R::with_nothing({R::field("vocab_size", &C::source_vocab_size),
                          R::field_or("decoder_vocab_size", &C::target_vocab_size, &C::source_vocab_size),
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
                          R::key("share_encoder_decoder_embeddings", &C::share_embeddings, read_shared),
                          R::field("tie_word_embeddings", &C::tie_output, true),
                          R::constant("is_encoder_decoder", true),
                          R::field("pad_token_id", &C::pad_id),
                          R::field("eos_token_id", &C::eos_id),
                          R::key("forced_eos_token_id", &C::eos_id, read_forced_end),
                          R::field_or("decoder_start_token_id", &C::decoder_start_id, &C::pad_id),
                          output_bias(),
                          R::only("is_decoder", false),
                          R::only("normalize_before", false),
                          R::only("normalize_embedding", false),
                          R::only("static_position_embeddings", true),
                          R::only("add_final_layer_norm", false),
                          R::only("add_bias_logits", false),
                          R::only("force_bos_token_to_be_generated", false)},
                         {"encoder_layerdrop", "decoder_layerdrop",
                          "extra_pos_embeddings"});  // Bart's, of no meaning for sinusoids
}

void add_attention(WeightMap& map, int64_t rows, const std::string& ours, const std::string& theirs) {
  add_projections(map, ours, {{theirs + ".q_proj", theirs + ".k_proj", theirs + ".v_proj"}, rows, rows});
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
    add_pair(map, ours + "linear1", theirs + "fc1");
    add_pair(map, ours + "linear2", theirs + "fc2");
    add_pair(map, ours + (decoder ? "norm3" : "norm2"), theirs + "final_layer_norm");
  }
}

constexpr const char* kShared = "model.shared.weight";
constexpr const char* kSource = "model.encoder.embed_tokens.weight";
constexpr const char* kTarget = "model.decoder.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

WeightMap map(const C& c) {
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

// What files of other writers repeat or what follows from the config.
std::vector<ExtraTensor> extras(const C& c) {
  const auto sinusoids = [c](const Shape& stored) -> std::vector<Tensor> {
    if (stored != Shape({c.max_positions, c.embed_dim})) return {};
    return {nn::sinusoidal_positions(c.max_positions, c.embed_dim, 0, nn::SinusoidLayout::halves)};
  };
  std::vector<ExtraTensor> extras = {constant_tensor("embed_positions.weight", sinusoids, 1e-4)};
  if (c.share_embeddings) {
    extras.push_back(repeated_tensor(kSource, kShared));
    extras.push_back(repeated_tensor(kTarget, kShared));
  } else {
    extras.push_back({kShared});  // transformers 5 saves it, and looks nothing up in it
  }
  if (c.tie_output) extras.push_back(repeated_tensor(kHead, c.share_embeddings ? kShared : kTarget));
  if (!c.output_bias) extras.push_back({kOutputBias});
  return extras;
}

// share_encoder_decoder_embeddings without tie_word_embeddings: transformers 5 unties everything and saves
// three tables besides the shared one, which nothing reads; 4 shares the two embeddings and saves one table.
// The file says which of them wrote it.
C settle(C c, const io::SafetensorsFile& file) {
  if (!c.share_embeddings || c.tie_output) return c;
  c.share_embeddings =
      !file.contains(kSource) || !file.contains(kTarget) ||
      (file.contains(kShared) && file.is_repeated(kSource, kShared) && file.is_repeated(kTarget, kShared));
  return c;
}

void complete(const C& c, io::TensorMap& tensors) {
  if (!c.output_bias) tensors[kOutputBias] = Tensor::zeros({1, c.target_vocab_size});
  // For transformers 5, which shares nothing without tie_word_embeddings.
  if (c.share_embeddings && !c.tie_output) tensors[kSource] = tensors[kTarget] = tensors.at(kShared);
}

}  // namespace

Family<C> marian() {
  return {.name = "marian",
          .architecture = "MarianMTModel",
          .expresses = is_marian,
          .keys = keys(),
          .map = map,
          .extras = extras,
          .complete = complete,
          .settle = settle};
}

}  // namespace multihead::models::detail
