// Tokenizers: characters, BPE, WordPiece or unigram, stored as a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/text/enum_words.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/chat/chat_template.h"

namespace multihead::text {

/// Special tokens by role; empty: none. Roles may share a token, as in GPT-2.
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
  /// Total tokens: special ones, 256 bytes, merges. Fewer if the text runs out of pairs.
  int64_t vocab_size = 4096;
  /// Smallest frequency of a merged pair.
  int64_t min_frequency = 2;
  /// Get the first ids.
  SpecialTokens special = {.eos = "<|endoftext|>"};
  /// The template of an encoder: a token before a text, and one after each text, of the special ones; empty: none.
  std::string first = {}, end = {};
  /// Called periodically with merges learned and merges requested. May throw to stop.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct WordPieceOptions {
  /// Total tokens: [PAD], [UNK], [CLS], [SEP], [MASK], characters, merges.
  int64_t vocab_size = 30522;
  int64_t min_frequency = 2;
  /// Lower case, and no accents.
  bool lowercase = true;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct UnigramOptions {
  /// Total tokens: special ones, characters, longer pieces. Fewer if the text has no more.
  int64_t vocab_size = 8000;
  /// The longest piece, in characters.
  int64_t max_piece_length = 16;
  /// Get the first ids; unk is needed.
  SpecialTokens special = {.bos = "<s>", .eos = "</s>", .pad = "<pad>", .unk = "<unk>"};
  /// Called with pieces left and pieces wanted. May throw to stop.
  std::function<void(int64_t left, int64_t wanted)> progress = {};
};

struct EncodeOptions {
  /// Recognise special tokens in the text. Off: they are plain characters, so untrusted text cannot end a
  /// document. (Added tokens that are not special are always recognised, as in Hugging Face.)
  bool parse_special = false;
  /// Add the tokens of the file's template (Llama 3: <|begin_of_text|> in front). Of tokenizers
  /// trained here, WordPiece and those of encoders (BpeOptions::first) have one.
  bool add_template = true;
  /// At most this many ids, those of the template included: the end of the text is left out, of a pair the
  /// end of the longer one; the beginning where tokenizer_config.json says truncation_side "left". 0: no limit.
  size_t max_length = 0;
  /// Cut and pad as the file says ("truncation", "padding" of tokenizer.json), as Hugging Face's tokenizers
  /// always do; max_length takes the place of the file's. Off: the file's settings are left to batches.
  bool as_file = false;
  /// The last id, of which translators know that a sentence ends; added unless the template has it.
  std::optional<int32_t> end = {};
};

/// The bytes [begin, end) of a text.
struct Offsets {
  size_t begin = 0, end = 0;
  friend bool operator==(const Offsets&, const Offsets&) = default;
};

/// The truncation in tokenizer.json …
struct Truncation {
  enum class Strategy : uint8_t { longest_first, only_first, only_second };
  size_t max_length = 0;  ///< ids, those of the template included
  Strategy strategy = Strategy::longest_first;
  bool from_left = false;  ///< keep the end of a text
};
/// … and too short.
struct Padding {
  size_t length = 0;       ///< 0: that of the longest of a batch
  size_t multiple_of = 0;  ///< the length is rounded up to one; 0: it is not
  int32_t id = 0, type_id = 0;
  bool on_left = false;
};

/// The tokens of a text, or of two texts in one sequence.
struct Encoding {
  std::vector<int32_t> ids = {};
  std::vector<int32_t> type_ids = {};  ///< of each id: which text it belongs to, as the file's template says
  /// Each token's position in its text, in whole characters; [0, 0) for the template's tokens.
  std::vector<Offsets> offsets = {};
  std::vector<int32_t> sequence_ids = {};    ///< the text that the offsets are of: 0, 1, or -1 for none
  std::vector<int32_t> attention_mask = {};  ///< 1, and 0 for padding; empty: there is none
  /// Each token's place among the spellings, or -1; see Tokenizer::tokens().
  std::vector<int32_t> spelling = {};
  std::vector<std::string> spellings = {};
};

/// Makes offsets count characters, as Hugging Face's tokenizers in Python do, instead of bytes; an invalid
/// byte is a character. Time: linear.
void count_characters(Encoding& encoding, std::string_view first, std::string_view second = {});

struct DecodeOptions {
  bool skip_special = false;
  /// The ids continue a text: SentencePiece and WordPiece keep the space before the first.
  bool continued = false;
};

/// A tokenizer: an immutable value, cheap to copy, safe to use from many threads.
///
/// Character tokenizers give one id per Unicode character and refuse text that is not UTF-8. Byte-level BPE
/// encodes any bytes, decode(encode(x)) == x; on valid UTF-8 the ids equal those of Hugging Face's
/// `tokenizers`, and an invalid byte counts as a symbol that is neither letter, number nor space. WordPiece
/// (BERT) gives their ids too and drops invalid bytes; its decode() gives words with single spaces. So do
/// words alone (WordLevel) and SentencePiece (BPE with bytes for unknown characters, and unigram); an invalid
/// byte is an unknown character.
class Tokenizer {
 public:
  enum class Kind : uint8_t {
    characters,
    bpe,            ///< of bytes
    wordpiece,      ///< BERT
    unigram,        ///< SentencePiece, by probability
    character_bpe,  ///< SentencePiece, by merges
    words,          ///< whole words alone
  };
  friend constexpr auto enum_words(Kind) {
    return std::to_array<std::string_view>(
        {"characters", "bpe", "wordpiece", "unigram", "character_bpe", "words"});
  }

