// The data of a Tokenizer. Private to text/.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/text/tokenizer/models/bpe-inl.h"
#include "multihead/text/tokenizer/models/unigram-inl.h"
#include "multihead/text/tokenizer/pipeline/bert-inl.h"
#include "multihead/text/tokenizer/pipeline/normalize-inl.h"
#include "multihead/text/tokenizer/pipeline/pipeline-inl.h"
#include "multihead/text/tokenizer/token_finder-inl.h"
#include "multihead/text/tokenizer/token_index-inl.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {

/// The split that a character tokenizer is recognised by.
inline constexpr char kEveryCharacter[] = R"([\s\S])";

/// The roles of special tokens in tokenizer_config.json.
inline constexpr std::pair<const char*, std::string SpecialTokens::*> kRoles[] = {
    {"bos_token", &SpecialTokens::bos},
    {"eos_token", &SpecialTokens::eos},
    {"pad_token", &SpecialTokens::pad},
    {"unk_token", &SpecialTokens::unk}};

struct AddedToken {
  int32_t id;
  std::string content;
  bool special = true;
  bool lstrip = false, rstrip = false;  // swallow the white space before, after
  bool single_word = false;             // not beside letters, marks, digits, connectors
  bool in_vocab = true;                 // a token of the model besides
  bool normalized = false;              // found in the normalised text, not in what was given
  std::string found = {};               // by Model::finish(): the content as it appears in that text
};

/// An id of a template, or the place of a text.
struct TemplateItem {
  int32_t id = -1;
  int text = -1;  ///< 0 or 1: the first or second text, instead of an id
  int32_t type_id = 0;
  bool operator==(const TemplateItem&) const = default;
};

/// A vocabulary of byte pairs that stands beside its tokenizer.json: tokens by id, merges as "left right".
struct BytePairs {
  std::vector<std::string> tokens, merges;
};

struct Tokenizer::Model {
  Kind kind = Kind::bpe;
  std::vector<std::string> tokens;  // by id, as in tokenizer.json
  std::vector<AddedToken> added;
  SpecialTokens special;
  std::vector<TemplateItem> single = {{.text = 0}};  // the template around a text
  std::vector<TemplateItem> pair;                    // the template of two
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
  std::string padding_name = {};  // what tokens() calls it, if not as its id
  std::string source;             // the file this was read from, written back unchanged
  std::string chat_template = {};
  // Of tokenizer_config.json.
  bool splits_special = false;  // special tokens are not looked for in texts
  bool cleans_up = false;       // decode() leaves out spaces before punctuation
  bool cuts_left = false;       // what is too long loses its beginning
  bool lacks_types = false;     // ids do not say which text they belong to
  std::string source_language = {}, target_language = {};

  std::vector<NormalStep> steps;  // what is done to a text before anything else
  std::vector<CutStep> cuts;      // how it is cut into the pieces that become tokens

  // Byte pairs, and pairs of characters.
  MergeTable merges;
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  bool fuse_unk = false;
  std::string word_end = {};  // the last symbol of a piece ends with this, as CLIP's "</w>"
  int32_t unk = -1;           // for bytes, or characters, without a token

  // SentencePiece: BPE of characters, and unigram.
  bool byte_fallback = false;  // an unknown character becomes the tokens of its bytes
  UnigramTable unigram;

  // WordPiece.
  std::string continuing = "##";  // begins tokens that continue a word
  int64_t longest_word = 100;     // in characters; more are unknown

  // decode(): what is done to each token, then to their texts in a row.
  std::vector<DecodeStep> token_steps, text_steps;
  bool joins_with_spaces = false;

  // Offsets leave out white space at the ends of tokens, as the byte-level post-processor says.
  bool trims_offsets = false, trims_prefix = false;

