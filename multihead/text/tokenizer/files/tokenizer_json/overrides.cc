#include "multihead/text/tokenizer/files/tokenizer_json/overrides-inl.h"

#include <algorithm>
#include <map>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text {
namespace {

using tokenizer_json::Reader;

// Classes and kinds of models whose tokenizers transformers makes anew, of the vocabulary and the settings in
// tokenizer_config.json. Found by comparing each with transformers 5.24.
constexpr const char* kCleaning[] = {"Bert",       "DistilBert",  "Electra",     "MPNet",     "MobileBert",
                                     "Funnel",     "ConvBert",    "SqueezeBert", "LayoutLM",  "bert",
                                     "distilbert", "electra",     "mpnet",       "funnel",    "mobilebert",
                                     "convbert",   "squeezebert", "layoutlm",    "nomic_bert"};
constexpr const char* kPrefixing[] = {"GPT2",     "Roberta", "Bart",       "Longformer", "LED",
                                      "Mvp",      "GPTNeoX", "CodeGen",    "Blenderbot", "gpt2",
                                      "roberta",  "bart",    "longformer", "led",        "mvp",
                                      "gpt_neox", "gpt_neo", "codegen",    "opt",        "blenderbot"};
constexpr const char* kSpacing[] = {"DebertaV2", "deberta-v2"};
constexpr const char* kPieces[] = {"XLMRoberta",     "Camembert",          "Albert", "xlm-roberta",
                                   "xlm-roberta-xl", "jina_embeddings_v3", "albert", "camembert"};
// Classes whose model_input_names have token_type_ids where the config does not say.
constexpr const char* kTyped[] = {"Bert",       "Electra",    "MobileBert",    "ConvBert",    "SqueezeBert",
                                  "LayoutLM",   "Deberta",    "DebertaV2",     "bert",        "distilbert",
                                  "electra",    "mobilebert", "convbert",      "squeezebert", "layoutlm",
                                  "nomic_bert", "ernie",      "megatron-bert", "deberta",     "deberta-v2"};
// Here the class is known to be wrong, and tokenizer.json counts.
constexpr const char* kAsFile[] = {"modernbert", "modernbert-decoder", "phi3", "minicpm3"};

template <class List>
bool holds(const List& list, std::string_view name) {
  return std::any_of(std::begin(list), std::end(list), [&](const char* entry) { return entry == name; });
}

// "Bert" of BertTokenizer and BertTokenizerFast, else the kind of model.
std::string class_of(const Json& config, const std::string& model_type) {
  const Json& name = Reader::member(config, "tokenizer_class");
  if (!name.is_string()) return model_type;
  const std::string text = name.as_string();
  const size_t end = text.rfind("Tokenizer");
  return end == 0 ? text : text.substr(0, end);  // TokenizersBackend
}

Json setting(const Json& config, const char* key, const Json& missing) {
  const Json& value = Reader::member(config, key);
  return value.is_bool() ? value : missing;
}

// Whether the member's step is another one now.
bool replace(Json& root, const char* key, Json step) {
  if (root[key] == step) return false;
  root[key] = std::move(step);
  return true;
}

Json metaspace(const std::string& scheme) {
  return Json::object(
      {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", true}});
}

// A step as newer files write it.
Json current(const Json& step) {
  if (!Reader::is_type(step, "Metaspace")) return step;
  const Json& scheme = Reader::member(step, "prepend_scheme");
  const bool prepends = setting(step, "add_prefix_space", true) == Json(true);
  Json now = metaspace(scheme.is_string() ? scheme.as_string() : prepends ? "always" : "never");
  now["replacement"] = Reader::member(step, "replacement");
  now["split"] = setting(step, "split", true);
  return now;
}

// The member's steps, which a Sequence lists.
std::vector<Json> steps_of(const Json& root, const char* key, const char* list) {
  const Json& member = Reader::member(root, key);
  if (member.is_null()) return {};
  const Json& listed = Reader::member(member, list);
  std::vector<Json> steps;
  for (const Json& step : listed.is_array() ? listed.items() : std::span(&member, 1))
    steps.push_back(current(step));
  return steps;
}

// Whether the member's steps are others now.
bool replace_steps(Json& root, const char* key, const char* list, std::vector<Json> steps) {
  if (steps_of(root, key, list) == steps) return false;
  root[key] = Json::object({{"type", "Sequence"}, {list, Json(std::move(steps))}});
  return true;
}

bool sets_no_prefix(const Json& config, const std::string& of) {
  return (of == "Llama" || of == "llama") && setting(config, "add_prefix_space", nullptr) == Json(false);
}

// DeBERTa's: white space made one space, then words with a space before each.
bool override_spacing(Json& root, const Json& config) {
  std::vector<Json> steps, cuts;
  if (setting(config, "do_lower_case", false) == Json(true))
    steps.push_back(Json::object({{"type", "Lowercase"}}));
  steps.push_back(Json::object(
      {{"type", "Replace"}, {"pattern", Json::object({{"Regex", R"(\s{2,}|[\n\r\t])"}})}, {"content", " "}}));
  steps.push_back(Json::object({{"type", "NFC"}}));
  steps.push_back(Json::object({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}));
  if (setting(config, "split_by_punct", false) == Json(true)) {
    cuts.push_back(Json::object({{"type", "Punctuation"}, {"behavior", "Isolated"}}));
  }
  const bool always = setting(config, "add_prefix_space", true) == Json(true);
  cuts.push_back(metaspace(always ? "always" : "first"));
  const bool has_other_steps = replace_steps(root, "normalizer", "normalizers", std::move(steps));
  return replace_steps(root, "pre_tokenizer", "pretokenizers", std::move(cuts)) || has_other_steps;
}

// What ALBERT does before the map of characters: quotation marks, accents and capitals.
std::vector<Json> albert_steps(const Json& config) {
  std::vector<Json> steps;
  const auto step = [&](const char* type) { steps.push_back(Json::object({{"type", type}})); };
  for (const char* quotes : {"``", "''"}) {
    steps.push_back(Json::object(
        {{"type", "Replace"}, {"pattern", Json::object({{"String", quotes}})}, {"content", "\""}}));
  }
  if (setting(config, "keep_accents", false) == Json(false)) step("NFKD"), step("StripAccents");
  if (setting(config, "do_lower_case", true) == Json(true)) step("Lowercase");
  return steps;
}

bool is_albert(const std::string& of) { return of == "Albert" || of == "albert"; }

// XLM-R's and its like: the map of characters, words at white space, then a space before each.
bool override_pieces(Json& root, const Json& config, const std::string& of) {
  std::vector<Json> steps = is_albert(of) ? albert_steps(config) : std::vector<Json>();
  const std::vector<Json> own = steps_of(root, "normalizer", "normalizers");
  const auto charsmap =
      std::ranges::find_if(own, [](const Json& step) { return Reader::is_type(step, "Precompiled"); });
  if (charsmap != own.end()) steps.push_back(*charsmap);
  const Json space = metaspace(setting(config, "add_prefix_space", true) == Json(true) ? "always" : "never");
  const bool has_other_steps = replace_steps(root, "normalizer", "normalizers", std::move(steps));
  const bool has_other_cuts = replace_steps(root, "pre_tokenizer", "pretokenizers",
                                            {Json::object({{"type", "WhitespaceSplit"}}), space});
  if (steps_of(root, "decoder", "decoders") == std::vector<Json>{space})
    return has_other_cuts || has_other_steps;
  root["decoder"] = space;
  return true;
}

// Llama's without a space in front.
void override_prefix(Json& root) {
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] =
      Json::parse(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false})");
  root["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}]})");
}

bool override_steps(Json& root, const Json& config, const std::string& of) {
  if (holds(kSpacing, of)) return override_spacing(root, config);
  if (holds(kPieces, of)) return override_pieces(root, config, of);
  if (sets_no_prefix(config, of)) return override_prefix(root), true;
  const Json& normalizer = Reader::member(root, "normalizer");
  if (holds(kCleaning, of) && Reader::is_type(normalizer, "BertNormalizer")) {
    return replace(root, "normalizer",
                   Json::object({{"type", "BertNormalizer"},
                                 {"clean_text", true},
                                 {"handle_chinese_chars", setting(config, "tokenize_chinese_chars", true)},
                                 {"strip_accents", setting(config, "strip_accents", nullptr)},
                                 {"lowercase", setting(config, "do_lower_case", true)}}));
  }
  const Json& cut = Reader::member(root, "pre_tokenizer");
  if (holds(kPrefixing, of) && Reader::is_type(cut, "ByteLevel")) {
    Json step = cut;
    step["add_prefix_space"] = setting(config, "add_prefix_space", false);
    return replace(root, "pre_tokenizer", std::move(step));
  }
  return false;
}

// A special token as tokenizer_config.json gives it: a text, or an object that says how it is found.
Json added_token(const Json& given, bool special) {
  Json token = json_of_special(0, given.is_string() ? given.as_string() : "");
  token["special"] = special;
  for (const char* key : {"content", "single_word", "lstrip", "rstrip", "normalized", "special"}) {
    if (const Json* value = given.is_object() ? Reader::find(given, key) : nullptr) token[key] = *value;
  }
  return token;
}

// The tokens that the config names, in the order in which transformers adds them.
std::vector<Json> named_tokens(const Json& config) {
  std::vector<Json> tokens;
  const Json& decoder = Reader::member(config, "added_tokens_decoder");
  std::map<int64_t, Json> by_id;
  for (const auto& [id, token] : decoder.is_object() ? decoder.members() : std::span<const JsonMember>()) {
    if (token.is_object()) by_id[std::atoll(std::string(id).c_str())] = added_token(token, false);
  }
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  for (const char* role :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const Json& given = Reader::member(config, role);
    if (given.is_string() || given.is_object()) {
      tokens.push_back(added_token(given, true));
      tokens.back()["special"] = true;
    }
  }
  for (const char* object : {"model_specific_special_tokens", "extra_special_tokens"}) {
    const Json& given = Reader::member(config, object);
    for (const auto& [name, token] : given.is_object() ? given.members() : std::span<const JsonMember>())
      if (token.is_string() || token.is_object()) tokens.push_back(added_token(token, true));
  }
  for (const char* list : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json& given = Reader::member(config, list);
    if (!given.is_array()) continue;
    for (const Json& token : given.items()) {
      if (token.is_string() || token.is_object()) tokens.push_back(added_token(token, true));
    }
  }
  return tokens;
}

bool add_tokens(Json& root, const Tokenizer::Model& model, const Json& config) {
  Json& list = root["added_tokens"];
  if (list.is_null()) list = Json::array();
  std::map<std::string, int64_t> added;
  for (const AddedToken& token : model.added) added[token.content] = token.id;
  const size_t before = added.size();
  auto next = static_cast<int64_t>(model.tokens.size());
  for (Json& token : named_tokens(config)) {
    const Json& content = Reader::member(token, "content");
    if (!content.is_string() || content == "" || added.contains(content.as_string())) continue;
    const int32_t known = model.find(content.as_string());
    token["id"] = known >= 0 ? int64_t{known} : next++;
    added[content.as_string()] = token.at("id").as_int();
    list.push_back(token);
  }
  return added.size() > before;
}

// [name, id] of the token that the config gives a role, else of `missing`; null: there is none.
Json named(const Json& root, const Tokenizer::Model& model, const Json& config, const char* role,
           const std::string& missing) {
  const Json& given = Reader::member(config, role);
  Json content = given.is_object() ? Reader::member(given, "content") : given;
  if (!content.is_string() || content == "") content = missing;
  for (const Json& token : root.at("added_tokens").items())
    if (token.at("content") == content) return std::vector<Json>{content, token.at("id")};
  const int32_t id = model.find(content.as_string());
  return id < 0 ? Json(nullptr) : Json(std::vector<Json>{content, id});
}

// The tokens around every text as a class makes them, whatever the file says: which roles have them, what these
// are where the config does not say, and whether RoBERTa's pairs (two ends between the texts, one type) are made.
struct Frame {
  std::string begin_role, end_role, begin, end;
  bool is_roberta = false;
};

std::optional<Frame> frame_of(const Json& root, const Tokenizer::Model& model, const std::string& of) {
  if (is_albert(of)) return std::nullopt;
  if (holds(kSpacing, of)) return Frame{"cls_token", "sep_token", "[CLS]", "[SEP]"};
  if (holds(kPieces, of)) return Frame{"bos_token", "eos_token", "<s>", "</s>", true};
  // Of BERT's and RoBERTa's, files whose template is theirs.
  const std::vector<TemplateItem>&one = model.single, &two = model.pair;
  const bool is_one = one.size() == 3 && one[1].text == 0 && one[0].type_id == 0;
  const bool is_roberta = Reader::is_type(Reader::member(root, "post_processor"), "RobertaProcessing");
  const bool is_bert = two.size() == 5 && two[3].text == 1 && two[3].type_id == 1;
  const bool may_be_roberta = of == "Roberta" || of == "roberta" || of == "MPNet" || of == "mpnet";
  if (!is_one || !((holds(kCleaning, of) && is_bert) || (may_be_roberta && is_roberta))) return std::nullopt;
  const auto token = [&](size_t i) { return model.tokens[static_cast<size_t>(one[i].id)]; };
  return Frame{"cls_token", "sep_token", token(0), token(2), is_roberta};
}

// Whether the file's template is that already.
bool is_framed(const Tokenizer::Model& model, const Frame& frame, const Json& cls, const Json& sep) {
  const auto b = static_cast<int32_t>(cls.at(1).as_int()), e = static_cast<int32_t>(sep.at(1).as_int());
  const int type = frame.is_roberta ? 0 : 1;
  std::vector<TemplateItem> one = {{.id = b}, {.text = 0}, {.id = e}}, two = one;
  if (frame.is_roberta) two.push_back({.id = e});
  two.push_back({.text = 1, .type_id = type});
  two.push_back({.id = e, .type_id = type});
  return model.single == one && model.pair == two;
}

bool override_template(Json& root, const Tokenizer::Model& model, const Json& config, const std::string& of) {
  const std::optional<Frame> frame = frame_of(root, model, of);
  if (!frame) return false;
  const Json cls = named(root, model, config, frame->begin_role.c_str(), frame->begin),
             sep = named(root, model, config, frame->end_role.c_str(), frame->end);
  if (cls.is_null() || sep.is_null() || is_framed(model, *frame, cls, sep)) return false;
  const Json& post = Reader::member(root, "post_processor");
  const bool is_roberta = Reader::is_type(post, "RobertaProcessing");
  Json step = Json::object({{"type", "BertProcessing"}});
  if (frame->is_roberta) step = Json::object({{"type", "RobertaProcessing"}, {"trim_offsets", false}});
  if (frame->is_roberta && is_roberta) step = post;
  step["cls"] = cls, step["sep"] = sep;
  return replace(root, "post_processor", std::move(step));
}

}  // namespace

