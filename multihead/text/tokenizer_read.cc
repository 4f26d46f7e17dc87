// Reads tokenizer.json. Whatever would change the ids and is not understood is refused by name.
#include <algorithm>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/json.h"
#include "multihead/io/file_set.h"
#include "multihead/text/model-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

struct KnownPattern {
  std::string_view regex;
  SplitRule rule;
};

// The expressions of published tokenizers that split.cc codes by hand. GPT-4's possessive form matches the
// same pieces as Llama 3's.
constexpr KnownPattern kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     {SplitRule::Kind::gpt2}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {SplitRule::Kind::llama3, 3}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
     R"(|\s*[\r\n]|\s+(?!\S)|\s+)",
     {SplitRule::Kind::llama3, 3}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {SplitRule::Kind::llama3, 1}},
};

/// The member `key`; null where there is none.
const Json& member(const Json& in, const char* key) {
  static const Json null;
  const Json* found = in.find(key);
  return found ? *found : null;
}

bool is_type(const Json& in, const char* type) { return member(in, "type") == type; }

class Reader {
 public:
  Reader(const Json& root, const std::string& name, Model& model) : root_(root), name_(name), model_(model) {}

  void read() {
    if (!root_.is_object()) wrong("document", "an object", root_);
    if (const Json* version = find(root_, "version"); version && *version != "1.0")
      unsupported("version", version->dump());
    if (const Json* normalizer = find(root_, "normalizer")) read_normalizer(*normalizer);
    const Json& model = object(root_, "model", "model");
    const std::string type = model.contains("type") ? string(model, "type", "model.type") : "BPE";
    if (type == "BPE") {
      read_bpe(model);
    } else if (type == "WordPiece") {
      read_wordpiece(model);
    } else if (type == "WordLevel") {
      read_characters(model);
    } else {
      unsupported("model.type", quote(type));
    }
    if (const Json* post = find(root_, "post_processor")) read_post_processor(*post, "post_processor");
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FormatError(concat(name_, ": ", parts...));
  }
  [[noreturn]] void wrong(const std::string& where, std::string_view expected, const Json& got) const {
    fail(where, " must be ", expected, ", got ", name(got.kind()));
  }
  [[noreturn]] void unsupported(const std::string& where, const std::string& what) const {
    fail(
        where, ": ", what.size() > 200 ? what.substr(0, 200) + "..." : what,
        " is not supported; supported are byte-level BPE, WordPiece and this library's character tokenizers");
  }

  /// The member `key`, or nullptr where it is missing or null.
  static const Json* find(const Json& in, const char* key) {
    const Json* value = in.find(key);
    return value && !value->is_null() ? value : nullptr;
  }
  /// The member `key`, which must be of this kind.
  const Json& required(const Json& in, const char* key, const std::string& where, Json::Kind kind) const {
    const Json* value = find(in, key);
    if (value == nullptr) fail(where, " is missing");
    if (value->kind() != kind) wrong(where, name(kind), *value);
    return *value;
  }
  const Json& object(const Json& in, const char* key, const std::string& where) const {
    return required(in, key, where, Json::Kind::object);
  }
  const Json& array(const Json& in, const char* key, const std::string& where) const {
    return required(in, key, where, Json::Kind::array);
  }
  std::string string(const Json& in, const char* key, const std::string& where) const {
    return required(in, key, where, Json::Kind::string).as_string();
  }
  bool flag(const Json& in, const char* key, const std::string& where, bool missing = false) const {
    const Json* value = find(in, key);
    if (value == nullptr) return missing;
    if (!value->is_bool()) wrong(where + "." + key, "true or false", *value);
    return value->as_bool();
  }
  int32_t token_id(const Json& value, const std::string& where) const {
    if (!value.is_integer()) wrong(where, "an integer id", value);
    const int64_t id = value.as_int();
    if (id < 0 || id >= INT32_MAX) fail(where, ": id must be in [0, 2147483647), got ", id);
    return static_cast<int32_t>(id);
  }

  /// -1: not in the vocabulary.
  int32_t id_of(const std::string& token) const {
    const auto found = model_.ids.find(token);
    return found == model_.ids.end() ? -1 : found->second;
  }

