#include "multihead/text/languages.h"

#include <algorithm>
#include <optional>

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

// The language that the template puts around a text.
std::optional<int32_t> language_of_template(const Tokenizer& tokenizer, int32_t end) {
  const std::vector<int32_t> frame = tokenizer.encode("");
  const auto named =
      std::ranges::find_if(frame, [&](int32_t id) { return id != end && may_be_language(tokenizer, id); });
  return named != frame.end() ? std::optional(*named) : std::nullopt;
}

std::vector<int32_t> encode_in(const Tokenizer& tokenizer, std::string_view text, int32_t end,
                               const std::string& language) {
  std::vector<int32_t> ids = tokenizer.encode(text, {.end = end});
  if (language.empty()) return ids;
  const int32_t wanted = language_token(tokenizer, language);
  const std::optional<int32_t> named = language_of_template(tokenizer, end);
  MH_CHECK(named.has_value(), ValueError, "the tokenizer's template has no place for the language ",
           quote(language, 80));
  *std::ranges::find(ids, *named) = wanted;
  return ids;
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
  if (!language.empty()) return encode_in(tokenizer, text, end, language);
  const bool has_place = language_of_template(tokenizer, end).has_value();
  return encode_in(tokenizer, text, end, has_place ? tokenizer.source_language() : "");
}

std::vector<int32_t> encode_target(const Tokenizer& tokenizer, std::string_view text, int32_t end) {
  const std::optional<int32_t> named = language_of_template(tokenizer, end);
  if (!named) return tokenizer.encode(text, {.end = end});
  MH_CHECK(!tokenizer.target_language().empty(), ValueError, "the tokenizer puts the language ",
           tokenizer.token(*named),
           " around every text, and nothing says which one translations have: set "
           "\"tgt_lang\" in tokenizer_config.json");
  return encode_in(tokenizer, text, end, tokenizer.target_language());
}

}  // namespace multihead::text
