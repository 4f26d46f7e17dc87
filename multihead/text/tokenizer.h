// Text to token ids and back: characters or byte pairs, kept as a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/utf8.h"

namespace multihead::text {

/// Tokens with a meaning of their own; empty = there is none. Roles may share one token, as in GPT-2.
struct SpecialTokens {
  std::string bos = "";
  std::string eos = "";
  std::string pad = "";
  std::string unk = "";
  std::vector<std::string> others = {};
};

struct CharacterOptions {
  /// With `unk` an unknown character becomes that token; without, encoding it throws ValueError.
  SpecialTokens special = {};
};

struct BpeOptions {
  /// Tokens in all: special ones, 256 bytes, merges. Fewer come out when the text runs out of pairs.
  int64_t vocab_size = 4096;
  /// A pair must occur so often to be merged.
  int64_t min_frequency = 2;
  /// They take the first ids.
  SpecialTokens special = {.eos = "<|endoftext|>"};
  /// Called now and then with merges learnt and merges wanted. May throw to stop.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct EncodeOptions {
  /// Read special tokens written out in the text as tokens. Off: they are plain characters, so text from
  /// strangers cannot end a document. (Added tokens that are not special are always read, as in HF.)
  bool parse_special = false;
  /// Put the tokens of the file's template around the text (Llama 3: <|begin_of_text|> in front). Tokenizers
  /// trained here have no template.
  bool add_template = true;
};

struct DecodeOptions {
  bool skip_special = false;
};

/// A tokenizer: an immutable value, cheap to copy, safe to use from many threads.
///
/// Character tokenizers give one id per Unicode character and refuse text that is not UTF-8. Byte-level BPE
/// gives ids for any bytes at all, decode(encode(x)) == x; on valid UTF-8 the ids are those of Hugging Face's
/// `tokenizers`, and a byte that is no valid UTF-8 counts as a symbol that is neither letter, number nor
/// space.
class Tokenizer {
 public:
  enum class Kind : uint8_t { characters, bpe };

  /// One token per distinct character of the texts, in code point order behind the special tokens.
  /// Throws: ValueError if the texts are empty, not UTF-8, or a special token is among their characters.
  static Tokenizer train_characters(std::span<const std::string_view> texts,
                                    const CharacterOptions& options = {});
  static Tokenizer train_characters(std::string_view text, const CharacterOptions& options = {});

  /// Byte-level BPE as GPT-2 has it: GPT-2's splitting, most frequent pair first. Deterministic.
  /// Throws: ValueError if vocab_size is too small for the bytes and special tokens, or the texts are empty.
  /// Source: Sennrich, Haddow, Birch 2016; Radford et al. 2019.
  static Tokenizer train_bpe(std::span<const std::string_view> texts, const BpeOptions& options = {});
  static Tokenizer train_bpe(std::string_view text, const BpeOptions& options = {});

  /// Reads a tokenizer.json or the directory that holds one (with tokenizer_config.json for the roles of
  /// special tokens). Understands byte-level BPE (GPT-2, RoBERTa, Llama 3, Qwen 2 and 3 with their NFC) and
  /// the character tokenizers of this library; refuses everything else by name.
  /// Throws: IoError, FormatError.
  static Tokenizer load(const std::filesystem::path& path);
  /// The same from memory; `name` is how messages call it.
  static Tokenizer from_json(std::string_view json, const std::string& name = "tokenizer.json");

  /// Writes `directory`/tokenizer.json and tokenizer_config.json, which change as one; the directory is made
  /// if need be. A path that ends in .json is the file itself, alone. Throws: IoError; ValueError if files
  /// there were not written by this library, or changed since.
  void save(const std::filesystem::path& path) const;
  /// The contents of tokenizer.json and tokenizer_config.json.
  std::string to_json() const;
  std::string config_json() const;
  /// What to_json() and config_json() gave.
  static Tokenizer from_contents(std::string_view json, std::string_view config_json);

  /// Throws: ValueError for a character (or byte) that has no token.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// The first offset >= `at` (> 0) where the text can be cut so that both sides, encoded alone and without a
  /// template, give the ids of the whole; text.size() if there is none. For texts too long for memory.
  size_t safe_cut(std::string_view text, size_t at) const;
  /// The bytes the ids stand for, joined; a cut inside a character stays cut (see complete_utf8). Ids from
  /// vocab_size on, to which models pad their tables, stand for nothing. Throws: ValueError for an id < 0.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  Kind kind() const;
  int64_t vocab_size() const;
  /// The token as tokenizer.json writes it (byte-level: " the" is "Ġthe"); decode gives the text.
  const std::string& token(int32_t id) const;
  /// The id of a token as tokenizer.json writes it, if there is one.
  std::optional<int32_t> id(std::string_view token) const;
  bool is_special(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  const SpecialTokens& special() const;

  /// A hash of everything that decides the ids: equal fingerprints, equal encodings.
  uint64_t fingerprint() const;

  struct Model;

 private:
  explicit Tokenizer(std::shared_ptr<const Model> model) : model_(std::move(model)) {}
  std::shared_ptr<const Model> model_;
};

using multihead::complete_utf8;

}  // namespace multihead::text
