// T5 (Raffel et al. 2020), 1.1, Flan and mT5: biases by distance, unscaled scores, RMS norms, no biases.
#include "multihead/core/error.h"
#include "multihead/models/family-inl.h"

namespace multihead::models::detail {
namespace {

using C = Seq2SeqConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

// Distances have no end, so neither have sentences; "n_positions" means nothing.
constexpr int64_t kPositions = 1 << 16;
constexpr const char* kShared = "shared.weight";
constexpr const char* kHead = "lm_head.weight";

bool is_t5(const C& c) {
  return c.positions == Positions::none && c.max_positions == kPositions && c.relative_buckets > 0 &&
         c.norm == nn::NormKind::rms && c.norm_first && c.final_norm && !c.bias && !c.output_bias &&
         c.share_embeddings && !c.scale_embeddings && c.attention_dropout_p == c.dropout_p &&
         c.ffn_dropout_p == c.dropout_p;
}

R::Key head_size() {
  return {"d_kv", [](Reader& r, const std::string& key, C& c) { c.head_dim = r.integer_or(key, 64, kSize); },
          [](const C& c, const std::string& key, Json& json) { json[key] = head_dim(c); },
          row_of(&C::head_dim)};
}

// "relu", or "gated-" and an activation. GELU is the polynomial of tanh's where it is gated.
R::Key projection(const std::string& usual) {
  constexpr const char* kGated = "gated-";
  const auto read = [=](Reader& r, const std::string& key, C& c) {
    std::string word = r.string_or(key, usual);
    c.gated = word.starts_with(kGated);
    if (c.gated) word = word.substr(std::string_view(kGated).size());
    const auto words = file_words(Activation());
    const auto found = std::ranges::find(words, word == "gelu" && c.gated ? "gelu_new" : word,
                                         [](const auto& pair) { return pair.first; });
    if (found == words.end()) r.fail(key, concat("is ", quote(word, 80), ", which is not supported"));
    c.activation = found->second;
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    const std::string word =
        c.gated && c.activation == Activation::gelu_tanh ? "gelu" : stored(c.activation).as_string();
    json[key] = (c.gated ? kGated : "") + word;
  };
  return {"feed_forward_proj", read, write, row_of(&C::gated)};
}

R::Key dropout() {
  return R::key("dropout_rate", &C::dropout_p, [](Reader& r, const std::string& key, C& c) {
    c.dropout_p = c.attention_dropout_p = c.ffn_dropout_p = r.number_or(key, 0.1, kProbability);
  });
}

// T5 1.0 scales what its tied output layer reads; 1.1 does neither. transformers 4 takes one for the other, 5
// has a key for the scale and ties what the file does not hold apart.
R::Key output_scale() { return R::field_or("scale_decoder_outputs", &C::scale_output, &C::tie_output); }

ConfigKeys<C> keys(const std::string& usual_projection) {
  return R::with_nothing({R::field("vocab_size", &C::source_vocab_size),
                          R::field("d_model", &C::embed_dim),
                          R::alias("hidden_size", "d_model"),
                          head_size(),
                          R::alias("head_dim", "d_kv"),
                          R::field("d_ff", &C::ffn_dim),
                          R::field("num_layers", &C::encoder_layers),
                          R::alias("num_hidden_layers", "num_layers"),
                          R::field_or("num_decoder_layers", &C::decoder_layers, &C::encoder_layers),
                          R::field("num_heads", &C::num_heads),
                          R::alias("num_attention_heads", "num_heads"),
                          R::field("relative_attention_num_buckets", &C::relative_buckets, 32),
                          R::field("relative_attention_max_distance", &C::relative_distance, 128),
                          projection(usual_projection),
                          {"feed_forward_proj", {}, {}, row_of(&C::activation)},
                          R::field("layer_norm_epsilon", &C::norm_eps, 1e-6),
                          dropout(),
                          {"dropout_rate", {}, {}, row_of(&C::attention_dropout_p)},
                          {"dropout_rate", {}, {}, row_of(&C::ffn_dropout_p)},
                          R::field("tie_word_embeddings", &C::tie_output, true),
                          R::constant("is_encoder_decoder", true),
                          R::field("pad_token_id", &C::pad_id, 0),
                          R::field("eos_token_id", &C::eos_id, 1),
                          R::field_or("decoder_start_token_id", &C::decoder_start_id, &C::pad_id)},
                         {"n_positions", "initializer_factor", "dense_act_fn", "is_gated_act"});
}

void add_attention(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  const int64_t rows = c.num_heads * head_dim(c);
  add_projections(map, ours, {{theirs + ".q", theirs + ".k", theirs + ".v"}, rows, rows, false});
  add_pair(map, ours + ".out_proj", theirs + ".o", false);
}

void add_feed_forward(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  if (c.gated) {
    map.push_back({ours + "linear1.weight",
                   {{theirs + "wi_0.weight", c.ffn_dim}, {theirs + "wi_1.weight", c.ffn_dim}}});
  } else {
    add_pair(map, ours + "linear1", theirs + "wi", false);
  }
  add_pair(map, ours + "linear2", theirs + "wo", false);
}

void add_stack(WeightMap& map, const C& c, bool decoder) {
  const std::string stack = decoder ? "decoder" : "encoder";
  const int64_t layers = decoder ? c.decoder_layers : c.encoder_layers, last = decoder ? 2 : 1;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string ours = concat("transformer.", stack, ".layers.", i, "."),
                      theirs = concat(stack, ".block.", i, ".layer.");
    add_attention(map, c, ours + "self_attn", theirs + "0.SelfAttention");
    if (decoder) add_attention(map, c, ours + "multihead_attn", theirs + "1.EncDecAttention");
    add_feed_forward(map, c, ours, concat(theirs, last, ".DenseReluDense."));
    for (int64_t n = 0; n <= last; ++n) {
      add_pair(map, concat(ours, "norm", n + 1), concat(theirs, n, ".layer_norm"), false);
    }
  }
  add_pair(map, concat("transformer.", stack, ".norm"), stack + ".final_layer_norm", false);
  add_pair(map, stack + "_bias", stack + ".block.0.layer.0.SelfAttention.relative_attention_bias", false);
}

WeightMap map(const C& c) {
  WeightMap map = {{"source_embedding.weight", {{kShared}}}};
  if (!c.tie_output) map.push_back({"output.weight", {{kHead}}});
  add_stack(map, c, false);
  add_stack(map, c, true);
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> extras = {
      repeated_tensor("encoder.embed_tokens.weight", kShared),
      repeated_tensor("decoder.embed_tokens.weight", kShared),
      // Published beside the others; nothing reads it.
      {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}};
  if (c.tie_output) extras.push_back(repeated_tensor(kHead, kShared));
  return extras;
}

C settle(C c, const io::SafetensorsFile& file) {
  c.tie_output = !file.contains(kHead) || file.is_repeated(kHead, kShared);
  return c;
}

Family<C> t5_like(const char* model_type, const char* architecture, const char* usual_projection) {
  Family<C> family = {.name = model_type,
                      .architecture = architecture,
                      .expresses = is_t5,
                      .keys = keys(usual_projection),
                      .map = map,
                      .extras = extras,
                      .settle = settle};
  C& c = family.defaults;
  c.positions = Positions::none, c.max_positions = kPositions;
  c.norm = nn::NormKind::rms, c.norm_first = c.final_norm = true;
  c.bias = c.output_bias = c.scale_embeddings = c.scale_scores = false;
  return family;
}

}  // namespace

Family<C> t5() {
  Family<C> family = t5_like("t5", "T5ForConditionalGeneration", "relu");
  family.keys.push_back(output_scale());
  return family;
}

// Its output layer scales nothing. Read only: T5 has room for it.
Family<C> mt5() { return t5_like("mt5", "MT5ForConditionalGeneration", "gated-gelu"); }

}  // namespace multihead::models::detail
