// Rows and weights that Llama shares with families that differ from it by a field or two. Internal to models.
#pragma once

#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::llama {

using Keys = ConfigKeys<LanguageModelConfig>;

/// How transformers' defaults differ between the families.
struct Defaults {
  int64_t num_kv_heads = 0;  ///< where a file does not name it; 0, and null: num_heads
  int64_t head_dim = 0;
  const char* activation_key = "hidden_act";
  Activation activation = Activation::silu;
  bool tied = false;
  double norm_eps = 1e-6;
  double rotary_base = 10000;
};

/// Llama with other rows of config.json after its own, and other models of its kind: rotary positions, RMS
/// norm before each sub-layer, gated networks.
Family<LanguageModelConfig> derive(const char* name, const char* architecture,
                                   bool (*expresses)(const LanguageModelConfig&), const Keys& keys,
                                   Defaults defaults = {});
bool is_like(const LanguageModelConfig& c);
/// The names of its weights, with other matrices or norms of a layer.
using AddLayer = void (*)(WeightMap& map, const LanguageModelConfig& c, const std::string& ours,
                          const std::string& theirs);
WeightMap weight_map(const LanguageModelConfig& c, AddLayer add_layer);
void add_layer_weights(WeightMap& map, const LanguageModelConfig& c, const std::string& ours,
                       const std::string& theirs);
/// Those of them that are not attention's: the gated network and both norms.
void add_network_weights(WeightMap& map, const LanguageModelConfig& c, const std::string& ours,
                         const std::string& theirs);

/// The norms after both sub-layers.
void add_post_norms(WeightMap& map, const std::string& ours, const std::string& theirs);
/// "layer_types": all layers must be of the one kind that the other keys imply.
Keys::value_type layer_types();
/// Layers from max_window_layers on have a window; ours have one for all or none.
Keys::value_type refuse_windows();
/// "pad_token_id": null, where transformers would take a token of the published vocabulary, which others lack.
Keys::value_type no_padding();
/// One field for the biases of all four projections.
Keys::value_type attention_bias();

}  // namespace multihead::models::detail::llama
