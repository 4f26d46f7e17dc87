// A SentencePiece vocabulary, as .model and GGUF files hold it. Private to text/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "multihead/core/text/json.h"

namespace multihead::text {

struct SentencePiece {
  enum class Type : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  std::string text;
  double score = 0;
  Type type = Type::normal;
};

struct SentencePieceModel {
  std::string file;  ///< for messages
  std::vector<SentencePiece> pieces;
  bool is_unigram = true;      ///< or BPE
  bool is_characters = false;  ///< BPE without merges
  bool byte_fallback = false;
  bool begins_with_space = true;
  bool squeezes_spaces = true;
  std::string charsmap = {};  ///< empty: texts stay as they are
  /// As SentencePiece itself does it: symbols that users defined are looked for in the normalised text, and
  /// of white space only spaces are trimmed. Otherwise such symbols cut the text as given, and each part
  /// begins as a text does: as transformers and llama.cpp do it.
  bool is_bare = false;
  bool replaces_longest = false;  ///< the charsmap's entries, as SentencePiece itself does it; see CharsMap
  /// Around every text; empty: nothing.
  std::string first = {}, last = {};
  std::string second = {};                    ///< before the second text of a pair, instead of `first`
  int second_type = 0;                        ///< type id of the second text of a pair
  std::vector<std::string> more_tokens = {};  ///< ids after the pieces
  /// Unigram: pieces that cut a text and have no id; they are unknown.
  std::vector<SentencePiece> without_id = {};
};

/// Throws IoError, FormatError.
SentencePieceModel read_sentencepiece(const std::string& path);
/// The tokenizer.json that says the same.
std::string tokenizer_json_of(const SentencePieceModel& model);

/// The tokenizer.json for one of Marian's two models, whose folder has vocab.json with the ids (and
/// target_vocab.json, if the other side has its own). Throws IoError, FormatError.
std::string json_of_marian(const std::filesystem::path& spm);

/// The tokenizer.json for a folder with one of the .model files that transformers knows. Empty: there is
/// none. tokenizer_config.json says what surrounds texts. Throws IoError, FormatError.
std::string json_of_sentencepiece(const std::filesystem::path& folder);

}  // namespace multihead::text
