// Folders with a .model file: what transformers puts around its pieces, by the kind of tokenizer.
#include <algorithm>
#include <map>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/files/tokenizer_json/overrides-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/sentencepiece_model-inl.h"

namespace multihead::text {
namespace {

using Type = SentencePiece::Type;

// T5 and its like: </s> after every text, <extra_id_N> from the end of the vocabulary on.
std::string t5_json(const std::string& path, const Json& config) {
  SentencePieceModel model = read_sentencepiece(path);
  model.last = "</s>";
  for (int64_t i = extra_ids_of(config, 100); i-- > 0;)
    model.more_tokens.push_back(concat("<extra_id_", i, ">"));
  return tokenizer_json_of(model);
}

// XLM-R: other special tokens before the pieces, <mask> after them.
std::string xlm_roberta_json(const std::string& path) {
  SentencePieceModel model = read_sentencepiece(path);
  MH_CHECK(model.pieces.size() > 3, FormatError, path, ": has no pieces after the special ones");
  std::vector<SentencePiece> pieces = {{"<s>", 0, Type::control},
                                       {"<pad>", 0, Type::control},
                                       {"</s>", 0, Type::control},
                                       {"<unk>", 0, Type::unknown}};
  pieces.insert(pieces.end(), model.pieces.begin() + 3, model.pieces.end());
  model.pieces = std::move(pieces);
  model.first = "<s>";
  model.second = model.last = "</s>";
  model.more_tokens = {"<mask>"};
  return tokenizer_json_of(model);
}

// CamemBERT: unused tokens, before the pieces but after the first of them.
std::string camembert_json(const std::string& path) {
  SentencePieceModel model = read_sentencepiece(path);
  std::vector<SentencePiece> pieces = {{"<s>NOTUSED", 0, Type::control},
                                       {"<pad>", 0, Type::control},
                                       {"</s>NOTUSED", 0, Type::control},
                                       {"<unk>", 0, Type::unknown},
                                       {"<unk>NOTUSED", -100, Type::control}};
  pieces.insert(pieces.end(), model.pieces.begin() + 1, model.pieces.end());
  model.pieces = std::move(pieces);
  model.first = "<s>";
  model.second = model.last = "</s>";
  model.more_tokens = {"<mask>"};
  return tokenizer_json_of(model);
}

// ALBERT: [CLS] and [SEP] are among the pieces. How text is cleaned and cut, overridden_json() knows.
std::string albert_json(const std::string& path) {
  SentencePieceModel model = read_sentencepiece(path);
  model.first = "[CLS]";
  model.last = "[SEP]";
  model.second_type = 1;
  return tokenizer_json_of(model);
}

// DeBERTa v2 and v3: as ALBERT, with [MASK] behind the pieces.
std::string deberta_json(const std::string& path) {
  SentencePieceModel model = read_sentencepiece(path);
  model.first = "[CLS]";
  model.last = "[SEP]";
  model.second_type = 1;
  const auto is_mask = [](const SentencePiece& piece) { return piece.text == "[MASK]"; };
  if (std::ranges::none_of(model.pieces, is_mask)) model.more_tokens = {"[MASK]"};
  return tokenizer_json_of(model);
}

// Llama 2, Mistral, Gemma: <s> in front unless tokenizer_config.json says otherwise.
std::string llama_json(const std::string& path, const Json& config) {
  SentencePieceModel model = read_sentencepiece(path);
  const auto control = [&](const char* key, bool missing, std::initializer_list<const char*> names) {
    const Json* flag = config.find(key);
    if (!(flag != nullptr && flag->is_bool() ? flag->as_bool() : missing)) return std::string();
    for (const char* name : names) {
      for (const SentencePiece& piece : model.pieces) {
        if (piece.type == Type::control && piece.text == name) return std::string(name);
      }
    }
    return std::string();
  };
  model.first = model.second = control("add_bos_token", true, {"<s>", "<bos>"});
  model.last = control("add_eos_token", false, {"</s>", "<eos>"});
  return tokenizer_json_of(model);
}

// The class that reads the folder in transformers, by tokenizer_config.json or the kind of model.
std::string class_of(const std::filesystem::path& folder, const Json& config) {
  const Json* name = config.find("tokenizer_class");
  if (name != nullptr && name->is_string()) return name->as_string();
  static const std::map<std::string, std::string> kClasses = {
      {"albert", "Albert"}, {"camembert", "Camembert"},       {"xlm-roberta", "XLMRoberta"},
      {"t5", "T5"},         {"xlm-roberta-xl", "XLMRoberta"}, {"mt5", "MT5"}};
  const std::string type = model_type_of(folder);
  const auto found = kClasses.find(type);
  return found != kClasses.end() ? found->second : type;
}

}  // namespace

std::string json_of_sentencepiece(const std::filesystem::path& folder) {
  std::error_code ignored;
  const auto holds = [&](const char* file) { return std::filesystem::exists(folder / file, ignored); };
  const Json config = json_in(folder, "tokenizer_config.json");
  MH_CHECK(config.is_object(), FormatError, (folder / "tokenizer_config.json").string(),
           ": must be an object");
  const std::string type = class_of(folder, config);
  const auto is_a = [&](std::string_view prefix) { return type.starts_with(prefix); };
  const auto check_type = [&](const char* file, std::initializer_list<const char*> known) {
    const bool is_known = type.empty() || std::any_of(known.begin(), known.end(), [&](const char* prefix) {
                            return type.starts_with(prefix);
                          });
    MH_CHECK(is_known, FormatError, (folder / file).string(), ": how ", type,
             " uses it is not supported; write a tokenizer.json with transformers");
  };
  if (holds("source.spm")) return json_of_marian(folder / "source.spm");
  if (holds("tokenizer.model")) {
    if (config.find("tokenizer_class") != nullptr)
      check_type("tokenizer.model", {"Llama", "Gemma", "CodeLlama", "PreTrained", "TokenizersBackend"});
    return llama_json((folder / "tokenizer.model").string(), config);
  }
  if (holds("spm.model")) {
    check_type("spm.model", {"DebertaV2", "deberta-v2"});
    return deberta_json((folder / "spm.model").string());
  }
  if (holds("spiece.model")) {
    check_type("spiece.model", {"T5", "MT5", "Albert"});
    if (!is_a("Albert")) return t5_json((folder / "spiece.model").string(), config);
    return albert_json((folder / "spiece.model").string());
  }
  if (holds("sentencepiece.bpe.model")) {
    check_type("sentencepiece.bpe.model", {"XLMRoberta", "Camembert"});
    if (is_a("Camembert")) return camembert_json((folder / "sentencepiece.bpe.model").string());
    return xlm_roberta_json((folder / "sentencepiece.bpe.model").string());
  }
  return {};
}

}  // namespace multihead::text
