// The tokenizer that a GGUF file carries, as the tokenizer.json that says the same: one reader for both.
#include <array>

#include "multihead/core/error.h"
#include "multihead/core/json.h"
#include "multihead/core/utf8.h"
#include "multihead/io/gguf.h"
#include "multihead/text/gguf.h"
#include "multihead/text/model-inl.h"
#include "multihead/text/tokenizer_json/sentencepiece_model-inl.h"

namespace multihead::text {
namespace {

// How a vocabulary cuts text, by its name in "tokenizer.ggml.pre": the steps before the byte-level one, and
// whether that one splits as GPT-2 does.
struct PreTokenizer {
  const char* name;
  const char* steps;
  bool gpt2;
};

#define MULTIHEAD_SPLIT(regex) \
  R"({"type":"Split","pattern":{"Regex":")" regex R"("},"behavior":"Isolated","invert":false},)"
constexpr PreTokenizer kPreTokenizers[] = {
    {"default", "", true},
    {"gpt-2", "", true},
    {"smollm", R"({"type":"Digits","individual_digits":true},)", true},
    {"llama-bpe",
     MULTIHEAD_SPLIT(
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+)"
         R"([\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)"),
     false},
    {"qwen2",
     MULTIHEAD_SPLIT(
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+)"
         R"([\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)"),
     false},
};
#undef MULTIHEAD_SPLIT

std::string pre_tokenizer_json(const PreTokenizer& pre, bool prefix) {
  return concat(R"({"type":"Sequence","pretokenizers":[)", pre.steps,
                R"({"type":"ByteLevel","add_prefix_space":)", prefix, R"(,"trim_offsets":true,"use_regex":)",
                pre.gpt2, "}]}");
}

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

enum class TokenType : int64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5 };

class GgufTokenizer {
 public:
  explicit GgufTokenizer(const io::GgufFile& file)
      : file_(file), tokens_(file.strings("tokenizer.ggml.tokens")) {
    const std::string model = file.string("tokenizer.ggml.model");
    is_sentencepiece_ = model == "llama";
    if (model != "gpt2" && !is_sentencepiece_) {
      fail("tokenizer.ggml.model must be \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece's BPE), got ",
           quote(model), ", which is not supported");
    }
  }

  Tokenizer tokenizer() const {
    const std::string config = roles();
    return is_sentencepiece_ ? Tokenizer::from_contents(sentencepiece_json(), config) : byte_level(config);
  }

 private:
  // tokenizer_config.json
  std::string roles() const {
    Json config = Json::object();
    const std::array<std::pair<const char*, const char*>, 4> roles = {
        {{"bos", "bos_token"}, {"eos", "eos_token"}, {"padding", "pad_token"}, {"unknown", "unk_token"}}};
    for (const auto& [theirs, ours] : roles) {
      const std::string key = std::string("tokenizer.ggml.") + theirs + "_token_id";
      if (file_.has(key)) config[ours] = token(key);
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
    std::string text = R"({"version":"1.0","added_tokens":[)" + added_tokens() + R"(],"normalizer":null,)";
    text += R"("pre_tokenizer":)" + pre_tokenizer() + ",";
    if (flag("tokenizer.ggml.add_bos_token", false)) text += R"("post_processor":)" + bos_template() + ",";
    text += R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE")";
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
    model.is_unigram = false;
    model.byte_fallback = true;
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
    if (flag("tokenizer.ggml.add_bos_token", true))
      model.first = model.second = token("tokenizer.ggml.bos_token_id");
    if (flag("tokenizer.ggml.add_eos_token", false)) model.last = token("tokenizer.ggml.eos_token_id");
    return tokenizer_json_of(model);
  }

  bool flag(const char* key, bool missing) const { return file_.has(key) ? file_.boolean(key) : missing; }

  const std::string& token(const std::string& key) const {
    const int64_t id = file_.integer(key);
    if (id < 0 || id >= std::ssize(tokens_)) fail(key, " ", id, " is not one of ", tokens_.size(), " tokens");
    return tokens_[static_cast<size_t>(id)];
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
      if (type == TokenType::normal || type == TokenType::unused) continue;
      if (type != TokenType::control && type != TokenType::user_defined && type != TokenType::unknown) {
        fail("tokenizer.ggml.token_type ", types[id], " of token ", quote(tokens_[id]), " is not supported");
      }
      list += (list.empty() ? R"({"id":)" : R"(,{"id":)") + std::to_string(id) + R"(,"content":)" +
              json_string(tokens_[id]) +
              R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":)" +
              (type == TokenType::user_defined ? "false}" : "true}");
    }
    return list;
  }

