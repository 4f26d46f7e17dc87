#include "multihead/models/config/config_keys-inl.h"

#include "multihead/core/error.h"
#include "multihead/models/generation_config.h"

namespace multihead::models::detail {
namespace {

bool is_equal(const Json& a, const Json& b) {
  return a.is_number() && b.is_number() ? a.as_double() == b.as_double() : a == b;
}

}  // namespace

void expect_value(io::ConfigReader& reader, const std::string& key, const Json& value) {
  const Json* given = reader.find(key);
  if (given == nullptr || given->is_null() || is_equal(*given, value)) return;
  const std::string got = concat("got ", quote(given->dump(), 80), ", which is not supported");
  reader.fail(key, value.is_null() ? got : concat("must be ", value.dump(), ", ", got));
}

void expect_same(io::ConfigReader& reader, const std::string& key, const std::string& original) {
  const Json *given = reader.find(key), *other = reader.find(original);
  if (given == nullptr || given->is_null() || (other != nullptr && is_equal(*given, *other))) return;
  reader.fail(key, concat("is another name of ", quote(original), ", got ", quote(given->dump(), 80), " and ",
                          other == nullptr ? "none" : quote(other->dump(), 80)));
}

Json pruned_heads_json(const PrunedHeads& pruned) {
  Json json = Json::object();
  for (size_t i = 0; i < pruned.size(); ++i) {
    if (!pruned[i].empty()) json[std::to_string(i)] = std::vector<Json>(pruned[i].begin(), pruned[i].end());
  }
  return json;
}

PrunedHeads read_pruned_heads(io::ConfigReader& reader, const std::string& key) {
  PrunedHeads pruned;
  const Json* given = reader.find(key);
  if (given == nullptr || given->is_null()) return pruned;
  const char* expected = "must be {\"layer\": [heads]}";
  if (!given->is_object()) reader.fail(key, concat(expected, ", got ", quote(given->dump(), 80)));
  for (const JsonMember& member : given->members()) {
    const std::string layer(member.key);
    const bool number =
        !layer.empty() && layer.size() < 6 && layer.find_first_not_of("0123456789") == layer.npos;
    if (!number || std::stoll(layer) >= kLayers.max || !member.value.is_array()) {
      reader.fail(key, concat(expected, ", got ", quote(layer, 80)));
    }
    const auto at = static_cast<size_t>(std::stoll(layer));
    if (pruned.size() <= at) pruned.resize(at + 1);
    for (const Json& head : member.value.items()) {
      if (!head.is_integer()) reader.fail(key, concat(expected, ", got a head ", quote(head.dump(), 80)));
      pruned[at].push_back(head.as_int());
    }
  }
  return pruned;
}

const std::vector<std::string>& neutral_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all = {
        // names and versions
        "architectures", "model_type", "_name_or_path", "name_or_path", "transformers_version",
        "_commit_hash", "auto_map", "custom_pipelines", "tokenizer_class", "unsloth_version", "unsloth_fixed",
        "transformers.js_config", "is_llama_config", "multihead",
        // how weights are stored and computed: ours become f32
        "torch_dtype", "dtype", "use_bfloat16", "torchscript", "tf_legacy_loss", "_attn_implementation",
        "attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
        "_experts_implementation", "_experts_implementation_internal", "experts_implementation",
        "_flash_attn_2_enabled", "use_flash_attn", "use_flash_attention", "chunk_size_feed_forward",
        "pretraining_tp", "xla_device",
        // what a call returns
        "output_attentions", "_output_attentions", "output_hidden_states", "return_dict", "use_return_dict",
        "output_past", "use_cache", "tie_last_hidden_states", "is_decoder",
        // heads of other tasks
        "id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task",
        "task_specific_params", "classifier_dropout", "classif_dropout",
        // the sizes that a text's vector may be cut to, for servers
        "is_matryoshka", "matryoshka_dimensions",
        // what sentence-transformers does with a head's logits (embed/text_classifier.cc)
        "sentence_transformers", "sbert_ce_default_activation_function",
        // tokenizers
        "prefix", "sep_token_id", "unk_token_id", "tokenizer_model_max_length", "tokenizer_padding_side",
        "model_max_length",
        // training
        "gradient_checkpointing"};
    for (const std::string& key : generation_keys()) all.push_back(key);
    return all;
  }();
  return keys;
}

const std::vector<std::pair<std::string, Json>>& required_values() {
  static const std::vector<std::pair<std::string, Json>> values = [] {
    std::vector<std::pair<std::string, Json>> all = {
        {"pruned_heads", Json::object()}, {"token_classification_bias", true}, {"partial_rotary_factor", 1}};
    const auto add = [&](const Json& value, std::initializer_list<const char*> names) {
      for (const char* name : names) all.emplace_back(name, value);
    };
    // Published files turn many off although their family never has them.
    add(Json(), {"quantization_config", "compression_config", "cross_attention_hidden_size",
                 "per_layer_config", "sliding_window", "original_max_position_embeddings"});
    add(false,
        {"tie_encoder_decoder", "add_cross_attention", "rope_interleaved", "is_encoder_decoder", "alibi",
         "attention_bias", "lm_head_bias", "mlp_bias", "output_router_logits", "qk_layernorm", "qk_norm",
         "scale_attn_by_inverse_layer_idx", "use_bidirectional_attention", "use_dynamic_ntk", "use_logn_attn",
         "use_mrope", "use_parallel_residual", "use_qk_norm", "use_sliding_window"});
    add(0, {"activation_dropout", "attention_dropout", "attention_probs_dropout_prob",
            "attn_logit_softcapping", "attn_pdrop", "dropout", "embd_pdrop", "embedding_dropout",
            "final_logit_softcapping", "hidden_dropout", "hidden_dropout_prob", "layerdrop", "resid_pdrop"});
    return all;
  }();
  return values;
}

}  // namespace multihead::models::detail
