#include <algorithm>
#include <unordered_map>

#include "multihead/core/files.h"
#include "multihead/text/chat/chat_template-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/overrides-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text {

using tokenizer_json::Reader;

namespace {

struct Role {
  const char* key;
  const char* usual;
};
// In the order in which transformers adds those that a file lacks.
constexpr Role kRoleTokens[] = {{"unk_token", "[UNK]"},
                                {"sep_token", "[SEP]"},
                                {"pad_token", "[PAD]"},
                                {"cls_token", "[CLS]"},
                                {"mask_token", "[MASK]"}};

// Without white space at their ends.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(strip_back(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  return lines;
}

// A token to a line, whose number is the id. Of a token that is listed twice the last line counts, as in
// transformers; the ids of the others, and of empty lines, get names that no text is cut into.
std::vector<std::string> tokens_of(const std::string& text, const std::string& file) {
  std::vector<std::string> tokens = lines_of(text);
  std::unordered_map<std::string, size_t> last;
  for (size_t i = 0; i < tokens.size(); ++i) {
    MH_CHECK(find_invalid_utf8(tokens[i]) == std::string::npos, FormatError, file, ": line ", i + 1,
             " is not UTF-8");
    last[tokens[i]] = i;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].empty() && last[tokens[i]] == i) continue;
    tokens[i] = concat("[no token ", i, "]");
    MH_CHECK(!last.contains(tokens[i]), FormatError, file, ": ", quote(tokens[i]), " must not be a token");
  }
  return tokens;
}

std::string content_of(const Json& config, const Role& role) {
  const Json& given = Reader::member(config, role.key);
  const Json& content = given.is_object() ? Reader::member(given, "content") : given;
  return content.is_string() ? content.as_string() : role.usual;
}

// ESM's (EsmTokenizer): every token is found in the text as it is, and a word between them is unknown.
std::string json_of_letters(const std::vector<std::string>& tokens, const std::string& file,
                            const Json& config) {
  Json vocab = Json::object(), added = Json::array(), specials = Json::object();
  for (const std::string& token : tokens) vocab[token] = static_cast<int64_t>(vocab.size());
  const auto special = [&](const char* key, const char* usual) {
    const std::string token = content_of(config, {key, usual});
    MH_CHECK(vocab.find(token) != nullptr, FormatError, file, ": has no token ", token, ", the ", key);
    specials[token] = template_token(token, vocab.find(token)->as_int());
    return token;
  };
  const std::string unk = special("unk_token", "<unk>"), cls = special("cls_token", "<cls>"),
                    eos = special("eos_token", "<eos>");
  special("pad_token", "<pad>");
  special("mask_token", "<mask>");
  for (const std::string& token : tokens) {
    Json one = json_of_special(vocab.find(token)->as_int(), token);
    one["special"] = specials.find(token) != nullptr;
    added.push_back(one);
  }
  return Json::object(
             {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", nullptr},
              {"pre_tokenizer", Json::object({{"type", "WhitespaceSplit"}})},
              {"post_processor", json_of_template(cls, eos, 0, specials)},
              {"decoder", Json::object({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}})},
              {"model", Json::object({{"type", "WordPiece"},
                                      {"unk_token", unk},
                                      {"continuing_subword_prefix", "##"},
                                      {"max_input_chars_per_word", 0},
                                      {"vocab", vocab}})}})
      .dump();
}

}  // namespace

// tokenizer_config.json may say how text is cleaned, and what special tokens are called.
std::string json_of_vocab_txt(const std::filesystem::path& folder) {
  const std::string file = (folder / "vocab.txt").string();
  const Json config = json_in(folder, "tokenizer_config.json");
  Json normalizer = Json::object();
  for (const auto& [ours, theirs] : {std::pair("lowercase", "do_lower_case"),
                                     {"strip_accents", "strip_accents"},
                                     {"handle_chinese_chars", "tokenize_chinese_chars"}}) {
    if (const Json& value = Reader::member(config, theirs); value.is_bool()) normalizer[ours] = value;
  }
  std::vector<std::string> tokens = tokens_of(read_file(file), file);
  if (Reader::member(config, "tokenizer_class") == Json("EsmTokenizer")) {
    return json_of_letters(tokens, file, config);
  }
  const Json& name = Reader::member(config, "tokenizer_class");
  MH_CHECK(class_reads_word_pieces(config), FormatError, file, ": how ", name.as_string(),
           " cuts and frames texts is not supported; write a tokenizer.json with transformers");
  BertTokens special;
  std::string* const contents[] = {&special.unk, &special.sep, &special.pad, &special.cls, &special.mask};
  for (size_t i = 0; i < std::size(kRoleTokens); ++i) {
    *contents[i] = content_of(config, kRoleTokens[i]);
    if (std::find(tokens.begin(), tokens.end(), *contents[i]) != tokens.end()) continue;
    MH_CHECK(i > 0, FormatError, file, ": has no token ", *contents[i], ", the unknown one");
    tokens.push_back(*contents[i]);
  }
  return json_of_words(tokens, normalizer, special);
}

Json template_token(const std::string& token, int64_t id) {
  return Json::object({{"id", token}, {"ids", std::vector<Json>{id}}, {"tokens", std::vector<Json>{token}}});
}

Json json_of_template(const std::string& first, const std::string& end, int second_type, const Json& tokens) {
  const auto piece = [](const char* kind, const std::string& id, int type) {
    return Json::object({{kind, Json::object({{"id", id}, {"type_id", type}})}});
  };
  std::vector<Json> single;
  if (!first.empty()) single.push_back(piece("SpecialToken", first, 0));
  single.push_back(piece("Sequence", "A", 0));
  single.push_back(piece("SpecialToken", end, 0));
  std::vector<Json> pair = single;
  pair.push_back(piece("Sequence", "B", second_type));
  pair.push_back(piece("SpecialToken", end, second_type));
  return Json::object({{"type", "TemplateProcessing"},
                       {"single", Json(single)},
                       {"pair", Json(pair)},
                       {"special_tokens", tokens}});
}

std::string json_of_words(const std::vector<std::string>& tokens, const Json& normalizer,
                          const BertTokens& of) {
  Json vocab = Json::object(), added = Json::array(), specials = Json::object();
  for (const std::string& token : tokens) vocab[token] = static_cast<int64_t>(vocab.size());
  for (const std::string& token : {of.pad, of.unk, of.cls, of.sep, of.mask}) {
    if (specials.contains(token)) continue;
    added.push_back(json_of_special(vocab.find(token)->as_int(), token));
    specials[token] = template_token(token, vocab.find(token)->as_int());
  }
  Json full = Json::object({{"type", "BertNormalizer"},
                            {"clean_text", true},
                            {"handle_chinese_chars", true},
                            {"strip_accents", nullptr},
                            {"lowercase", true}});
  for (const auto& [key, value] : normalizer.members()) full[key] = value;
  return Json::object(
             {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", full},
              {"pre_tokenizer", Json::object({{"type", "BertPreTokenizer"}})},
              {"post_processor", json_of_template(of.cls, of.sep, 1, specials)},
              {"decoder", Json::object({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}})},
              {"model", Json::object({{"type", "WordPiece"},
                                      {"unk_token", of.unk},
                                      {"continuing_subword_prefix", "##"},
                                      {"max_input_chars_per_word", 100},
                                      {"vocab", vocab}})}})
      .dump();
}

}  // namespace multihead::text
