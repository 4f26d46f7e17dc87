// ByT5 (Xue et al. 2021): the bytes of UTF-8 are the tokens, so that a folder has no vocabulary.
#include "multihead/text/tokenizer/files/tokenizer_json/overrides-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text {
namespace {

using tokenizer_json::Reader;

Json special(int64_t id, const std::string& content, bool strips) {
  Json token = json_of_special(id, content);
  token["lstrip"] = token["rstrip"] = strips;
  return token;
}

}  // namespace

std::string json_of_byt5(const std::filesystem::path& folder) {
  const Json config = json_in(folder, "tokenizer_config.json");
  const Json& given = Reader::member(config, "tokenizer_class");
  const Json name =
      given.is_null() ? Reader::member(json_in(folder, "config.json"), "tokenizer_class") : given;
  if (name != Json("ByT5Tokenizer")) return {};
  Json vocab = Json::object(), added = Json::array();
  for (const char* token : {"<pad>", "</s>", "<unk>"}) {
    added.push_back(special(static_cast<int64_t>(vocab.size()), token, true));
    vocab[token] = static_cast<int64_t>(vocab.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    vocab[bytes_to_symbols({&one, 1})] = static_cast<int64_t>(vocab.size());
  }
  const int64_t ids = extra_ids_of(config, 125);
  const auto bytes = static_cast<int64_t>(vocab.size());
  for (int64_t i = 0; i < ids; ++i) added.push_back(special(bytes + i, concat("<extra_id_", i, ">"), false));
  const Json step = Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}});
  return Json::object(
             {{"version", "1.0"},
              {"added_tokens", added},
              {"pre_tokenizer", step},
              {"post_processor",
               json_of_template("", "</s>", 0, Json::object({{"</s>", template_token("</s>", 1)}}))},
              {"decoder", step},
              {"model", Json::object({{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}})}})
      .dump();
}

}  // namespace multihead::text