  /// One token per distinct character of the texts, in code point order after the special tokens.
  /// Throws: ValueError if the texts are empty, not UTF-8, or a special token is among their characters.
  static Tokenizer train_characters(std::span<const std::string_view> texts,
                                    const CharacterOptions& options = {});
  static Tokenizer train_characters(std::string_view text, const CharacterOptions& options = {});

  /// Byte-level BPE as in GPT-2: GPT-2's splitting, most frequent pair first. Deterministic.
  /// Throws: ValueError if vocab_size is too small for the bytes and special tokens, or the texts are empty.
  /// Source: Sennrich, Haddow, Birch 2016; Radford et al. 2019.
  static Tokenizer train_bpe(std::span<const std::string_view> texts, const BpeOptions& options = {});
  static Tokenizer train_bpe(std::string_view text, const BpeOptions& options = {});

  /// WordPiece as in BERT, whose cleaning, splitting and template it has: of the characters of words, most
  /// frequent pair first, up to the 1,000 most frequent characters. Deterministic. Throws: as train_bpe().
  /// Source: Schuster & Nakajima 2012; the merges are those of Hugging Face's trainer.
  static Tokenizer train_wordpiece(std::span<const std::string_view> texts,
                                   const WordPieceOptions& options = {});
  static Tokenizer train_wordpiece(std::string_view text, const WordPieceOptions& options = {});

  /// Unigram as in SentencePiece: NFKC, words with a mark in front; from all frequent parts of words, fitted
  /// by expectation maximisation and pruned by what each is worth to the likelihood. Deterministic. Throws:
  /// ValueError if vocab_size is too small for the characters and special tokens, or the texts are empty.
  /// Source: Kudo 2018.
  static Tokenizer train_unigram(std::span<const std::string_view> texts, const UnigramOptions& options = {});
  static Tokenizer train_unigram(std::string_view text, const UnigramOptions& options = {});

  /// Reads a tokenizer.json, a directory with one (and tokenizer_config.json for the roles of special
  /// tokens), what such a directory has instead: BERT's vocab.txt, SentencePiece's tokenizer.model,
  /// spiece.model or sentencepiece.bpe.model (Llama 2, T5, ALBERT, XLM-R, CamemBERT), Marian's source.spm;
  /// any SentencePiece .model, one of Marian's two .spm files beside their vocab.json, or a GGUF file.
  /// Supports BPE of bytes (GPT-2, RoBERTa, Llama 3, Qwen) and of characters (Llama 2, Mistral, Gemma),
  /// unigram (T5, XLM-R), WordPiece (BERT) and this library's character tokenizers, with
  /// normalisers, pre-tokenizers, post-processors and decoders; refuses everything else by name. Throws: IoError, FormatError.
  static Tokenizer load(const std::string& path);
  /// The same from memory; `name` is for messages.
  static Tokenizer from_json(std::string_view json, const std::string& name = "tokenizer.json");

