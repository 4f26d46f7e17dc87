// Rows and weights shared by T5 and its encoder. Internal to models.
#pragma once

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail {

/// Distances have no end, so neither have sentences; "n_positions" means nothing.
inline constexpr int64_t kT5Positions = 1 << 16;

/// "relu", or "gated-" and an activation. GELU is the polynomial of tanh's where it is gated.
template <class C>
ConfigKey<C> t5_projection(const std::string& usual) {
  constexpr const char* kGated = "gated-";
  const auto read = [=](io::ConfigReader& r, const std::string& key, C& c) {
    std::string word = r.string_or(key, usual);
    c.gated = word.starts_with(kGated);
    const Json* gated = r.find("is_gated_act");
    if (gated != nullptr && !gated->is_null() && *gated != Json(c.gated))
      r.fail("is_gated_act", concat("contradicts ", quote(key), ", ", quote(word, 80)));
    if (c.gated) word = word.substr(std::string_view(kGated).size());
    const auto words = file_words(Activation());
    const auto activation = [&](const std::string& at, const std::string& name) {
      const auto found = std::ranges::find(words, name, [](const auto& pair) { return pair.first; });
      if (found == words.end()) r.fail(at, concat("is ", quote(name, 80), ", which is not supported"));
      return found->second;
    };
    if (word == "gelu" && c.gated) word = "gelu_new";
    c.activation = activation(key, word);
    c.activation = activation("dense_act_fn", r.string_or("dense_act_fn", word));
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    const std::string word =
        c.gated && c.activation == Activation::gelu_tanh ? "gelu" : stored(c.activation).as_string();
    json[key] = (c.gated ? kGated : "") + word;
  };
  return {"feed_forward_proj", read, write, row_of(&C::gated)};
}

template <class C>
ConfigKey<C> t5_head_size() {
  return {
      "d_kv",
      [](io::ConfigReader& r, const std::string& key, C& c) { c.head_dim = r.integer_or(key, 64, kSize); },
      [](const C& c, const std::string& key, Json& json) { json[key] = head_dim(c); }, row_of(&C::head_dim)};
}

/// The keys of all; `vocab_size` and `num_layers` are members.
template <class C>
ConfigKeys<C> t5_keys(int64_t C::*vocab_size, int64_t C::*num_layers, const std::string& usual_projection) {
  using R = Row<C>;
  const auto dropout = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.dropout_p = c.attention_dropout_p = c.ffn_dropout_p = r.number_or(key, 0.1, kProbability);
  };
  return R::with_nothing({R::field("vocab_size", vocab_size),
                          R::field("d_model", &C::embed_dim),
                          R::alias("hidden_size", "d_model"),
                          t5_head_size<C>(),
                          R::alias("head_dim", "d_kv"),
                          R::field("d_ff", &C::ffn_dim),
                          R::field("num_layers", num_layers),
                          R::alias("num_hidden_layers", "num_layers"),
                          R::field("num_heads", &C::num_heads),
                          R::alias("num_attention_heads", "num_heads"),
                          R::field("relative_attention_num_buckets", &C::relative_buckets, 32),
                          R::field("relative_attention_max_distance", &C::relative_distance, 128),
                          t5_projection<C>(usual_projection),
                          {"feed_forward_proj", {}, {}, row_of(&C::activation)},
                          R::field("layer_norm_epsilon", &C::norm_eps, 1e-6),
                          R::key("dropout_rate", &C::dropout_p, dropout),
                          {"dropout_rate", {}, {}, row_of(&C::attention_dropout_p)},
                          {"dropout_rate", {}, {}, row_of(&C::ffn_dropout_p)},
                          R::field("pad_token_id", &C::pad_id, 0)},
                         {"n_positions", "initializer_factor", "dense_act_fn", "is_gated_act"});
}

/// One of a layer's attentions.
template <class C>
void add_t5_attention(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  const int64_t rows = c.num_heads * head_dim(c);
  add_projections(map, ours, {theirs + ".", {"q", "k", "v"}, rows, rows, false});
  add_pair(map, ours + ".out_proj", theirs + ".o", false);
}

/// The feed-forward network, sub-layer `at` of its layer, and the norms of that and those before.
template <class C>
void add_t5_feed_forward(WeightMap& map, const C& c, const std::string& ours, const std::string& layer,
                         int64_t at) {
  const std::string theirs = concat(layer, at, ".DenseReluDense.");
  if (c.gated) {
    map.push_back({ours + "linear1.weight",
                   {{theirs + "wi_0.weight", c.ffn_dim}, {theirs + "wi_1.weight", c.ffn_dim}}});
  } else {
    add_pair(map, ours + "linear1", theirs + "wi", false);
  }
  add_pair(map, ours + "linear2", theirs + "wo", false);
  for (int64_t n = 0; n <= at; ++n) {
    add_pair(map, concat(ours, "norm", n + 1), concat(layer, n, ".layer_norm"), false);
  }
}

}  // namespace multihead::models::detail
