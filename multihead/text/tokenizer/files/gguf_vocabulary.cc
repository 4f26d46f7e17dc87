// The metadata that hold a tokenizer in a GGUF file: what llama.cpp would not read alike is refused.
#include <algorithm>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/text/tokenizer/files/gguf.h"
#include "multihead/text/tokenizer/files/gguf_splits-inl.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

constexpr int64_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;  // token types

const Json& member(const Json& in, const char* key) {
  static const Json null;
  const Json* found = in.find(key);
  return found != nullptr ? *found : null;
}

bool is_true(const Json& in, const char* key) { return member(in, key) == true; }

// A tokenizer that cuts text so and does nothing else.
uint64_t fingerprint_of_cut(const Json& pre_tokenizer) {
  const Json json = Json::object(
      {{"pre_tokenizer", pre_tokenizer},
       {"decoder", Json::object({{"type", "ByteLevel"}})},
       {"model",
        Json::object({{"type", "BPE"}, {"vocab", Json::object({{"a", 0}})}, {"merges", Json::array()}})}});
  return Tokenizer::from_json(json.dump()).fingerprint();
}

// Whether the merges alone make each token of the vocabulary of its text. Added tokens are not made of text.
bool merges_make_all(const Tokenizer& tokenizer, const Json& json) {
  Json merging = json;
  merging["added_tokens"] = Json::array();
  merging["normalizer"] = nullptr;
  merging["post_processor"] = nullptr;
  merging["pre_tokenizer"] = Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  merging["model"]["ignore_merges"] = false;
  // Tokens that only were added are not in the vocabulary, whose ids must have no gap.
  Json& vocab = merging["model"]["vocab"];
  std::set<int64_t> is_added;
  for (const Json& added : json.at("added_tokens").items()) {
    const std::string content = added.at("content").as_string();
    if (!vocab.contains(content)) vocab[content] = added.at("id").as_int();
    is_added.insert(added.at("id").as_int());
  }
  const Tokenizer merger = Tokenizer::from_json(merging.dump());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (is_added.contains(id)) continue;
    const std::string text = symbols_to_bytes(tokenizer.token(id));
    if (bytes_to_symbols(text) != tokenizer.token(id)) continue;  // no text is cut into it
    if (merger.encode(text) != std::vector<int32_t>{id}) return false;
  }
  return true;
}

// The name of what cuts the text and, with it, of whether merges are ignored.
std::string split_name(const Tokenizer& tokenizer, const Json& json) {
  const Json& pre = member(json, "pre_tokenizer");
  const uint64_t own = fingerprint_of_cut(pre);
  const bool ignores = is_true(json.at("model"), "ignore_merges");
  std::optional<bool> all;
  for (const GgufSplit& split : kGgufSplits) {
    if (fingerprint_of_cut(Json::parse(json_of_split(split, false))) != own) continue;
    if (split.ignore_merges != ignores && !all) all = merges_make_all(tokenizer, json);
    if (split.ignore_merges == ignores || *all) {
      const std::string names = split.names;
      return names.substr(0, names.find(' '));
    }
  }
  throw ValueError(concat("GGUF: this tokenizer's way of splitting text has no name in the format: ",
                          quote(pre.dump(), 200), ignores ? " with ignore_merges" : ""));
}

void check_expressible(const Tokenizer& tokenizer, const Json& json) {
  MH_CHECK(tokenizer.kind() == Tokenizer::Kind::bpe, ValueError,
           "GGUF: only byte-level BPE can be written, got ", word_of(tokenizer.kind()));
  const Json& normalizer = member(json, "normalizer");
  MH_CHECK(normalizer.is_null() || member(normalizer, "type") == "NFC", ValueError,
           "GGUF: the format has no normalizer like this tokenizer's, ", quote(normalizer.dump(), 200));
  const Json& model = json.at("model");
  MH_CHECK(member(model, "end_of_word_suffix").is_null() || member(model, "end_of_word_suffix") == "",
           ValueError, "GGUF: the format has no end_of_word_suffix, which this tokenizer has");
  // Without an unknown token they are left out by the readers of tokenizer.json, too.
  const bool has_unknown = !member(model, "unk_token").is_null();
  for (int byte = 0; byte < 256 && has_unknown; ++byte) {
    const char c = static_cast<char>(byte);
    MH_CHECK(tokenizer.id(bytes_to_symbols({&c, 1})).has_value(), ValueError,
             "GGUF: readers leave bytes without a token out, and this tokenizer has none for byte ", byte,
             ", but an unknown token");
  }
  for (const Json& token : json.at("added_tokens").items()) {
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      MH_CHECK(!is_true(token, flag), ValueError, "GGUF: the format cannot express ", flag,
               ", which the added token ", quote(member(token, "content").as_string()), " has");
    }
  }
}