  void read_normalizer(const Json& normalizer) {
    if (!normalizer.is_object()) wrong("normalizer", "an object", normalizer);
    const std::string type = string(normalizer, "type", "normalizer.type");
    constexpr std::pair<const char*, Normalizer> kForms[] = {{"NFC", Normalizer::nfc},
                                                             {"NFD", Normalizer::nfd},
                                                             {"NFKC", Normalizer::nfkc},
                                                             {"NFKD", Normalizer::nfkd}};
    for (const auto& [name, form] : kForms) {
      if (type == name) model_.normalizer = form;
    }
    if (model_.normalizer != Normalizer::none) return;
    if (type == "BertNormalizer") return read_cleaning(normalizer);
    if (type != "Sequence") unsupported("normalizer", quote(type));
    const Json& steps = array(normalizer, "normalizers", "normalizer.normalizers");
    if (steps.size() > 1) unsupported("normalizer", "a sequence of more than one step");
    if (steps.size() == 1) read_normalizer(steps.at(size_t{0}));
  }

  void read_cleaning(const Json& normalizer) {
    BertCleaning c;
    c.clean_text = flag(normalizer, "clean_text", "normalizer", true);
    c.handle_chinese_chars = flag(normalizer, "handle_chinese_chars", "normalizer", true);
    c.lowercase = flag(normalizer, "lowercase", "normalizer", true);
    c.strip_accents = flag(normalizer, "strip_accents", "normalizer", c.lowercase);
    model_.cleaning = c;
  }

