#include <algorithm>
#include <set>

#include "multihead/core/text/utf8.h"
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

int32_t vocab_id(const Reader& in, std::string_view token, const Json& value) {
  // The place is spelt out only when it is needed: there are many tokens.
  if (!value.is_integer() || value.as_int() < 0 || value.as_int() >= INT32_MAX)
    in.token_id(value, "model.vocab[" + quote(token) + "]");
  return static_cast<int32_t>(value.as_int());
}

// `id_in_vocab` of a token's content and id: its id in the vocabulary, -1 if it is not there.
template <class IdInVocab>
void read_added(Reader& in, const IdInVocab& id_in_vocab) {
  const Json* list = Reader::find(in.root, "added_tokens");
  if (list == nullptr) return;
  if (!list->is_array()) in.wrong("added_tokens", "an array", *list);
  std::set<std::string> seen;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = concat("added_tokens[", i, "]");
    const Json& entry = list->at(i);
    if (!entry.is_object()) in.wrong(where, "an object", entry);
    AddedToken token;
    token.content = in.string(entry, "content", where + ".content");
    if (token.content.empty()) in.fail(where, ".content must not be empty");
    if (!seen.insert(token.content).second)
      in.fail(where, ": token ", quote(token.content), " is listed twice");
    token.id = in.token_id(Reader::member(entry, "id"), where + ".id");
    token.special = in.flag(entry, "special", where);
    token.lstrip = in.flag(entry, "lstrip", where);
    token.rstrip = in.flag(entry, "rstrip", where);
    token.normalized = in.flag(entry, "normalized", where);
    token.single_word = in.flag(entry, "single_word", where);
    const int64_t known = id_in_vocab(token.content, token.id);
    token.in_vocab = known >= 0;
    if (known >= 0 && known != token.id)
      in.fail(where, ": token ", quote(token.content), " has id ", token.id, " here and ", known,
              " in model.vocab");
    in.model.added.push_back(std::move(token));
  }
}

}  // namespace

void read_tokens(Reader& in, const Json& vocab) {
  std::vector<std::pair<int32_t, std::string_view>> entries;
  for (const auto& [token, value] : vocab.members()) {
    if (token.empty()) in.fail("model.vocab: a token must not be empty");
    entries.emplace_back(vocab_id(in, token, value), token);
  }
  read_added(in, [&](const std::string& content, int32_t) {
    const Json* const known = vocab.find(content);
    return known != nullptr ? known->as_int() : -1;
  });
  for (const AddedToken& token : in.model.added)
    if (!vocab.contains(token.content)) entries.emplace_back(token.id, token.content);
  std::sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.first < b.first; });
  for (const auto& [id, token] : entries) {
    const auto next = static_cast<int32_t>(in.model.tokens.size());
    if (id < next)
      in.fail("id ", id, " is given to both ", quote(in.model.tokens.back()), " and ", quote(token));
    if (id > next)
      in.fail("ids have a gap: no token has id ", next, ", the next is ", quote(token), " with ", id);
    in.model.tokens.emplace_back(token);
  }
  if (in.model.tokens.empty()) in.fail("model.vocab is empty");
}

void take_tokens(Reader& in) {
  std::vector<std::string>& tokens = in.pairs->tokens;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || find_invalid_utf8(tokens[id]) != std::string::npos)
      in.fail("token ", id, " must be UTF-8 and not empty, got ", quote(tokens[id]));
  }
  if (tokens.empty()) in.fail("the vocabulary is empty");
  read_added(in, [&](const std::string& content, int32_t id) {
    return id < std::ssize(tokens) && tokens[static_cast<size_t>(id)] == content ? id : -1;
  });
  in.model.tokens = std::move(tokens);
}

}  // namespace multihead::text::tokenizer_json
