// The tokenizer that a GGUF file carries, as the tokenizer.json that says the same: one reader for both.
#include <algorithm>
#include <array>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/gguf.h"
#include "multihead/text/tokenizer/files/gguf_splits-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/sentencepiece_model-inl.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

// json_string() without a copy where nothing is to be escaped, as in nearly all of many tokens: ASCII and
// U+0100 to U+017F, the byte-level alphabet.
void append_quoted(std::string& to, std::string_view text) {
  const auto is_plain = [&](size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) return i + 1 < text.size() && (c & 0xFE) == 0xC4 && (text[i + 1] & 0xC0) == 0x80;
    return c >= ' ' && c < 0x7F && c != '"' && c != '\\';
  };
  size_t at = 0;
  while (at < text.size() && is_plain(at)) at += (text[at] & 0x80) != 0 ? 2 : 1;
  if (at < text.size()) {
    to += json_string(text);
  } else {
    to.append(1, '"').append(text).append(1, '"');
  }
}

enum class TokenType : int64_t { undefined, normal, unknown, control, user_defined, unused, byte };

// Keys of the tokenizer that are read below, and those that no vocabulary of these two kinds asks: roles that
// only other programs know, Unicode tables of other kinds, copies of other formats.
constexpr const char* kKnownKeys[] = {
    "ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.token_type_count", "ggml.scores",
    "ggml.merges", "ggml.add_bos_token", "ggml.add_eos_token", "ggml.add_sep_token", "ggml.add_space_prefix",
    "ggml.remove_extra_whitespaces", "ggml.precompiled_charsmap",
    // copies and templates
    "huggingface.json", "rwkv.world", "chat_template", "chat_templates"};
// Known only as false, or empty.
constexpr const char* kUnsupportedKeys[] = {"ggml.normalizer.lowercase", "ggml.normalizer.strip_accents",
                                            "ggml.suppress_tokens"};

// Followed for WordPiece.
constexpr const char* kWordKeys[] = {"ggml.normalizer.lowercase", "ggml.normalizer.strip_accents"};