  // Tokens: the vocabulary and the added ones must fill the ids 0 … n-1, each once.
  void read_tokens(const Json& vocab) {
    std::vector<std::pair<int32_t, std::string_view>> entries;
    for (const auto& [token, value] : vocab.members()) {
      if (token.empty()) fail("model.vocab: a token must not be empty");
      entries.emplace_back(vocab_id(token, value), token);
    }
    read_added(vocab);
    for (const AddedToken& token : model_.added)
      if (!vocab.contains(token.content)) entries.emplace_back(token.id, token.content);
    std::sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.first < b.first; });
    for (const auto& [id, token] : entries) {
      const auto next = static_cast<int32_t>(model_.tokens.size());
      if (id < next)
        fail("id ", id, " is given to both ", quote(model_.tokens.back()), " and ", quote(token));
      if (id > next)
        fail("ids have a gap: no token has id ", next, ", the next is ", quote(token), " with ", id);
      model_.tokens.emplace_back(token);
    }
    if (model_.tokens.empty()) fail("model.vocab is empty");
  }

  int32_t vocab_id(std::string_view token, const Json& value) const {
    // The place is spelt out only when it is needed: there are many tokens.
    if (!value.is_integer() || value.as_int() < 0 || value.as_int() >= INT32_MAX)
      token_id(value, "model.vocab[" + quote(token) + "]");
    return static_cast<int32_t>(value.as_int());
  }

  void read_added(const Json& vocab) {
    const Json* list = find(root_, "added_tokens");
    if (list == nullptr) return;
    if (!list->is_array()) wrong("added_tokens", "an array", *list);
    std::set<std::string> seen;
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string where = concat("added_tokens[", i, "]");
      const Json& entry = list->at(i);
      if (!entry.is_object()) wrong(where, "an object", entry);
      AddedToken token;
      token.content = string(entry, "content", where + ".content");
      if (token.content.empty()) fail(where, ".content must not be empty");
      if (!seen.insert(token.content).second)
        fail(where, ": token ", quote(token.content), " is listed twice");
      token.id = token_id(member(entry, "id"), where + ".id");
      token.special = flag(entry, "special", where);
      token.lstrip = flag(entry, "lstrip", where);
      token.rstrip = flag(entry, "rstrip", where);
      token.normalized = flag(entry, "normalized", where);
      if (flag(entry, "single_word", where)) unsupported(where + ".single_word", "true");
      if (const Json* known = vocab.find(token.content); known && *known != Json(token.id))
        fail(where, ": token ", quote(token.content), " has id ", token.id, " here and ", known->dump(),
             " in model.vocab");
      model_.added.push_back(std::move(token));
    }
  }

  void read_characters(const Json& model) {
    model_.kind = Tokenizer::Kind::characters;
    if (model_.normalizer != Normalizer::none || model_.cleaning)
      unsupported("normalizer", "one with single characters");
    const Json& pre = object(root_, "pre_tokenizer", "pre_tokenizer");
    const bool each = is_type(pre, "Split") && pattern(pre, "pre_tokenizer") == kEveryCharacter &&
                      member(pre, "behavior") == "Isolated";
    if (!each) unsupported("model.type \"WordLevel\" with pre_tokenizer", pre.dump());
    read_tokens(object(model, "vocab", "model.vocab"));
    if (!is_type(member(root_, "decoder"), "Fuse")) unsupported("decoder", member(root_, "decoder").dump());

    model_.finish();
    if (model_.characters.size() + model_.added.size() < model_.tokens.size())
      fail("model.vocab of a character tokenizer must hold single characters and added tokens only");
    model_.unk = id_of(string(model, "unk_token", "model.unk_token"));
  }

  void read_wordpiece(const Json& model) {
    model_.kind = Tokenizer::Kind::wordpiece;
    if (model_.normalizer != Normalizer::none) unsupported("normalizer", "a Unicode form with WordPiece");
    const Json& pre = object(root_, "pre_tokenizer", "pre_tokenizer");
    if (!is_type(pre, "BertPreTokenizer")) unsupported("pre_tokenizer", pre.dump());
    const Json& decoder = object(root_, "decoder", "decoder");
    if (!is_type(decoder, "WordPiece")) unsupported("decoder", decoder.dump());
    model_.cleanup = flag(decoder, "cleanup", "decoder", true);
    model_.continuing = string(model, "continuing_subword_prefix", "model.continuing_subword_prefix");
    if (string(decoder, "prefix", "decoder.prefix") != model_.continuing)
      unsupported("decoder.prefix", "another than model.continuing_subword_prefix");
    if (const Json* longest = find(model, "max_input_chars_per_word")) {
      if (!longest->is_integer() || longest->as_int() < 0)
        wrong("model.max_input_chars_per_word", "an integer of at least 0", *longest);
      model_.longest_word = longest->as_int();
    }
    read_tokens(object(model, "vocab", "model.vocab"));
    model_.finish();
    const std::string unk = string(model, "unk_token", "model.unk_token");
    model_.unk = id_of(unk);
    if (model_.unk < 0) fail("model.unk_token ", quote(unk), " is not in the vocabulary");
  }

  void read_bpe(const Json& model) {
    if (model_.cleaning) unsupported("normalizer", "\"BertNormalizer\" with model.type \"BPE\"");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json* text = find(model, key); text && *text != "")
        unsupported(concat("model.", key), text->dump());
    if (const Json* dropout = find(model, "dropout");
        dropout && !(dropout->is_number() && dropout->as_double() == 0))
      unsupported("model.dropout", dropout->dump());
    if (flag(model, "byte_fallback", "model")) unsupported("model.byte_fallback", "true");
    model_.ignore_merges = flag(model, "ignore_merges", "model");
    model_.fuse_unk = flag(model, "fuse_unk", "model");
    read_pre_tokenizer(object(root_, "pre_tokenizer", "pre_tokenizer"));
    if (!is_type(member(root_, "decoder"), "ByteLevel"))
      unsupported("decoder", member(root_, "decoder").dump());
    read_tokens(object(model, "vocab", "model.vocab"));
    model_.finish();
    read_merges(array(model, "merges", "model.merges"));
    if (const Json* unk = find(model, "unk_token"); unk && *unk != "") {
      model_.unk = id_of(string(model, "unk_token", "model.unk_token"));
      if (model_.unk < 0) fail("model.unk_token ", unk->dump(), " is not in the vocabulary");
    }
  }

  void read_merges(const Json& list) {
    std::vector<Merge> merges;
    merges.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string where = concat("model.merges[", i, "]");
      const auto [left, right] = merge_parts(list.at(i), where);
      const auto known = [&](const std::string& piece) {
        const int32_t id = id_of(piece);
        if (id < 0) fail(where, ": ", quote(piece), " is not in the vocabulary");
        return id;
      };
      merges.push_back({known(left), known(right), known(left + right)});
    }
    model_.merges = MergeTable(std::move(merges));
  }

  std::pair<std::string, std::string> merge_parts(const Json& merge, const std::string& where) const {
    if (merge.is_array() && merge.size() == 2 && merge.at(size_t{0}).is_string() && merge.at(1).is_string())
      return {merge.at(size_t{0}).as_string(), merge.at(1).as_string()};
    const bool text = merge.is_string();
    const std::string line = text ? merge.as_string() : "";
    const size_t space = line.find(' ');
    if (!text || space == line.npos || line.find(' ', space + 1) != line.npos || space == 0 ||
        space + 1 == line.size())
      fail(where, " must be two pieces, as [\"a\", \"b\"] or \"a b\", got ",
           text ? quote(line) : std::string(name(merge.kind())));
    return {line.substr(0, space), line.substr(space + 1)};
  }

  std::string pattern(const Json& split, const std::string& where) const {
    if (flag(split, "invert", where)) unsupported(where + ".invert", "true");
    const Json& pattern = object(split, "pattern", where + ".pattern");
    if (!find(pattern, "Regex")) unsupported(where + ".pattern", pattern.dump());
    return string(pattern, "Regex", where + ".pattern.Regex");
  }

  void read_pre_tokenizer(const Json& pre) {
    std::vector<const Json*> steps = {&pre};
    if (is_type(pre, "Sequence")) {
      steps.clear();
      for (const Json& step : array(pre, "pretokenizers", "pre_tokenizer.pretokenizers").items())
        steps.push_back(&step);
    }
    bool byte_level = false;
    for (const Json* step : steps) {
      if (!step->is_object()) wrong("pre_tokenizer step", "an object", *step);
      const std::string type = string(*step, "type", "pre_tokenizer.type");
      if (byte_level) unsupported("pre_tokenizer behind ByteLevel", quote(type));
      if (type == "Split") {
        model_.rules.push_back(split_rule(*step));
      } else if (type == "Digits") {
        const bool each = flag(*step, "individual_digits", "pre_tokenizer");
        model_.rules.push_back({each ? SplitRule::Kind::each_digit : SplitRule::Kind::digit_runs});
      } else if (type == "ByteLevel") {
        byte_level = true;
        model_.add_prefix_space = flag(*step, "add_prefix_space", "pre_tokenizer", true);
        if (model_.add_prefix_space && !model_.rules.empty())
          unsupported("pre_tokenizer.add_prefix_space", "true behind another step");
        if (flag(*step, "use_regex", "pre_tokenizer", true)) model_.rules.push_back({SplitRule::Kind::gpt2});
      } else {
        unsupported("pre_tokenizer", quote(type));
      }
    }
    if (!byte_level) unsupported("model.type \"BPE\" with pre_tokenizer", pre.dump());
  }

  SplitRule split_rule(const Json& split) const {
    const std::string regex = pattern(split, "pre_tokenizer");
    if (member(split, "behavior") != "Isolated")
      unsupported("pre_tokenizer.behavior", member(split, "behavior").dump());
    for (const KnownPattern& known : kPatterns)
      if (known.regex == regex) return known.rule;
    unsupported("pre_tokenizer.pattern", quote(regex));
  }

  void read_post_processor(const Json& post, const std::string& where) {
    if (!post.is_object()) wrong(where, "an object", post);
    const std::string type = string(post, "type", where + ".type");
    if (type == "ByteLevel") return;  // moves offsets, not ids
    if (type == "Sequence") {
      for (const Json& step : array(post, "processors", where + ".processors").items())
        if (is_type(step, "Sequence")) {
          unsupported(where, "a sequence of sequences");
        } else {
          read_post_processor(step, where + ".processors");
        }
    } else if (type == "TemplateProcessing") {
      read_template(post, where);
    } else if (type == "RobertaProcessing") {
      // <s> a </s></s> b </s>
      const int32_t cls = pair_id(post, "cls", where), sep = pair_id(post, "sep", where);
      model_.prefix.push_back(cls), model_.suffix.push_back(sep);
      model_.pair = {{.id = cls}, {.text = 0}, {.id = sep}, {.id = sep}, {.text = 1}, {.id = sep}};
    } else if (type == "BertProcessing") {
      const int32_t cls = pair_id(post, "cls", where), sep = pair_id(post, "sep", where);
      model_.prefix.push_back(cls), model_.suffix.push_back(sep);
      model_.pair = {
          {.id = cls}, {.text = 0}, {.id = sep}, {.text = 1, .type_id = 1}, {.id = sep, .type_id = 1}};
    } else {
      unsupported(where, quote(type));
    }
  }

  int32_t known_id(const Json& value, const std::string& where) const {
    const int32_t id = token_id(value, where);
    if (id >= std::ssize(model_.tokens)) fail(where, ": id ", id, " is not in the vocabulary");
    return id;
  }

  int32_t pair_id(const Json& post, const char* key, const std::string& where) const {
    const Json& pair = array(post, key, where + "." + key);
    if (pair.size() != 2) fail(where, ".", key, " must be [token, id]");
    return known_id(pair.at(1), where + "." + key);
  }

  // The ids of a special token of a template.
  std::vector<int32_t> template_ids(const Json& post, const Json& item, const std::string& where) const {
    if (!item.is_object()) wrong(where, "an array of objects", item);
    const std::string name = string(object(item, "SpecialToken", where), "id", where + ".id");
    const Json& tokens = object(post, "special_tokens", "post_processor.special_tokens");
    const Json& token = object(tokens, name.c_str(), "post_processor.special_tokens[" + quote(name) + "]");
    std::vector<int32_t> ids;
    for (const Json& id : array(token, "ids", "post_processor.special_tokens.ids").items())
      ids.push_back(known_id(id, "post_processor.special_tokens.ids"));
    // Each item may stand for many ids: written out, they must not be more than the file has bytes.
    if (model_.prefix.size() + model_.suffix.size() + model_.pair.size() + ids.size() > model_.source.size())
      fail(where, ": its tokens stand for more ids than the file has bytes");
    return ids;
  }

  void read_pair_template(const Json& post, const std::string& where) {
    const Json* items = find(post, "pair");
    if (items == nullptr) return;
    if (!items->is_array()) wrong(where, "an array", *items);
    for (const Json& item : items->items()) {
      const bool is_text = item.is_object() && item.contains("Sequence");
      const char* key = is_text ? "Sequence" : "SpecialToken";
      if (!item.is_object()) wrong(where, "an array of objects", item);
      const Json& part = object(item, key, where);
      const Json* type = find(part, "type_id");
      const int32_t type_id = type == nullptr ? 0 : token_id(*type, where + ".type_id");
      if (is_text) {
        const std::string which = string(part, "id", where + ".Sequence.id");
        if (which != "A" && which != "B")
          fail(where, ".Sequence.id must be \"A\" or \"B\", got ", quote(which));
        model_.pair.push_back({.text = which == "B" ? 1 : 0, .type_id = type_id});
      } else {
        for (const int32_t id : template_ids(post, item, where))
          model_.pair.push_back({.id = id, .type_id = type_id});
      }
    }
  }

  void read_template(const Json& post, const std::string& where) {
    if (!model_.prefix.empty() || !model_.suffix.empty()) unsupported(where, "a second template");
    bool behind = false;
    for (const Json& item : array(post, "single", where + ".single").items()) {
      if (item.is_object() && item.contains("Sequence")) {
        if (behind) unsupported(where + ".single", "the text twice");
        behind = true;
        continue;
      }
      for (const int32_t id : template_ids(post, item, where + ".single"))
        (behind ? model_.suffix : model_.prefix).push_back(id);
    }
    if (!behind) fail(where, ".single has no place for the text");
    read_pair_template(post, where + ".pair");
  }

  const Json& root_;
  const std::string& name_;
  Model& model_;
};