  // Made by finish() from the above.
  std::vector<std::string> bytes;                   // what decode gives for an id amid others
  std::vector<bool> is_special;                     // by id
  std::vector<int32_t> added_at;                    // place in `added`, by id; -1: none
  TokenIndex ids;                                   // of the tokens that the model may make
  TokenIndex added_ids;                             // of the others
  std::array<int32_t, 256> byte_token;              // of byte-level BPE, or of byte_fallback
  std::array<int32_t, 256> last_byte_token;         // with `word_end`
  std::unordered_map<int32_t, int32_t> characters;  // code point -> id
  TokenIndex word_parts;                            // without `continuing`
  size_t longest_token = 0;                         // in bytes
  // Added tokens, by place in `added`, as they are found in a text; plain: not special. Those of the text as
  // given come first, the others in what is left of it, normalised.
  TokenFinder given_tokens, normalized_tokens;

  /// The tokenizer that `rules`, a tokenizer.json whose model lacks `vocab` and `merges`, makes of them;
  /// `whole` is what to_json() gives. `config` is tokenizer_config.json. Throws FormatError.
  static Tokenizer of(BytePairs pairs, std::string_view rules, std::string whole, std::string_view config);
  /// Throws FormatError: a token twice.
  void finish();
  bool is_sentencepiece() const { return kind == Kind::unigram || kind == Kind::character_bpe; }
  /// The text of a token in decode().
  std::string decoded(int32_t id, bool is_first, bool is_last) const;
  /// The text as its tokens are looked for, or nothing if that is the text itself.
  std::optional<Rewritten> normal(std::string_view text, bool is_aligned = false) const {
    return apply_steps(steps, text, is_aligned);
  }
  /// The steps, if they are no more than one Unicode form, or BERT's cleaning.
  Normalizer only_form() const;
  const BertCleaning* only_cleaning() const;
  /// Whether ids of a pair say by the template which text they belong to.
  bool has_types() const {
    return std::ranges::any_of(pair, [](const TemplateItem& item) { return item.type_id != 0; });
  }
  /// The id of a token; -1: there is none.
  int32_t find(std::string_view token) const;
  /// Whether there is more to it than fingerprints have always known.
  bool has_new_parts() const;
};

inline std::string json_string(std::string_view text) { return Json(text).dump(); }

/// An entry of "added_tokens": a special token, found in the text as given.
inline Json json_of_special(int64_t id, const std::string& content) {
  return Json::object({{"id", id},
                       {"content", content},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
}

/// A "post_processor": `first` A `end`, and `first` A `end` B `end` with the type of B and its end. `tokens`: the
/// template_token()s of both by name, maybe of others. An empty `first`: nothing.
Json json_of_template(const std::string& first, const std::string& end, int second_type, const Json& tokens);
Json template_token(const std::string& token, int64_t id);

/// The names of BERT's special tokens.
struct BertTokens {
  std::string unk = "[UNK]", sep = "[SEP]", pad = "[PAD]", cls = "[CLS]", mask = "[MASK]";
};
/// A tokenizer.json of BERT's kind with these tokens, in order of their ids; the special ones are among them.
std::string json_of_words(const std::vector<std::string>& tokens, const Json& normalizer,
                          const BertTokens& special = {});
/// A folder's vocab.txt as tokenizer.json. Throws IoError, FormatError.
std::string json_of_vocab_txt(const std::filesystem::path& folder);
/// The tokenizer.json of a folder whose configuration names ByT5's tokenizer; empty: it does not. Throws IoError,
/// FormatError.
std::string json_of_byt5(const std::filesystem::path& folder);

/// The tokenizer in a GGUF file. Throws IoError, FormatError.
Tokenizer load_gguf_tokenizer(const std::string& path);

/// The chat template in tokenizer_config.json; empty: none. Throws FormatError.
std::string chat_template_of(const Json& config, const std::string& file);
/// chat_template.jinja, if the folder has it. Throws IoError, FormatError.
void read_chat_template_file(const std::filesystem::path& folder, Tokenizer::Model& model);

/// Special tokens without duplicates, roles first.
std::vector<std::string> all_tokens(const SpecialTokens& special);

/// A token of a byte-level vocabulary as bytes; one with a character outside the byte alphabet stays as it
/// is.
std::string symbols_to_bytes(std::string_view token);
std::string bytes_to_symbols(std::string_view bytes);

}  // namespace multihead::text