  /// Writes `directory`/tokenizer.json and tokenizer_config.json as one; creates the directory if needed. A
  /// path ending in .json is the file alone. Throws: IoError; ValueError if existing files were not written
  /// by this library or were changed since.
  void save(const std::string& path) const;
  /// The contents of tokenizer.json and tokenizer_config.json.
  std::string to_json() const;
  std::string config_json() const;
  /// From the output of to_json() and config_json().
  static Tokenizer from_contents(std::string_view json, std::string_view config_json);

  /// Throws: ValueError for a character (or byte) that has no token.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// The same ids, with the place in the text that each one covers, equal to those of Hugging Face's
  /// tokenizers. Memory: 28 bytes a token, and 8 a byte of text that is normalised. Throws: as encode().
  Encoding encoding(std::string_view text, const EncodeOptions& options = {}) const;
  /// The names of an encoding()'s tokens, as in Hugging Face's tokenizers: token(id), but the text of
  /// an added token, with the white space that it swallows, and of what unigram does not know.
  std::vector<std::string> tokens(const Encoding& encoding) const;
  /// Two texts as the file's template joins them ([CLS] a [SEP] b [SEP]), for models that compare them.
  /// Throws: as encode(); ValueError if the file has no template for pairs.
  Encoding encoding(std::string_view first, std::string_view second, const EncodeOptions& options = {}) const;
  /// The same without offsets.
  Encoding encode_pair(std::string_view first, std::string_view second,
                       const EncodeOptions& options = {}) const;
  /// The first offset >= `at` (> 0) at which the text can be cut so that both sides, encoded separately
  /// without template, give the ids of the whole; text.size() if none. For texts larger than memory.
  size_t safe_cut(std::string_view text, size_t at) const;
  /// The bytes of the ids, concatenated; partial characters stay partial (see complete_utf8). Ids from
  /// vocab_size on, to which models pad their embeddings, decode to nothing.
  /// Throws: ValueError for an id < 0.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  /// The file's settings, applied with as_file.
  const std::optional<Truncation>& truncation() const;
  const std::optional<Padding>& padding() const;
  /// Makes a batch as long as its longest encoding, or as the file says. Throws: ValueError if it says
  /// nothing.
  void pad(std::span<Encoding> batch) const;

  Kind kind() const;
  int64_t vocab_size() const;
  /// The same without the added tokens at its end, which only their own names in a text give: a model may
  /// lack them.
  int64_t plain_vocab_size() const;
  /// The token as in tokenizer.json (byte-level: " the" is "Ġthe"); decode gives the text.
  const std::string& token(int32_t id) const;
  /// The id of a token as in tokenizer.json, if any.
  std::optional<int32_t> id(std::string_view token) const;
  bool is_special(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  const SpecialTokens& special() const;
  /// "src_lang" and "tgt_lang" of tokenizer_config.json, the languages of a translator's texts; empty: it has none.
  const std::string& source_language() const;
  const std::string& target_language() const;

  /// The chat template that came with the tokenizer (in tokenizer_config.json, chat_template.jinja or the
  /// GGUF file); empty: none.
  const std::string& chat_template() const;
  /// The prompt of a conversation, for encode() with parse_special and without add_template; with
  /// add_generation_prompt, up to where the answer begins. Special tokens in the messages count as such, as
  /// in transformers. Throws: ValueError if there is no template, and what ChatTemplate throws.
  std::string apply_chat_template(std::span<const ChatMessage> messages,
                                  bool add_generation_prompt = false) const;
  /// The same for messages with other members and variables of the template, such as tools or
  /// enable_thinking: see ChatTemplate::render(). `other`: this template instead of the tokenizer's.
  std::string apply_chat_template(const Json& messages, bool add_generation_prompt, const Json& variables,
                                  const std::string& other = {}) const;

  /// A hash of everything that determines the ids: equal fingerprints, equal encodings.
  uint64_t fingerprint() const;

  struct Model;

 private:
  explicit Tokenizer(std::shared_ptr<const Model> model) : model_(std::move(model)) {}
  Encoding single(std::string_view text, const EncodeOptions& options, bool with_offsets) const;
  Encoding both(std::string_view first, std::string_view second, const EncodeOptions& options,
                bool with_offsets) const;
  std::shared_ptr<const Model> model_;
};

using multihead::complete_utf8;

}  // namespace multihead::text
