#include "multihead/text/tokenizer/files/tokenizer_json/overrides-inl.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text {
namespace {

using tokenizer_json::Reader;

// What a class makes anew, of the vocabulary and the settings in tokenizer_config.json.
enum class Remade : uint8_t {
  nothing,
  cleaning,   // BERT's normalizer
  prefixing,  // whether GPT-2's texts begin with a space
  spacing,    // DeBERTa's normalizer and words
  pieces,     // XLM-R's words and decoder
  albert,     // the same after other steps
  no_prefix,  // Llama's steps where the config wants no space in front
};

// One of transformers' classes of tokenizers. Found by comparing each with transformers 5.24.
struct TokenizerClass {
  Remade remade = Remade::nothing;
  bool has_types = false;   // its model_input_names have token_type_ids
  bool is_roberta = false;  // RobertaProcessing is its own
  // "Bert" for BertTokenizer, and the kinds of models that have it where the config names none.
  std::array<std::string_view, 20> names = {};
};

constexpr TokenizerClass kClasses[] = {
    {.remade = Remade::cleaning,
     .has_types = true,
     .names = {"Bert",
               "Electra",
               "ConvBert",
               "SqueezeBert",
               "LayoutLM",
               "MobileBert",
               "Lxmert",
               "DPRQuestionEncoder",
               "DPRContextEncoder",
               "DPRReader",
               "bert",
               "distilbert",
               "electra",
               "convbert",
               "squeezebert",
               "layoutlm",
               "mobilebert",
               "nomic_bert",
               "ernie",
               "megatron-bert"}},
    {.remade = Remade::cleaning, .names = {"DistilBert", "Funnel", "funnel"}},
    {.remade = Remade::cleaning, .is_roberta = true, .names = {"MPNet", "mpnet"}},
    {.remade = Remade::prefixing,
     .is_roberta = true,
     .names = {"Roberta", "Bart", "Longformer", "LED", "Mvp", "roberta", "bart", "longformer", "led", "mvp",
               "roberta-prelayernorm"}},
    {.remade = Remade::prefixing,
     .names = {"GPT2", "GPTNeoX", "CodeGen", "Blenderbot", "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt",
               "codegen", "phi", "starcoder2", "blenderbot"}},
    {.has_types = true, .names = {"Deberta", "deberta"}},
    {.remade = Remade::spacing, .has_types = true, .names = {"DebertaV2", "deberta-v2"}},
    {.remade = Remade::pieces,
     .names = {"XLMRoberta", "Camembert", "xlm-roberta", "xlm-roberta-xl", "jina_embeddings_v3",
               "camembert"}},
    {.remade = Remade::albert, .names = {"Albert", "albert"}},
    {.remade = Remade::no_prefix, .names = {"Llama", "llama"}},
};
constexpr TokenizerClass kOther = {};  // as tokenizer.json says it
// Here the class is known to be wrong, and tokenizer.json counts.
constexpr std::string_view kAsFile[] = {"modernbert", "modernbert-decoder", "phi3", "minicpm3"};

// "Bert" of BertTokenizer and BertTokenizerFast, else the kind of model.
std::string class_name(const Json& config, const std::string& model_type) {
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

const TokenizerClass& class_of(const Json& config, const std::string& model_type) {
  const std::string name = class_name(config, model_type);
  const auto is_it = [&](const TokenizerClass& of) { return std::ranges::count(of.names, name) > 0; };
  const auto found = name.empty() ? std::end(kClasses) : std::ranges::find_if(kClasses, is_it);
  if (found == std::end(kClasses)) return kOther;
  const bool has_prefix = setting(config, "add_prefix_space", true) == Json(true);
  return found->remade == Remade::no_prefix && has_prefix ? kOther : *found;
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

// XLM-R's and its like: `steps`, the map of characters, words at white space, then a space before each.
bool override_pieces(Json& root, const Json& config, std::vector<Json> steps) {
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
bool override_no_prefix(Json& root) {
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] =
      Json::parse(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false})");
  root["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}]})");
  return true;
}

// BERT's.
bool override_cleaning(Json& root, const Json& config) {
  if (!Reader::is_type(Reader::member(root, "normalizer"), "BertNormalizer")) return false;
  return replace(root, "normalizer",
                 Json::object({{"type", "BertNormalizer"},
                               {"clean_text", true},
                               {"handle_chinese_chars", setting(config, "tokenize_chinese_chars", true)},
                               {"strip_accents", setting(config, "strip_accents", nullptr)},
                               {"lowercase", setting(config, "do_lower_case", true)}}));
}

// GPT-2's.
bool override_prefixing(Json& root, const Json& config) {
  Json step = Reader::member(root, "pre_tokenizer");
  if (!Reader::is_type(step, "ByteLevel")) return false;
  step["add_prefix_space"] = setting(config, "add_prefix_space", false);
  return replace(root, "pre_tokenizer", std::move(step));
}

// Whether a step is another one now.
bool override_steps(Json& root, const Json& config, Remade remade) {
  switch (remade) {
    case Remade::cleaning:
      return override_cleaning(root, config);
    case Remade::prefixing:
      return override_prefixing(root, config);
    case Remade::spacing:
      return override_spacing(root, config);
    case Remade::pieces:
      return override_pieces(root, config, {});
    case Remade::albert:
      return override_pieces(root, config, albert_steps(config));
    case Remade::no_prefix:
      return override_no_prefix(root);
    case Remade::nothing:
      break;
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

std::optional<Frame> frame_of(const Json& root, const Tokenizer::Model& model, const TokenizerClass& of) {
  if (of.remade == Remade::spacing) return Frame{"cls_token", "sep_token", "[CLS]", "[SEP]"};
  if (of.remade == Remade::pieces) return Frame{"bos_token", "eos_token", "<s>", "</s>", true};
  // Of BERT's and RoBERTa's, files whose template is theirs.
  const std::vector<TemplateItem>&one = model.single, &two = model.pair;
  const bool is_one = one.size() == 3 && one[1].text == 0 && one[0].type_id == 0;
  const bool is_roberta = Reader::is_type(Reader::member(root, "post_processor"), "RobertaProcessing");
  const bool is_bert = two.size() == 5 && two[3].text == 1 && two[3].type_id == 1;
  const bool is_own = (of.remade == Remade::cleaning && is_bert) || (of.is_roberta && is_roberta);
  if (!is_one || !is_own) return std::nullopt;
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

bool override_template(Json& root, const Tokenizer::Model& model, const Json& config,
                       const TokenizerClass& of) {
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

bool class_reads_word_pieces(const Json& config) {
  const std::string name = class_name(config, "");
  const TokenizerClass& of = class_of(config, "");
  return name.empty() || name == "PreTrained" || (of.remade == Remade::cleaning && !of.is_roberta);
}

bool class_gives_types(const Json& config, const std::string& model_type) {
  const std::string name = class_name(config, model_type);
  // This library's own folders of 0.1, whose models learned from types: transformers always writes the length.
  const bool is_own = name == "PreTrained" && Reader::member(config, "model_max_length").is_null();
  return name.empty() || is_own || class_of(config, model_type).has_types;
}

std::optional<std::string> overridden_json(const Tokenizer::Model& model, const Json& config,
                                           const std::string& model_type) {
  if (!config.is_object()) return std::nullopt;
  const bool is_as_file = std::ranges::count(kAsFile, model_type) > 0;
  const TokenizerClass& of = is_as_file ? kOther : class_of(config, model_type);
  const std::vector<Json> named = named_tokens(config);
  const bool lacks = std::any_of(named.begin(), named.end(), [&](const Json& token) {
    const Json& content = Reader::member(token, "content");
    return content.is_string() && std::none_of(model.added.begin(), model.added.end(),
                                               [&](const AddedToken& a) { return content == a.content; });
  });
  if (!lacks && of.remade == Remade::nothing) return std::nullopt;
  Json root = Json::parse(model.source, "tokenizer.json");
  const bool has_other_steps = override_steps(root, config, of.remade);
  const bool has_more_tokens = add_tokens(root, model, config);
  const bool has_other_template = override_template(root, model, config, of);
  return has_other_steps || has_more_tokens || has_other_template ? std::optional(root.dump()) : std::nullopt;
}

}  // namespace multihead::text