// Roles: tokenizer_config.json gives each as a string or as {"content": string}.
void read_config(std::string_view json, Model& model, const std::string& file) {
  const Json config = Json::parse(json, file);
  MH_CHECK(config.is_object(), FormatError, file, ": must be an object, got ", name(config.kind()));
  SpecialTokens special;
  for (const auto& [key, role] : kRoles) {
    const Json& given = member(config, key);
    if (given.is_null()) continue;
    const Json& value = given.is_object() ? member(given, "content") : given;
    MH_CHECK(value.is_string(), FormatError, file, ": ", key, " must be a string, got ", name(value.kind()));
    special.*role = value.as_string();
    MH_CHECK(model.ids.count(special.*role), FormatError, file, ": ", key, " ", quote(special.*role),
             " is not a token of tokenizer.json");
  }
  model.special = special;
  model.chat_template = chat_template_of(config, file);
}

// BERT's vocab.txt, a token to a line, as tokenizer.json. tokenizer_config.json may say how text is cleaned.
std::string json_of_vocabulary(const std::filesystem::path& folder) {
  const std::string file = (folder / "vocab.txt").string(), text = read_file(file);
  Json vocab = Json::object(), added = Json::array(), specials = Json::object();
  int64_t id = 0;
  for (size_t at = 0; at < text.size(); ++id) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string token = text.substr(at, end - at);
    if (token.ends_with('\r')) token.pop_back();
    MH_CHECK(!token.empty() && !vocab.contains(token), FormatError, file, ": line ", id + 1, " is ",
             token.empty() ? "empty" : "the same token as one before: " + quote(token));
    MH_CHECK(find_invalid_utf8(token) == std::string::npos, FormatError, file, ": line ", id + 1,
             " is not UTF-8");
    vocab[token] = id;
    at = end + 1;
  }
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    MH_CHECK(vocab.contains(token), FormatError, file, ": has no token ", token);
    added.push_back(Json::object({{"id", *vocab.find(token)}, {"content", token}, {"special", true}}));
    specials[token] = Json::object({{"ids", Json(std::vector<Json>{*vocab.find(token)})}});
  }
  Json config = Json::object();
  std::error_code ignored;
  if (const auto path = folder / "tokenizer_config.json"; std::filesystem::exists(path, ignored)) {
    config = Json::parse(read_file(path.string()), path.string());
  }
  Json normalizer = Json::object({{"type", "BertNormalizer"}});
  for (const auto& [ours, theirs] : {std::pair("lowercase", "do_lower_case"),
                                     {"strip_accents", "strip_accents"},
                                     {"handle_chinese_chars", "tokenize_chinese_chars"}}) {
    if (const Json& value = member(config, theirs); value.is_bool()) normalizer[ours] = value;
  }
  const auto special = [](const char* token, int type) {
    return Json::object({{"SpecialToken", Json::object({{"id", token}, {"type_id", type}})}});
  };
  const auto place = [](const char* which, int type) {
    return Json::object({{"Sequence", Json::object({{"id", which}, {"type_id", type}})}});
  };
  const std::vector<Json> single = {special("[CLS]", 0), place("A", 0), special("[SEP]", 0)};
  std::vector<Json> pair = single;
  pair.push_back(place("B", 1)), pair.push_back(special("[SEP]", 1));
  return Json::object(
             {{"version", "1.0"},
              {"added_tokens", added},
              {"normalizer", normalizer},
              {"pre_tokenizer", Json::object({{"type", "BertPreTokenizer"}})},
              {"post_processor", Json::object({{"type", "TemplateProcessing"},
                                               {"single", Json(single)},
                                               {"pair", Json(pair)},
                                               {"special_tokens", specials}})},
              {"decoder", Json::object({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}})},
              {"model", Json::object({{"type", "WordPiece"},
                                      {"unk_token", "[UNK]"},
                                      {"continuing_subword_prefix", "##"},
                                      {"max_input_chars_per_word", 100},
                                      {"vocab", vocab}})}})
      .dump();
}