bool class_gives_types(const Json& config, const std::string& model_type) {
  const std::string of = class_of(config, model_type);
  // This library's own folders of 0.1, whose models learned from types: transformers always writes the length.
  const bool is_own = of == "PreTrained" && Reader::member(config, "model_max_length").is_null();
  return of.empty() || is_own || holds(kTyped, of);
}

std::optional<std::string> overridden_json(const Tokenizer::Model& model, const Json& config,
                                           const std::string& model_type) {
  if (!config.is_object()) return std::nullopt;
  const std::string of = holds(kAsFile, model_type) ? "" : class_of(config, model_type);
  const std::vector<Json> named = named_tokens(config);
  const bool lacks = std::any_of(named.begin(), named.end(), [&](const Json& token) {
    const Json& content = Reader::member(token, "content");
    return content.is_string() && std::none_of(model.added.begin(), model.added.end(),
                                               [&](const AddedToken& a) { return content == a.content; });
  });
  if (!lacks && !holds(kCleaning, of) && !holds(kPrefixing, of) && !holds(kSpacing, of) &&
      !holds(kPieces, of) && !sets_no_prefix(config, of))
    return std::nullopt;
  Json root = Json::parse(model.source, "tokenizer.json");
  const bool has_other_steps = override_steps(root, config, of);
  const bool has_more_tokens = add_tokens(root, model, config);
  const bool has_other_template = override_template(root, model, config, of);
  return has_other_steps || has_more_tokens || has_other_template ? std::optional(root.dump()) : std::nullopt;
}

}  // namespace multihead::text
