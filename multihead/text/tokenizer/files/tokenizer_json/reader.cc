#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {

void Reader::wrong(const std::string& where, std::string_view expected, const Json& got) const {
  fail(where, " must be ", expected, ", got ", name(got.kind()));
}

void Reader::unsupported(const std::string& where, const std::string& what) const {
  fail(where, ": ", what.size() > 200 ? what.substr(0, 200) + "..." : what,
       " is not supported; supported are byte-level BPE, SentencePiece's BPE and unigram, WordPiece, "
       "words and this library's character tokenizers");
}

const Json* Reader::find(const Json& in, const char* key) {
  const Json* value = in.find(key);
  return value && !value->is_null() ? value : nullptr;
}

const Json& Reader::member(const Json& in, const char* key) {
  static const Json null;
  const Json* found = in.find(key);
  return found ? *found : null;
}

const Json& Reader::required(const Json& in, const char* key, const std::string& where,
                             Json::Kind kind) const {
  const Json* value = find(in, key);
  if (value == nullptr) fail(where, " is missing");
  if (value->kind() != kind) wrong(where, name(kind), *value);
  return *value;
}

void Reader::check_object(const Json& value, const std::string& where) const {
  if (!value.is_object()) wrong(where, "an object", value);
}

const Json& Reader::object(const Json& in, const char* key, const std::string& where) const {
  return required(in, key, where, Json::Kind::object);
}

const Json& Reader::array(const Json& in, const char* key, const std::string& where) const {
  return required(in, key, where, Json::Kind::array);
}

std::string Reader::string(const Json& in, const char* key, const std::string& where) const {
  return required(in, key, where, Json::Kind::string).as_string();
}

std::string Reader::text(const Json& in, const char* key, const std::string& where) const {
  std::string text = string(in, key, where);
  if (text.empty()) fail(where, " must not be empty");
  return text;
}

bool Reader::flag(const Json& in, const char* key, const std::string& where, bool missing) const {
  const Json* value = find(in, key);
  if (value == nullptr) return missing;
  if (!value->is_bool()) wrong(where + "." + key, "true or false", *value);
  return value->as_bool();
}

int32_t Reader::token_id(const Json& value, const std::string& where) const {
  if (!value.is_integer()) wrong(where, "an integer id", value);
  const int64_t id = value.as_int();
  if (id < 0 || id >= INT32_MAX) fail(where, ": id must be in [0, 2147483647), got ", id);
  return static_cast<int32_t>(id);
}

int32_t Reader::id_of(std::string_view token) const { return model.find(token); }

int32_t Reader::known_id(const Json& value, const std::string& where) const {
  const int32_t id = token_id(value, where);
  if (id >= std::ssize(model.tokens)) fail(where, ": id ", id, " is not in the vocabulary");
  return id;
}

}  // namespace multihead::text::tokenizer_json
