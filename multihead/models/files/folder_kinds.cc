#include "multihead/models/files/folder_kinds-inl.h"

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/json.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/gguf.h"
#include "multihead/models/files/gguf_encoder-inl.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead::models {

std::string detail::config_path(const std::string& folder) {
  namespace fs = std::filesystem;
  io::check_complete(folder, "config.json");
  std::error_code ignored;
  fs::path at = fs::path(folder) / "config.json";
  if (!fs::exists(at, ignored) && is_adapter_folder(folder)) at = base_of_adapter(folder) + "/config.json";
  MH_CHECK(fs::exists(at, ignored), IoError, quote(folder, 400), " has no config.json: it is not a model's");
  return at.string();
}

std::string detail::encoder_class(io::ConfigReader& reader) {
  const std::vector<std::string> given = reader.strings_or("architectures", {});
  if (given.empty()) return {};
  const bool alone = given[0].ends_with("EncoderModel") || given[0].ends_with("ForTokenClassification");
  return alone ? given[0] : std::string();
}

namespace {

using detail::family_named;

// Which kinds of models a folder may be loaded as.
struct FolderKinds {
  bool encoder = false, seq2seq = false, image_encoder = false;
  bool encoder_alone = false;  // of the families that are both
};

FolderKinds kinds_of(const std::string& folder) {
  if (is_gguf(folder)) return {.encoder = detail::is_gguf_encoder(folder)};
  const std::string path = detail::config_path(folder);
  const Json json = io::load_json(path);
  const Json* type = json.is_object() ? json.find("model_type") : nullptr;
  if (type == nullptr || !type->is_string()) return {};
  io::ConfigReader reader(json, path);
  return {.encoder = family_named<EncoderConfig>(type->as_string()) != nullptr,
          .seq2seq = family_named<Seq2SeqConfig>(type->as_string()) != nullptr,
          .image_encoder = family_named<ImageEncoderConfig>(type->as_string()) != nullptr,
          .encoder_alone = !detail::encoder_class(reader).empty()};
}

}  // namespace

bool is_seq2seq_folder(const std::string& folder) {
  const FolderKinds kinds = kinds_of(folder);
  return kinds.seq2seq && !(kinds.encoder && kinds.encoder_alone);
}
bool is_encoder_folder(const std::string& folder) {
  const FolderKinds kinds = kinds_of(folder);
  return kinds.encoder && (!kinds.seq2seq || kinds.encoder_alone);
}
bool is_image_folder(const std::string& folder) { return kinds_of(folder).image_encoder; }
bool has_encoder(const std::string& folder) { return kinds_of(folder).encoder; }

}  // namespace multihead::models
