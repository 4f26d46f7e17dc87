// The parts of a tokenizer.json are read by a file each, with what all of them need from here. Private to
// text/.
#pragma once

#include <string>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text::tokenizer_json {

using Model = Tokenizer::Model;

/// A file, the tokenizer that is made of it, and members of the kinds that are expected. Whatever would
/// change the ids and is not understood is refused by name; all throw FormatError.
class Reader {
 public:
  Reader(const Json& root, const std::string& file, Model& model, BytePairs* pairs = nullptr)
      : root(root), model(model), pairs(pairs), file_(file) {}

  const Json& root;
  Model& model;
  BytePairs* pairs;  // stand for model.vocab and model.merges, if they are given

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FormatError(concat(file_, ": ", parts...));
  }
  [[noreturn]] void wrong(const std::string& where, std::string_view expected, const Json& got) const;
  [[noreturn]] void unsupported(const std::string& where, const std::string& what) const;

  /// The member `key`, or nullptr where it is missing or null.
  static const Json* find(const Json& in, const char* key);
  /// The member `key`; null where there is none.
  static const Json& member(const Json& in, const char* key);
  static bool is_type(const Json& in, const char* type) { return member(in, "type") == type; }

  void check_object(const Json& value, const std::string& where) const;
  const Json& object(const Json& in, const char* key, const std::string& where) const;
  const Json& array(const Json& in, const char* key, const std::string& where) const;
  std::string string(const Json& in, const char* key, const std::string& where) const;
  /// A string that says something.
  std::string text(const Json& in, const char* key, const std::string& where) const;
  bool flag(const Json& in, const char* key, const std::string& where, bool missing = false) const;

  int32_t token_id(const Json& value, const std::string& where) const;
  /// -1: not in the vocabulary.
  int32_t id_of(std::string_view token) const;
  /// An id of the vocabulary.
  int32_t known_id(const Json& value, const std::string& where) const;

 private:
  const Json& required(const Json& in, const char* key, const std::string& where, Json::Kind kind) const;

  const std::string& file_;
};

/// Normalisation, before anything else.
void read_normalizer(Reader& in);
/// { "type": "Replace" } of normalizers and decoders.
NormalStep replacement(const Reader& in, const Json& step, const std::string& where);

/// How a text is cut. True: tokens are of bytes.
bool read_pre_tokenizer(Reader& in);
/// Whether a text is cut into single characters, by nothing else.
bool cuts_characters(const Reader& in);
/// Whether texts begin with a mark.
CutStep::Prepend prepend_scheme(const Reader& in, const Json& step, const std::string& where);

/// The steps of decode().
void read_decoder(Reader& in);

/// The vocabulary and the rules that make tokens, with pre_tokenizer and decoder as they need them.
void read_model(Reader& in);
/// The vocabulary and the added tokens, which must fill the ids 0 ... n-1, each once.
void read_tokens(Reader& in, const Json& vocab);
/// The same from in.pairs.
void take_tokens(Reader& in);

/// The templates around texts.
void read_post_processor(Reader& in);

/// How texts are cut and padded.
void read_lengths(Reader& in);

}  // namespace multihead::text::tokenizer_json