  std::string pre_tokenizer() const {
    const std::string key = "tokenizer.ggml.pre", name = file_.has(key) ? file_.string(key) : "default";
    std::string known;
    for (const PreTokenizer& pre : kPreTokenizers) {
      known += (known.empty() ? "" : ", ") + std::string(pre.name);
      if (pre.name != name) continue;
      const std::string space = "tokenizer.ggml.add_space_prefix";
      const bool prefix = pre.gpt2 && *pre.steps == '\0' && file_.has(space) && file_.boolean(space);
      return pre_tokenizer_json(pre, prefix);
    }
    fail(key, " ", quote(name), " is not supported; supported are ", known);
  }

  std::string bos_template() const {
    const std::string key = "tokenizer.ggml.bos_token_id", bos = json_string(token(key));
    return concat(R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":)", bos,
                  R"(,"type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{)", bos,
                  R"(:{"id":)", bos, R"(,"ids":[)", file_.integer(key), R"(],"tokens":[)", bos, "]}}}");
  }

  const io::GgufFile& file_;
  bool is_sentencepiece_;
  std::vector<std::string> tokens_;
};

// The name of what cuts the text: the one that gives this tokenizer if it stands in place of its own.
std::string pre_name(const Tokenizer& tokenizer, Json json) {
  for (const PreTokenizer& pre : kPreTokenizers) {
    json["pre_tokenizer"] = Json::parse(pre_tokenizer_json(pre, false));
    if (Tokenizer::from_json(json.dump()).fingerprint() == tokenizer.fingerprint()) return pre.name;
  }
  throw ValueError("GGUF: this tokenizer's way of splitting text has no name in the format");
}

}  // namespace

io::GgufMetadata gguf_vocabulary(const Tokenizer& tokenizer, int64_t size) {
  MH_CHECK(tokenizer.kind() == Tokenizer::Kind::bpe, ValueError, "GGUF: only byte-level BPE can be written");
  MH_CHECK(tokenizer.vocab_size() <= size, ValueError, "GGUF: the tokenizer has ", tokenizer.vocab_size(),
           " tokens, the model ", size);
  const Json json = Json::parse(tokenizer.to_json());
  const auto id_type = [&](int32_t id) {
    return tokenizer.is_special(id) ? TokenType::control : TokenType::normal;
  };
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types;
  for (int32_t id = 0; id < size; ++id) {
    const bool padded = id >= tokenizer.vocab_size();
    tokens.push_back(padded ? concat("[PAD", id, "]") : tokenizer.token(id));
    types.push_back(static_cast<int64_t>(padded ? TokenType::unused : id_type(id)));
  }
  for (const Json& token : json.at("added_tokens").items()) {
    if (!token.at("special").as_bool())
      types[static_cast<size_t>(token.at("id").as_int())] = static_cast<int64_t>(TokenType::user_defined);
  }
  for (const Json& merge : json.at("model").at("merges").items()) {
    merges.push_back(merge.is_string()
                         ? merge.as_string()
                         : concat(merge.at(size_t{0}).as_string(), " ", merge.at(size_t{1}).as_string()));
  }
  const std::vector<int32_t> frame = tokenizer.encode("");
  const bool bos = frame.size() == 1 && tokenizer.bos_id() == frame[0];
  MH_CHECK(frame.empty() || bos, ValueError,
           "GGUF: the format cannot express this template; only a leading token is supported");
  io::GgufMetadata metadata = {{"tokenizer.ggml.model", "gpt2"},
                               {"tokenizer.ggml.pre", pre_name(tokenizer, json)},
                               {"tokenizer.ggml.tokens", std::move(tokens)},
                               {"tokenizer.ggml.token_type", std::move(types)},
                               {"tokenizer.ggml.merges", std::move(merges)},
                               {"tokenizer.ggml.add_bos_token", bos}};
  for (const auto& [role, id] :
       {std::pair("bos", tokenizer.bos_id()), std::pair("eos", tokenizer.eos_id()),
        std::pair("padding", tokenizer.pad_id()), std::pair("unknown", tokenizer.unk_id())}) {
    if (id) metadata.emplace_back(concat("tokenizer.ggml.", role, "_token_id"), int64_t{*id});
  }
  return metadata;
}

Tokenizer load_gguf_tokenizer(const std::string& path) {
  const io::GgufFile file(path);
  return GgufTokenizer(file).tokenizer();
}

}  // namespace multihead::text
