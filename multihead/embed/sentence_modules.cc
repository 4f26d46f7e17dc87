// How sentence-transformers' folders speak of what follows the encoder.
#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/embed/sentence_encoder.h"

namespace multihead::embed {
namespace {

std::string text_of(const Json& json) { return json.dump(2) + "\n"; }

// The words of Pooling's config.json.
constexpr std::pair<const char*, Pooling> kModes[] = {
    {"pooling_mode_cls_token", Pooling::cls},
    {"pooling_mode_mean_tokens", Pooling::mean},
    {"pooling_mode_max_tokens", Pooling::max},
    {"pooling_mode_mean_sqrt_len_tokens", Pooling::mean_sqrt},
    {"pooling_mode_lasttoken", Pooling::last}};

Json pooling_config(const std::vector<Pooling>& pooling, int64_t dim, bool pools_prompt) {
  Json json = Json::object({{"word_embedding_dimension", dim}});
  for (const auto& [key, mode] : kModes) {
    json[key] = Json(std::find(pooling.begin(), pooling.end(), mode) != pooling.end());
  }
  json["include_prompt"] = Json(pools_prompt);
  return json;
}

}  // namespace

std::map<std::string, io::CheckpointContents> SentenceEncoder::module_files() const {
  std::map<std::string, io::CheckpointContents> folders;
  Json modules = Json::array();
  const auto add = [&](const char* kind) -> io::CheckpointContents& {
    const int64_t at = std::ssize(modules.items());
    const std::string path = at == 0 ? "" : concat(at, "_", kind);
    modules.push_back(Json::object({{"idx", at},
                                    {"name", std::to_string(at)},
                                    {"path", path},
                                    {"type", concat("sentence_transformers.models.", kind)}}));
    return folders[path];
  };
  add("Transformer");
  add("Pooling").files["config.json"] =
      text_of(pooling_config(pooling_, encoder_.embed_dim(), pools_prompt_));
  for (const DenseStep& step : dense_) {
    io::CheckpointContents& part = add("Dense");
    part.files["config.json"] =
        text_of(Json::object({{"in_features", step.weight.size(1)},
                              {"out_features", step.weight.size(0)},
                              {"bias", Json(step.bias.defined())},
                              {"activation_function", step.tanh ? "torch.nn.modules.activation.Tanh"
                                                                : "torch.nn.modules.linear.Identity"}}));
    io::TensorMap& tensors = part.tensors["model.safetensors"];
    tensors["linear.weight"] = step.weight;
    if (step.bias.defined()) tensors["linear.bias"] = step.bias;
  }
  if (normalizes_) add("Normalize");
  Json prompts = Json::object();
  for (const auto& [name, prompt] : prompts_) prompts[name] = prompt;
  std::map<std::string, std::string>& own = folders[""].files;
  own["modules.json"] = text_of(modules);
  own["sentence_bert_config.json"] =
      text_of(Json::object({{"max_seq_length", max_length_}, {"do_lower_case", Json(false)}}));
  own["config_sentence_transformers.json"] =
      text_of(Json::object({{"prompts", prompts},
                            {"default_prompt_name", default_prompt_.empty() ? Json() : Json(default_prompt_)},
                            {"similarity_fn_name", "cosine"}}));
  return folders;
}

}  // namespace multihead::embed
