#include <unordered_set>

#include "multihead/core/files.h"
#include "multihead/text/tokenizer_json/reader-inl.h"

namespace multihead::text {

using tokenizer_json::Reader;

namespace {

constexpr const char* kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

// A token to a line.
std::vector<std::string> tokens_of(const std::string& text, const std::string& file) {
  std::vector<std::string> tokens;
  std::unordered_set<std::string> seen;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string token = text.substr(at, end - at);
    if (token.ends_with('\r')) token.pop_back();
    const size_t line = tokens.size() + 1;
    MH_CHECK(!token.empty() && seen.insert(token).second, FormatError, file, ": line ", line, " is ",
             token.empty() ? "empty" : "the same token as one before: " + quote(token));
    MH_CHECK(find_invalid_utf8(token) == std::string::npos, FormatError, file, ": line ", line,
             " is not UTF-8");
    tokens.push_back(std::move(token));
    at = end + 1;
  }
  for (const char* token : kSpecial)
    MH_CHECK(seen.contains(token), FormatError, file, ": has no token ", token);
  return tokens;
}

}  // namespace

// tokenizer_config.json may say how text is cleaned.
std::string json_of_vocab_txt(const std::filesystem::path& folder) {
  const std::string file = (folder / "vocab.txt").string();
  Json config = Json::object();
  std::error_code ignored;
  if (const auto path = folder / "tokenizer_config.json"; std::filesystem::exists(path, ignored)) {
    config = Json::parse(read_file(path.string()), path.string());
  }
  Json normalizer = Json::object();
  for (const auto& [ours, theirs] : {std::pair("lowercase", "do_lower_case"),
                                     {"strip_accents", "strip_accents"},
                                     {"handle_chinese_chars", "tokenize_chinese_chars"}}) {
    if (const Json& value = Reader::member(config, theirs); value.is_bool()) normalizer[ours] = value;
  }
  return json_of_words(tokens_of(read_file(file), file), normalizer);
}

std::string json_of_words(const std::vector<std::string>& tokens, const Json& normalizer) {
  Json vocab = Json::object(), added = Json::array(), specials = Json::object();
  for (const std::string& token : tokens) vocab[token] = static_cast<int64_t>(vocab.size());
  for (const char* token : kSpecial) {
    added.push_back(json_of_special(vocab.find(token)->as_int(), token));
    specials[token] = Json::object({{"id", token},
                                    {"ids", Json(std::vector<Json>{*vocab.find(token)})},
                                    {"tokens", Json(std::vector<Json>{token})}});
  }
  Json full = Json::object({{"type", "BertNormalizer"},
                            {"clean_text", true},
                            {"handle_chinese_chars", true},
                            {"strip_accents", nullptr},
                            {"lowercase", true}});
  for (const auto& [key, value] : normalizer.members()) full[key] = value;
  const auto special = [](const char* token, int type) {
    return Json::object({{"SpecialToken", Json::object({{"id", token}, {"type_id", type}})}});
  };
  const auto place = [](const char* which, int type) {
    return Json::object({{"Sequence", Json::object({{"id", which}, {"type_id", type}})}});
  };
  const std::vector<Json> single = {special("[CLS]", 0), place("A", 0), special("[SEP]", 0)};
  std::vector<Json> pair = single;
  pair.push_back(place("B", 1)), pair.push_back(special("[SEP]", 1));
  return Json::object(
             {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", full},
              {"pre_tokenizer", Json::object({{"type", "BertPreTokenizer"}})},
              {"post_processor", Json::object({{"type", "TemplateProcessing"},
                                               {"single", Json(single)},
                                               {"pair", Json(pair)},
                                               {"special_tokens", specials}})},
              {"decoder", Json::object({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}})},
              {"model", Json::object({{"type", "WordPiece"},
                                      {"unk_token", "[UNK]"},
                                      {"continuing_subword_prefix", "##"},
                                      {"max_input_chars_per_word", 100},
                                      {"vocab", vocab}})}})
      .dump();
}

}  // namespace multihead::text