// Folders that come with the files of another library say what to do with them.
void explain_missing(const std::filesystem::path& folder) {
  std::error_code ignored;
  const auto holds = [&](const char* file) { return std::filesystem::exists(folder / file, ignored); };
  if (holds("tokenizer.json")) return;
  for (const char* file : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm"}) {
    MH_CHECK(!holds(file), FormatError, folder.string(), ": has no tokenizer.json but ", file,
             ", a SentencePiece model, which is not supported; the model itself takes token ids "
             "(LanguageModel.load or Seq2Seq.load in Python) from sentencepiece or transformers");
  }
  MH_CHECK(!holds("vocab.json"), FormatError, folder.string(),
           ": has no tokenizer.json but vocab.json; write one with transformers: python3 -c \"import "
           "transformers; "
           "transformers.AutoTokenizer.from_pretrained('DIR').save_pretrained('DIR')\"");
}

std::shared_ptr<Model> read_model(std::string_view json, const std::string& name) {
  auto model = std::make_shared<Model>();
  model->source = json;
  const Json root = Json::parse(json, name);
  Reader(root, name, *model).read();
  return model;
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  return Tokenizer(read_model(json, name));
}

Tokenizer Tokenizer::from_contents(std::string_view json, std::string_view config_json) {
  const std::shared_ptr<Model> model = read_model(json, "tokenizer.json");
  read_config(config_json, *model, "tokenizer_config.json");
  return Tokenizer(model);
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  if (path.extension() == ".gguf") return load_gguf_tokenizer(path.string());
  std::error_code error;
  const bool directory = std::filesystem::is_directory(path, error);
  const bool is_vocabulary = directory && !std::filesystem::exists(path / "tokenizer.json", error) &&
                             std::filesystem::exists(path / "vocab.txt", error);
  if (directory && !is_vocabulary) {
    explain_missing(path);
    io::check_complete(path.string(), "tokenizer.json");
  }
  const std::filesystem::path file = directory ? path / "tokenizer.json" : path;
  const std::shared_ptr<Model> model =
      is_vocabulary ? read_model(json_of_vocabulary(path), (path / "vocab.txt").string())
                    : read_model(read_file(file.string()), file.string());
  const std::filesystem::path config = path / "tokenizer_config.json";
  if (directory && std::filesystem::exists(config, error)) {
    read_config(read_file(config.string()), *model, config.string());
  }
  if (directory) read_chat_template_file(path, *model);
  return Tokenizer(model);
}

}  // namespace multihead::text
