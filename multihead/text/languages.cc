#include "multihead/text/languages.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"

namespace multihead::text {
namespace {

// Whether a special token is called as those of languages are, "en_XX", "eng_Latn" or "__en__", and has no other role.
bool may_be_language(const Tokenizer& tokenizer, int32_t id) {
  const SpecialTokens& special = tokenizer.special();
  const std::string& token = tokenizer.token(id);
  const bool has_role =
      token == special.bos || token == special.eos || token == special.pad || token == special.unk;
  return tokenizer.is_special(id) && !has_role && !token.starts_with('<') && !token.starts_with('[');
}

// Where the template put a language. A text has none: special tokens in it are plain characters.
std::vector<int32_t>::iterator language_in(std::vector<int32_t>& ids, const Tokenizer& tokenizer,
                                           int32_t end) {
  return std::ranges::find_if(ids, [&](int32_t id) { return id != end && may_be_language(tokenizer, id); });
}

// Marian's, which a text begins with: ">>fra<<". An unknown one would be translated as text.
void check_code(const Tokenizer& tokenizer, std::string_view text) {
  const auto length_of_code = [](std::string_view token) {
    const size_t end = token.starts_with(">>") ? token.find("<<", 2) : token.npos;
    return end == token.npos ? 0 : end + 2;
  };
  const std::string code(text.substr(0, length_of_code(text)));
  if (code.empty() || tokenizer.id(code)) return;
  std::vector<std::string> known;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string& token = tokenizer.token(id);
    if (length_of_code(token) == token.size() && !token.empty()) known.push_back(token);
  }
  MH_CHECK(known.empty(), ValueError, "the tokenizer has no language ", quote(code, 80), "; it has ",
           Enumeration(known, 20));
}

}  // namespace

int32_t language_token(const Tokenizer& tokenizer, const std::string& language) {
  const std::optional<int32_t> id = tokenizer.id(language);
  MH_CHECK(id.has_value() && may_be_language(tokenizer, *id), ValueError, "the tokenizer has no language ",
           quote(language, 80));
  return *id;
}

std::vector<int32_t> encode_source(const Tokenizer& tokenizer, std::string_view text, int32_t end,
                                   const std::string& language) {
  check_code(tokenizer, text);
  std::vector<int32_t> ids = tokenizer.encode(text, {.end = end});
  const std::string& wanted = language.empty() ? tokenizer.source_language() : language;
  if (wanted.empty()) return ids;
  const auto named = language_in(ids, tokenizer, end);
  if (named == ids.end() && language.empty()) return ids;
  const int32_t id = language_token(tokenizer, wanted);
  MH_CHECK(named != ids.end(), ValueError, "the tokenizer's template has no place for the language ",
           quote(language, 80));
  *named = id;
  return ids;
}

std::vector<int32_t> encode_target(const Tokenizer& tokenizer, std::string_view text, int32_t end) {
  std::vector<int32_t> ids = tokenizer.encode(text, {.end = end});
  const auto named = language_in(ids, tokenizer, end);
  if (named == ids.end()) return ids;
  const std::string& wanted = tokenizer.target_language();
  MH_CHECK(!wanted.empty(), ValueError, "the tokenizer puts the language ", tokenizer.token(*named),
           " around every text, and nothing says which one translations have: set "
           "\"tgt_lang\" in tokenizer_config.json");
  *named = language_token(tokenizer, wanted);
  return ids;
}

}  // namespace multihead::text
