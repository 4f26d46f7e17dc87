// Writes tokenizer.json.
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/io/file_set.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

// One token or merge to a line, so the text is put together here and only strings are left to Json.
std::string vocab_json(const Model& model) {
  std::string out = "{";
  bool first = true;
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    out += concat(first ? "\n" : ",\n", "      ", json_string(model.tokens[id]), ": ", id);
    first = false;
  }
  return out + "\n    }";
}

std::string added_json(const Model& model) {
  if (model.added.empty()) return "[]";
  std::string out = "[";
  for (const AddedToken& token : model.added)
    out += concat(&token == &model.added[0] ? "\n" : ",\n", "    {\"id\": ", token.id,
                  ", \"content\": ", json_string(token.content),
                  ", \"single_word\": false, \"lstrip\": ", token.lstrip, ", \"rstrip\": ", token.rstrip,
                  ", \"normalized\": false, \"special\": ", token.special, "}");
  return out + "\n  ]";
}

std::string bpe_json(const Model& model) {
  std::string merges;
  for (const Merge& merge : model.merges.merges())
    merges += concat(merges.empty() ? "\n" : ",\n", "      [", json_string(model.tokens[merge.left]), ", ",
                     json_string(model.tokens[merge.right]), "]");
  return concat(
      "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
      "\"use_regex\": true},\n  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", "
      "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n  \"model\": {\n    "
      "\"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n    "
      "\"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n   "
      " \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": ",
      vocab_json(model), ",\n    \"merges\": [", merges, merges.empty() ? "]" : "\n    ]", "\n  }\n");
}

// One id per character: split at every character, look each up, join without spaces. A WordLevel model whose
// unknown token is missing from its vocabulary raises an error on unknown characters, which is what ours
// does.
std::string characters_json(const Model& model) {
  std::string unk = model.unk >= 0 ? model.tokens[model.unk] : "<unk>";
  while (model.unk < 0 && model.find(unk) >= 0) unk += '_';
  return concat(
      "  \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": ", json_string(kEveryCharacter),
      "}, \"behavior\": \"Isolated\", \"invert\": false},\n  \"post_processor\": null,\n  \"decoder\": "
      "{\"type\": \"Fuse\"},\n  \"model\": {\n    \"type\": \"WordLevel\",\n    \"vocab\": ",
      vocab_json(model), ",\n    \"unk_token\": ", json_string(unk), "\n  }\n");
}

}  // namespace

std::string Tokenizer::to_json() const {
  if (!model_->source.empty()) return model_->source;
  return concat(
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ",
      added_json(*model_), ",\n  \"normalizer\": null,\n",
      kind() == Kind::bpe ? bpe_json(*model_) : characters_json(*model_), "}\n");
}

std::string Tokenizer::config_json() const {
  Json config = Json::object();
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  for (const auto& [key, role] : kRoles) {
    if (const std::string& token = model_->special.*role; !token.empty()) config[key] = token;
  }
  // Otherwise transformers leaves out which text a token belongs to.
  if (model_->has_types()) {
    const char* with_types = R"(["input_ids", "token_type_ids", "attention_mask"])";
    config["model_input_names"] =
        Json::parse(model_->lacks_types ? R"(["input_ids", "attention_mask"])" : with_types);
  }
  if (model_->cuts_left) config["truncation_side"] = "left";
  if (!model_->source_language.empty()) config["src_lang"] = model_->source_language;
  if (!model_->target_language.empty()) config["tgt_lang"] = model_->target_language;
  if (!model_->chat_template.empty()) config["chat_template"] = model_->chat_template;
  config["clean_up_tokenization_spaces"] = model_->cleans_up;
  if (model_->cleans_up)
    config["clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"] = true;
  if (model_->splits_special) config["split_special_tokens"] = true;
  return config.dump(2) + "\n";
}

void Tokenizer::save(const std::string& path) const {
  if (std::filesystem::path(path).extension() == ".json") return write_file_atomically(path, to_json());
  io::save_files(path, io::kTokenizerFiles, [&](io::DirectoryWriter& writer) {
    writer.write("tokenizer.json", to_json());
    writer.write("tokenizer_config.json", config_json());
  });
}

}  // namespace multihead::text
