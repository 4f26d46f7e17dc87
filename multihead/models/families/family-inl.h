// A family of models as files have it. Each is one file of families/ and one line of families.cc. Internal to
// models.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "multihead/models/config/config_keys-inl.h"
#include "multihead/models/weight_map.h"

namespace multihead::models::detail {

template <class Config>
struct Family {
  std::string name;                  ///< "model_type" in config.json …
  std::string architecture;          ///< the class that transformers loads it as
  bool (*expresses)(const Config&);  ///< but for fields stored `later`: those have a key or their default
  ConfigKeys<Config> keys;           ///< in the order in which they are written
  Config defaults = {};              ///< what "model_type" alone says
  /// The class without the output layer, where it is not "…Model" of the other.
  std::string base = {};
  /// None: our own names.
  WeightMap (*map)(const Config&) = nullptr;
  std::string prefix = {};  ///< of names in the map, which files may lack
  std::vector<ExtraTensor> (*extras)(const Config&) = nullptr;
  /// Tensors that its readers want besides the map's.
  void (*complete)(const Config&, io::TensorMap&) = nullptr;
  /// … which families may share: whether a config.json is this one's. Without it, it has what no other claims.
  bool (*claims)(io::ConfigReader&) = nullptr;
  /// Completes a configuration from the weights.
  Config (*settle)(Config, const io::SafetensorsFile&) = nullptr;
};

/// All of a kind of models; the last is our own, which expresses everything.
template <class Config>
const std::vector<Family<Config>>& families();
template <>
const std::vector<Family<LanguageModelConfig>>& families();
template <>
const std::vector<Family<Seq2SeqConfig>>& families();
template <>
const std::vector<Family<EncoderConfig>>& families();
template <>
const std::vector<Family<ImageEncoderConfig>>& families();

/// "rope_parameters" (transformers 5) or "rope_theta" and "rope_scaling" (4), and for both when written.
/// Fails for kinds of scaling that we do not have.
/// A family may keep the base under another name and rotate a part of each head.
struct RotaryNames {
  const char* base = "rope_theta";
  const char* fraction = nullptr;
  double default_fraction = 1;
  double default_base = 10000;
};
ConfigKey<LanguageModelConfig> rotary_key(RotaryNames names = {});
/// The same for an encoder, whose scaling is linear, or "ntk" as GTE's remote code has it.
ConfigKey<EncoderConfig> encoder_rotary_key(const char* base, double default_base);
/// "use_parallel_residual": kBlock or a sequential block; kDefault where the key is missing.
template <nn::Block kBlock, bool kDefault>
ConfigKey<LanguageModelConfig> parallel_key() {
  using C = LanguageModelConfig;
  return {"use_parallel_residual",
          [](io::ConfigReader& r, const std::string& key, C& c) {
            c.block = r.boolean_or(key, kDefault) ? kBlock : nn::Block::sequential;
          },
          [](const C& c, const std::string& key, Json& json) { json[key] = c.block == kBlock; },
          row_of(&C::block)};
}
/// The sizes of most models, under the names that transformers gives them.
template <class Config>
ConfigKeys<Config> size_keys(const ConfigKey<Config>& context = Row<Config>::field("max_position_embeddings",
                                                                                   &Config::context)) {
  using R = Row<Config>;
  return {R::field("vocab_size", &Config::vocab_size),
          context,
          R::field("hidden_size", &Config::embed_dim),
          R::field("intermediate_size", &Config::ffn_dim),
          R::field("num_hidden_layers", &Config::num_layers),
          R::field("num_attention_heads", &Config::num_heads)};
}
/// BERT's epsilon, dropout and initial weights; and its sizes and activation before them.
ConfigKeys<EncoderConfig> dropout_keys(double norm_eps, double dropout = 0.1);
ConfigKeys<EncoderConfig> bert_keys(const ConfigKey<EncoderConfig>& context, double norm_eps);
/// "architectures", by which an encoder's head is known; `stem` is "Bert" of BertModel. "id2label" and
/// "problem_type" follow.
ConfigKeys<EncoderConfig> head_keys(const std::string& stem);
template <class Config>
ConfigKey<Config> labels_key();
/// "problem_type", which says how a classifier's logits become scores.
template <class Config>
ConfigKey<Config> problem_key();
/// The prefix of an encoder's weights, which models without a head are kept without.
std::string root_of(const EncoderConfig& c, const char* prefix);
/// The names of a masked_lm head's dense layer, norm and bias, if there is one.
void add_masked_lm(WeightMap& map, const EncoderConfig& c, const char* dense, const char* norm,
                   const char* bias);
/// RoBERTa's names of the pooler and of the heads; `root` stands before those of the encoder.
void add_roberta_heads(WeightMap& map, const EncoderConfig& c, const std::string& root);
/// A `settle` of encoders whose files have a pooler or not, and of those that have it with a classifier.
EncoderConfig settle_pooler(EncoderConfig c, const io::SafetensorsFile& file);
EncoderConfig settle_by_head(EncoderConfig c, const io::SafetensorsFile& file);
/// The parts of it: one object of "rope_parameters" but for its base, and such an object.
RotaryScaling read_rotary_scaling(io::ConfigReader& rope, int64_t context);
Json rotary_json(const LanguageModelConfig& c);
/// The frequencies that transformers once saved with each layer.
ExtraTensor rotary_buffers(const LanguageModelConfig& c);

/// The weight of a layer and, with `bias`, its bias: `ours`.weight is stored as `theirs`.weight.
void add_pair(WeightMap& map, const std::string& ours, const std::string& theirs, bool bias = true);
/// Several of them, after these prefixes.
void add_pairs(WeightMap& map, const std::string& ours, const std::string& theirs,
               std::initializer_list<std::pair<const char*, const char*>> names, bool bias = true);
/// Tensors that files may hold and nothing reads, by the ends of their names.
std::vector<ExtraTensor> unread(std::initializer_list<const char*> suffixes);

/// Projections of queries, keys and values, one matrix here and three there.
struct StoredProjections {
  std::string prefix;
  std::array<const char*, 3> names;
  int64_t query_rows;
  int64_t key_rows;
  bool bias = true;
};
/// They are in_proj of `attention`.
void add_projections(WeightMap& map, const std::string& attention, const StoredProjections& stored);

}  // namespace multihead::models::detail
