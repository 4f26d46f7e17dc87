// Reads tokenizers from the files that come with models.
#include <algorithm>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/io/file_set.h"
#include "multihead/io/gguf.h"
#include "multihead/text/tokenizer/files/tokenizer_json/overrides-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/sentencepiece_model-inl.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;
using tokenizer_json::Reader;

void read_flags(const Json& config, Model& model, const std::string& file,
                const std::optional<std::string>& model_type) {
  const auto is_set = [&](const char* key) { return Reader::member(config, key) == Json(true); };
  const bool is_bpe = model.kind == Tokenizer::Kind::bpe || model.kind == Tokenizer::Kind::character_bpe;
  model.splits_special = is_set("split_special_tokens");
  const Json& side = Reader::member(config, "truncation_side");
  MH_CHECK(side.is_null() || side == Json("left") || side == Json("right"), FormatError, file,
           ": truncation_side must be \"left\" or \"right\", got ", side.dump());
  model.cuts_left = side.is_null() ? model.truncation && model.truncation->from_left : side == Json("left");
  for (const auto& [key, language] :
       {std::pair("src_lang", &model.source_language), {"tgt_lang", &model.target_language}}) {
    const Json& given = Reader::member(config, key);
    MH_CHECK(given.is_null() || given.is_string(), FormatError, file, ": ", key, " must be a string, got ",
             given.dump());
    if (given.is_string()) *language = given.as_string();
  }
  const Json& inputs = Reader::member(config, "model_input_names");
  const auto is_types = [](const Json& name) { return name == Json("token_type_ids"); };
  const bool gives_types = inputs.is_array() ? std::ranges::any_of(inputs.items(), is_types)
                                             : !model_type || class_gives_types(config, *model_type);
  model.lacks_types = model.has_types() && !gives_types;
  // As transformers 5 does, which would not take spaces from texts of BPE otherwise.
  model.cleans_up =
      is_set("clean_up_tokenization_spaces") &&
      (!is_bpe || is_set("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"));
}

// Roles: tokenizer_config.json gives each as a string or as {"content": string}. `model_type` is a folder's.
void read_config(std::string_view json, Model& model, const std::string& file,
                 const std::optional<std::string>& model_type = std::nullopt) {
  const Json config = Json::parse(json, file);
  MH_CHECK(config.is_object(), FormatError, file, ": must be an object, got ", name(config.kind()));
  SpecialTokens special;
  for (const auto& [key, role] : kRoles) {
    const Json& given = Reader::member(config, key);
    if (given.is_null()) continue;
    const Json& value = given.is_object() ? Reader::member(given, "content") : given;
    MH_CHECK(value.is_string(), FormatError, file, ": ", key, " must be a string, got ", name(value.kind()));
    special.*role = value.as_string();
    MH_CHECK(model.find(special.*role) >= 0, FormatError, file, ": ", key, " ", quote(special.*role),
             " is not a token of tokenizer.json");
  }
  model.special = special;
  read_flags(config, model, file, model_type);
  model.chat_template = chat_template_of(config, file);
}

// The tokenizer.json of a folder, or what its other files say in that form; and the file that said it.
std::pair<std::string, std::string> json_of_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  const auto holds = [&](const char* file) { return std::filesystem::exists(folder / file, ignored); };
  const std::string file = (folder / "tokenizer.json").string();
  if (!holds("tokenizer.json")) {
    for (const auto& source : {json_of_sentencepiece, json_of_byt5})
      if (std::string json = source(folder); !json.empty()) return {json, folder.string()};
    if (holds("vocab.txt")) return {json_of_vocab_txt(folder), (folder / "vocab.txt").string()};
    MH_CHECK(!holds("vocab.json"), FormatError, folder.string(),
             ": has no tokenizer.json but vocab.json; write one with transformers: python3 -c \"import "
             "transformers; transformers.AutoTokenizer.from_pretrained('DIR').save_pretrained('DIR')\"");
  }
  io::check_complete(folder.string(), "tokenizer.json");
  return {read_file(file), file};
}

std::shared_ptr<Model> read_model(std::string_view json, const std::string& name,
                                  BytePairs* pairs = nullptr) {
  auto model = std::make_shared<Model>();
  model->source = json;
  const Json root = Json::parse(json, name);
  Reader reader(root, name, *model, pairs);
  reader.check_object(root, "document");
  if (const Json* version = Reader::find(root, "version"); version && *version != "1.0")
    reader.unsupported("version", version->dump());
  read_normalizer(reader);
  read_model(reader);
  read_post_processor(reader);
  read_lengths(reader);
  return model;
}

}  // namespace

Json json_in(const std::filesystem::path& folder, const char* file) {
  const std::filesystem::path path = folder / file;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::object();
  return Json::parse(read_file(path.string()), path.string());
}

int64_t extra_ids_of(const Json& config, int64_t missing) {
  const Json& given = Reader::member(config, "extra_ids");
  const int64_t extra = given.is_integer() ? given.as_int() : missing;
  MH_CHECK(extra >= 0 && extra <= 100000, FormatError,
           "tokenizer_config.json: extra_ids must be in [0, 100000], got ", extra);
  return extra;
}

std::string model_type_of(const std::filesystem::path& folder) {
  const Json json = json_in(folder, "config.json");
  const Json* type = json.is_object() ? json.find("model_type") : nullptr;
  return type != nullptr && type->is_string() ? type->as_string() : "";
}

Tokenizer Model::of(BytePairs pairs, std::string_view rules, std::string whole, std::string_view config) {
  const std::shared_ptr<Model> model = read_model(rules, "tokenizer.json", &pairs);
  model->source = std::move(whole);
  read_config(config, *model, "tokenizer_config.json");
  return Tokenizer(model);
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  return Tokenizer(read_model(json, name));
}

Tokenizer Tokenizer::from_contents(std::string_view json, std::string_view config_json) {
  const std::shared_ptr<Model> model = read_model(json, "tokenizer.json");
  read_config(config_json, *model, "tokenizer_config.json");
  return Tokenizer(model);
}

Tokenizer Tokenizer::load(const std::string& name) {
  const std::filesystem::path path = name;
  if (io::is_gguf_file(name)) return load_gguf_tokenizer(name);
  std::error_code ignored;
  const std::string ending = path.extension().string();
  if (ending != ".json" && ending != ".model" && ending != ".spm") io::check_complete(name, "tokenizer.json");
  if (!std::filesystem::is_directory(path, ignored)) {
    if (path.extension() == ".model") {
      SentencePieceModel model = read_sentencepiece(name);
      model.is_bare = model.replaces_longest = true;
      return from_json(tokenizer_json_of(model), name);
    }
    return from_json(path.extension() == ".spm" ? json_of_marian(path) : read_file(name), name);
  }
  const auto& [json, file] = json_of_folder(path);
  std::shared_ptr<Model> model = read_model(json, file);
  const auto config = path / "tokenizer_config.json";
  const std::string text = std::filesystem::exists(config, ignored) ? read_file(config.string()) : "{}";
  const std::string type = model_type_of(path);
  const Json settings = Json::parse(text, config.string());
  if (const auto other = overridden_json(*model, settings, type)) model = read_model(*other, file);
  read_config(text, *model, config.string(), type);
  read_chat_template_file(path, *model);
  return Tokenizer(model);
}

}  // namespace multihead::text