// Whether a text gets the bos token in front and the eos token at its end.
std::pair<bool, bool> frame_of(const Tokenizer& tokenizer) {
  const std::vector<int32_t> plain = tokenizer.encode("a", {.add_template = false}),
                             framed = tokenizer.encode("a");
  const auto at = std::search(framed.begin(), framed.end(), plain.begin(), plain.end());
  const std::vector<int32_t> before(framed.begin(), at),
      after(at + std::min(std::ssize(plain), framed.end() - at), framed.end());
  const auto is_only = [](const std::vector<int32_t>& ids, std::optional<int32_t> role) {
    return ids.empty() || (ids.size() == 1 && role == ids[0]);
  };
  MH_CHECK(is_only(before, tokenizer.bos_id()) && is_only(after, tokenizer.eos_id()), ValueError,
           "GGUF: the format cannot express this template; only a leading bos token and a trailing eos token "
           "are supported");
  return {!before.empty(), !after.empty()};
}

}  // namespace

bool loses_normalizer_in_gguf(const Tokenizer& tokenizer) {
  return !member(Json::parse(tokenizer.to_json()), "normalizer").is_null();
}

io::GgufMetadata gguf_vocabulary(const Tokenizer& tokenizer, int64_t size) {
  const Json json = Json::parse(tokenizer.to_json());
  check_expressible(tokenizer, json);
  MH_CHECK(tokenizer.vocab_size() <= size, ValueError, "GGUF: the tokenizer has ", tokenizer.vocab_size(),
           " tokens, the model ", size);
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types;
  for (int32_t id = 0; id < size; ++id) {
    const bool padded = id >= tokenizer.vocab_size();
    tokens.push_back(padded ? concat("[PAD", id, "]") : tokenizer.token(id));
    types.push_back(padded ? kUnused : tokenizer.is_special(id) ? kControl : kNormal);
    MH_CHECK(!padded || !tokenizer.id(tokens.back()), ValueError, "GGUF: id ", id,
             " has no token, and the name for it, ", quote(tokens.back()), ", is a token already");
  }
  for (const Json& token : json.at("added_tokens").items()) {
    if (!is_true(token, "special")) types[static_cast<size_t>(token.at("id").as_int())] = kUserDefined;
  }
  for (const Json& merge : json.at("model").at("merges").items()) {
    merges.push_back(merge.is_string()
                         ? merge.as_string()
                         : concat(merge.at(size_t{0}).as_string(), " ", merge.at(1).as_string()));
  }
  const auto [bos, eos] = frame_of(tokenizer);
  io::GgufMetadata metadata = {{"tokenizer.ggml.model", "gpt2"},
                               {"tokenizer.ggml.pre", split_name(tokenizer, json)},
                               {"tokenizer.ggml.tokens", std::move(tokens)},
                               {"tokenizer.ggml.token_type", std::move(types)},
                               {"tokenizer.ggml.merges", std::move(merges)},
                               {"tokenizer.ggml.add_bos_token", bos},
                               {"tokenizer.ggml.add_eos_token", eos}};
  for (const auto& [role, id] :
       {std::pair("bos", tokenizer.bos_id()), std::pair("eos", tokenizer.eos_id()),
        std::pair("padding", tokenizer.pad_id()), std::pair("unknown", tokenizer.unk_id())}) {
    if (id) metadata.emplace_back(concat("tokenizer.ggml.", role, "_token_id"), int64_t{*id});
  }
  if (!tokenizer.chat_template().empty())
    metadata.emplace_back("tokenizer.chat_template", tokenizer.chat_template());
  return metadata;
}

}  // namespace multihead::text
