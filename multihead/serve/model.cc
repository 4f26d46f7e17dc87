#include "multihead/serve/model.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/io/gguf.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead::serve {
namespace {

namespace fs = std::filesystem;

Model::Any load_any(const std::string& path, std::optional<nn::WeightDtype> weights) {
  const auto dense = weights.value_or(nn::WeightDtype::f32);
  std::error_code ignored;
  const bool is_gguf = io::is_gguf_file(path);
  if (!is_gguf && embed::has_linear_head(path)) return embed::TextClassifier::load(path, dense);
  if (!is_gguf && fs::exists(fs::path(path) / "modules.json", ignored))
    return embed::SentenceEncoder::load(path, weights);
  if (!is_gguf && models::is_image_folder(path))
    throw ValueError(concat(path, ": models of images are not served"));
  if (!is_gguf && models::is_seq2seq_folder(path))
    throw ValueError(concat(path, ": translators are not served"));
  if (!is_gguf && models::has_encoder(path)) {
    const auto head =
        models::is_encoder_folder(path) ? models::encoder_head(path) : models::EncoderHead::none;
    if (head == models::EncoderHead::classification) return embed::TextClassifier::load(path, dense);
    return embed::SentenceEncoder::load(path, weights);
  }
  return Writer{load_with_tokenizer(path, weights, true), models::load_generation_config(path)};
}

}  // namespace

const text::Tokenizer& Model::tokenizer() const {
  if (const auto* writer = std::get_if<Writer>(&any)) return writer->tokenizer;
  if (const auto* encoder = std::get_if<embed::SentenceEncoder>(&any)) return encoder->tokenizer();
  return std::get<embed::TextClassifier>(any).tokenizer();
}

const char* Model::kind() const {
  constexpr const char* kKinds[] = {"language model", "encoder", "classifier"};
  return kKinds[any.index()];
}

Model named_model(const std::string& name, Model::Any any, const std::string& path) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.name = name,
          .path = path,
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .any = std::move(any)};
}

Model load_model(const std::string& name, const std::string& path, std::optional<nn::WeightDtype> weights) {
  return named_model(name, load_any(path, weights), path);
}

}  // namespace multihead::serve
