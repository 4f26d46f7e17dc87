// SmolLM 3: Llama whose every n-th layer has no positions.
#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::smollm3 {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_smollm3(const C& c) { return llama::is_like(c) && c.attention_bias == c.out_bias; }

// 1: the layer has positions.
std::vector<int64_t> rotated_layers(const C& c) {
  std::vector<int64_t> layers;
  for (int64_t i = 1; i <= c.num_layers; ++i) {
    layers.push_back(c.unrotated_every > 0 && i % c.unrotated_every == 0 ? 0 : 1);
  }
  return layers;
}

// "no_rope_layers" in full, or "no_rope_layer_interval", or neither.
ConfigKey<C> positions_of_layers() {
  const auto read = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.unrotated_every = r.integer_or("no_rope_layer_interval", 4, kSize);
    const Json* given = r.find(key);
    if (given == nullptr || given->is_null()) return;
    std::vector<int64_t> layers;
    if (!given->is_array()) r.fail(key, concat("must be an array, got ", quote(given->dump(), 80)));
    for (const Json& layer : given->items()) {
      layers.push_back(layer.is_integer() ? layer.as_int() : -1);
    }
    const auto first = std::find(layers.begin(), layers.end(), 0);
    c.unrotated_every = first == layers.end() ? 0 : first - layers.begin() + 1;
    if (layers != rotated_layers(c)) {
      r.fail(key, "must have a 1 for every layer, but for a 0 at a regular interval (each n-th)");
    }
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = Json::array();
    for (const int64_t layer : rotated_layers(c)) json[key].push_back(layer);
  };
  return {"no_rope_layers", read, write, row_of(&C::unrotated_every)};
}

}  // namespace

Family<C> smollm3() {
  return llama::derive("smollm3", "SmolLM3ForCausalLM", is_smollm3,
                       {llama::attention_bias(),
                        R::field("mlp_bias", &C::ffn_bias, false),
                        positions_of_layers(),
                        {"no_rope_layer_interval"},
                        llama::no_padding(),
                        R::only("use_sliding_window", false),
                        {"sliding_window"},
                        llama::layer_types()},
                       {.num_kv_heads = 4, .tied = true, .rotary_base = 2e6});
}

}  // namespace multihead::models::detail::smollm3