class GgufTokenizer {
 public:
  explicit GgufTokenizer(const io::GgufFile& file)
      : file_(file), tokens_(file.strings("tokenizer.ggml.tokens")) {
    const std::string model = file.string("tokenizer.ggml.model");
    is_words_ = model == "bert";
    is_unigram_ = model == "t5";
    is_sentencepiece_ = model == "llama" || is_unigram_;
    if (model != "gpt2" && !is_sentencepiece_ && !is_words_) {
      fail(
          "tokenizer.ggml.model must be \"gpt2\" (byte-level BPE), \"llama\" (SentencePiece's BPE), \"t5\" "
          "(SentencePiece's unigram) or \"bert\" (WordPiece), got ",
          quote(model), ", which is not supported");
    }
    check_keys();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (tokens_[id].empty()) tokens_[id] = concat("[EMPTY_", id, "]");  // as llama.cpp calls it
    }
  }

  Tokenizer tokenizer() const {
    const std::string config = roles();
    if (is_words_) return Tokenizer::from_contents(words_json(), config);
    return is_sentencepiece_ ? Tokenizer::from_contents(sentencepiece_json(), config) : byte_level(config);
  }

 private:
  void check_keys() const {
    const std::string_view prefix = "tokenizer.";
    const auto holds = [](const auto& list, std::string_view name) {
      return std::any_of(std::begin(list), std::end(list), [&](const char* entry) { return entry == name; });
    };
    for (const std::string& key : file_.keys()) {
      if (!key.starts_with(prefix)) continue;
      const std::string_view name = std::string_view(key).substr(prefix.size());
      if (holds(kKnownKeys, name) || name.ends_with("_token_id") || name.starts_with("chat_template."))
        continue;
      if (is_words_ && holds(kWordKeys, name)) continue;
      if (!holds(kUnsupportedKeys, name))
        fail(key, " is not supported: what it means is unknown here, and it may change the ids");
      const bool is_off =
          file_.is_boolean(key) ? !file_.boolean(key) : file_.is_array(key) && file_.integers(key).empty();
      if (!is_off) fail(key, " is not supported");
    }
  }

  // tokenizer_config.json. An id beyond the vocabulary is no token, as for llama.cpp: converters write
  // 4294967295 for none.
  std::string roles() const {
    Json config = Json::object();
    const std::array<std::pair<const char*, const char*>, 4> roles = {
        {{"bos", "bos_token"}, {"eos", "eos_token"}, {"padding", "pad_token"}, {"unknown", "unk_token"}}};
    for (const auto& [theirs, ours] : roles) {
      if (const std::string* content = role(theirs)) config[ours] = *content;
    }
    if (const std::string chat = "tokenizer.chat_template"; file_.has(chat)) {
      const std::string source = file_.string(chat);
      if (find_invalid_utf8(source) != std::string::npos) fail(chat, " is not UTF-8");
      config["chat_template"] = source;
    }
    return config.dump();
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FormatError(concat(file_.path(), ": ", parts...));
  }

  Tokenizer byte_level(const std::string& config) const {
    const GgufSplit& split = this->split();
    const std::string space = "tokenizer.ggml.add_space_prefix";
    const bool prefix = split.gpt2 && *split.steps == '\0' && file_.has(space) && file_.boolean(space);
    std::string text = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" +
                       added_tokens() + R"(],"normalizer":null,"pre_tokenizer":)" +
                       json_of_split(split, prefix) + R"(,"post_processor":)" +
                       template_json(split.adds_bos) + ",";
    text += concat(
        R"("decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},)",
        R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)",
        R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":)",
        split.ignore_merges);
    BytePairs pairs{tokens_, file_.strings("tokenizer.ggml.merges")};
    std::string whole = text + R"(,"vocab":{)";
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (id > 0) whole += ',';
      append_quoted(whole, tokens_[id]);
      whole.append(1, ':').append(std::to_string(id));
    }
    whole += R"(},"merges":[)";
    for (const std::string& merge : pairs.merges) {
      if (&merge != pairs.merges.data()) whole += ',';
      append_quoted(whole, merge);
    }
    return Tokenizer::Model::of(std::move(pairs), text + "}}", whole + "]}}", config);
  }

  std::string sentencepiece_json() const {
    SentencePieceModel model;
    model.file = file_.path();
    model.is_unigram = is_unigram_;
    model.byte_fallback = !is_unigram_;
    if (const std::string key = "tokenizer.ggml.precompiled_charsmap"; is_unigram_ && file_.has(key)) {
      for (const int64_t byte : file_.integers(key)) model.charsmap += static_cast<char>(byte);
    }
    model.begins_with_space = flag("tokenizer.ggml.add_space_prefix", true);
    model.squeezes_spaces = flag("tokenizer.ggml.remove_extra_whitespaces", false);
    const std::vector<double> scores = file_.numbers("tokenizer.ggml.scores");
    const std::vector<int64_t> types = token_types();
    if (scores.size() != tokens_.size() || types.size() != tokens_.size())
      fail("tokenizer.ggml has ", tokens_.size(), " tokens, ", scores.size(), " scores and ", types.size(),
           " types");
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types[id] < 1 || types[id] > 6) fail("tokenizer.ggml.token_type ", types[id], " is not supported");
      model.pieces.push_back({tokens_[id], scores[id], static_cast<SentencePiece::Type>(types[id])});
    }
    // By default as llama.cpp: it begins with bos, or ends with eos.
    if (adds("bos", !is_unigram_)) model.first = model.second = needed("bos");
    if (adds("eos", is_unigram_)) model.last = needed("eos");
    return tokenizer_json_of(model);
  }

  // Parts of words that continue one have no mark, those that begin one U+2581.
  std::string words_json() const {
    constexpr std::string_view kBegin = "\u2581";
    const std::vector<int64_t> types = token_types();
    std::vector<std::string> tokens = tokens_;
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (!types.empty() && static_cast<TokenType>(types[id]) == TokenType::control) continue;
      std::string& token = tokens[id];
      if (token.starts_with(kBegin)) {
        token.erase(0, kBegin.size());
      } else {
        token.insert(0, "##");
      }
    }
    const auto named = [&](std::initializer_list<const char*> names, int64_t otherwise) {
      for (const char* name : names) {
        if (const std::string* token = role(name)) return tokens[static_cast<size_t>(token - tokens_.data())];
      }
      if (otherwise >= std::ssize(tokens)) fail("tokenizer.ggml.", *names.begin(), "_token_id is missing");
      return tokens[static_cast<size_t>(otherwise)];
    };
    // BERT's ids, which llama.cpp takes where the file has none.
    const BertTokens special = {.unk = named({"unknown"}, 100),
                                .sep = named({"seperator", "separator", "eos"}, 102),
                                .pad = named({"padding"}, 0),
                                .cls = named({"cls", "bos"}, 101),
                                .mask = named({"mask"}, 103)};
    Json normalizer = Json::object({{"lowercase", Json(flag("tokenizer.ggml.normalizer.lowercase", true))}});
    if (const std::string key = "tokenizer.ggml.normalizer.strip_accents"; file_.has(key)) {
      normalizer["strip_accents"] = Json(file_.boolean(key));
    }
    return json_of_words(tokens, normalizer, special);
  }

  bool flag(const std::string& key, bool missing) const {
    return file_.has(key) ? file_.boolean(key) : missing;
  }
  bool adds(const char* role, bool missing) const {
    return flag(concat("tokenizer.ggml.add_", role, "_token"), missing);
  }

  // The token of a role, by default the one that llama.cpp takes; nullptr: there is none.
  const std::string* role(std::string_view name) const {
    const std::string key = concat("tokenizer.ggml.", name, "_token_id");
    const auto is_token = [&](int64_t id) { return id >= 0 && id < std::ssize(tokens_); };
    int64_t id = file_.has(key) ? file_.integer(key) : -1;
    if (!is_token(id) && is_sentencepiece_ && !is_unigram_) id = name == "bos" ? 1 : name == "eos" ? 2 : -1;
    return is_token(id) ? &tokens_[static_cast<size_t>(id)] : nullptr;
  }
  const std::string& needed(const char* name) const {
    const std::string* token = role(name);
    if (token == nullptr)
      fail("the ", name, " token is added to texts, but tokenizer.ggml.", name, "_token_id is no token");
    return *token;
  }

  /// Empty: the file has none.
  std::vector<int64_t> token_types() const {
    const std::string key = "tokenizer.ggml.token_type";
    if (!file_.has(key)) return {};
    std::vector<int64_t> types = file_.integers(key);
    if (types.size() != tokens_.size())
      fail(key, " has ", types.size(), " entries for ", tokens_.size(), " tokens");
    return types;
  }

  std::string added_tokens() const {
    const std::vector<int64_t> types = token_types();
    std::string list;
    for (size_t id = 0; id < types.size(); ++id) {
      const auto type = static_cast<TokenType>(types[id]);
      if (type < TokenType::undefined || type > TokenType::byte)
        fail("tokenizer.ggml.token_type ", types[id], " of token ", quote(tokens_[id]), " is not supported");
      if (type != TokenType::control && type != TokenType::user_defined && type != TokenType::unknown)
        continue;
      list += (list.empty() ? "" : ",") + added_token(id, type != TokenType::user_defined).dump();
    }
    return list;
  }
  Json added_token(size_t id, bool special) const {
    Json token = json_of_special(static_cast<int64_t>(id), tokens_[id]);
    token["special"] = special;
    return token;
  }

  const GgufSplit& split() const {
    const std::string key = "tokenizer.ggml.pre", name = file_.has(key) ? file_.string(key) : "default";
    std::string known;
    for (const GgufSplit& split : kGgufSplits) {
      known += (known.empty() ? "" : " ") + std::string(split.names);
      const std::string names = concat(" ", split.names, " ");
      if (names.find(concat(" ", name, " ")) != names.npos) return split;
    }
    fail(key, " ", quote(name), " is not supported; supported are ", known);
  }

  // [bos] text [eos], as far as they are added; of two texts, both so.
  std::string template_json(bool adds_bos) const {
    const bool begins = adds("bos", adds_bos), ends = adds("eos", false);
    if (!begins && !ends) return "null";
    Json specials = Json::object();
    std::vector<Json> single, pair;
    const auto put = [&](const char* name, int type, std::vector<Json>& items) {
      const std::string& token = needed(name);
      items.push_back(Json::object({{"SpecialToken", Json::object({{"id", token}, {"type_id", type}})}}));
      const int64_t id = &token - tokens_.data();
      specials[token] = Json::object(
          {{"id", token}, {"ids", Json(std::vector<Json>{id})}, {"tokens", Json(std::vector<Json>{token})}});
    };
    const auto place = [&](const char* which, int type, std::vector<Json>& items) {
      if (begins) put("bos", type, items);
      items.push_back(Json::object({{"Sequence", Json::object({{"id", which}, {"type_id", type}})}}));
      if (ends) put("eos", type, items);
    };
    place("A", 0, single);
    place("A", 0, pair);
    place("B", 1, pair);
    return Json::object({{"type", "TemplateProcessing"},
                         {"single", Json(single)},
                         {"pair", Json(pair)},
                         {"special_tokens", specials}})
        .dump();
  }

  const io::GgufFile& file_;
  bool is_sentencepiece_ = false, is_unigram_ = false, is_words_ = false;
  std::vector<std::string> tokens_;
};

}  // namespace

std::string json_of_split(const GgufSplit& split, bool prefix) {
  return concat(R"({"type":"Sequence","pretokenizers":[)", split.steps,
                R"({"type":"ByteLevel","add_prefix_space":)", prefix, R"(,"trim_offsets":true,"use_regex":)",
                split.gpt2, "}]}");
}

Tokenizer load_gguf_tokenizer(const std::string& path) {
  const io::GgufFile file(path);
  return GgufTokenizer(file).tokenizer();
}

}  // namespace multihead::text
