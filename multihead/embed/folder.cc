// The files of a folder of sentence-transformers that every kind of model reads.
#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/folder-inl.h"
#include "multihead/embed/modules-inl.h"
#include "multihead/io/config.h"

namespace multihead::embed {

std::string Prompts::resolve(const char* who, const std::optional<std::string>& prompt,
                             const std::string& name) const {
  MH_CHECK(!prompt || name.empty(), ValueError, who, ": give a prompt or the name of one, not both");
  if (prompt) return *prompt;
  const std::string& chosen = name.empty() ? default_name : name;
  if (chosen.empty()) return "";
  const auto found = texts.find(chosen);
  if (found != texts.end()) return found->second;
  std::string known;
  for (const auto& [other, text] : texts) known += (known.empty() ? "" : ", ") + other;
  throw ValueError(concat(who, ": prompt_name ", quote(chosen), " is unknown; the folder has ",
                          known.empty() ? "none" : known));
}

std::string Prompts::of(TextTask task) const {
  if (task == TextTask::none) return "";
  const std::vector<std::string> names = task == TextTask::query
                                             ? std::vector<std::string>{"query"}
                                             : std::vector<std::string>{"document", "passage", "corpus"};
  for (const std::string& name : names) {
    const auto found = texts.find(name);
    if (found != texts.end()) return found->second;
  }
  return "";
}

Similarity Prompts::compared_by(Similarity missing) const {
  if (similarity.empty()) return missing;
  const auto known = value_of<Similarity>(similarity);
  MH_CHECK(known, ValueError, "config_sentence_transformers.json: similarity_fn_name ", quote(similarity, 80),
           " is not supported; supported are cosine, dot, euclidean and manhattan");
  return *known;
}

VectorKind vector_kind(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return VectorKind::dense;
  const Json json = detail::read_json(folder, "config_sentence_transformers.json");
  const Json* type = detail::find_value(json, "model_type");
  if (type != nullptr) {
    if (*type == Json("SparseEncoder")) return VectorKind::sparse;
    if (*type == Json("MultiVectorEncoder") || *type == Json("ColBERT")) return VectorKind::multi_vector;
    return VectorKind::dense;
  }
  return detail::is_stanford(folder) ? VectorKind::multi_vector : VectorKind::dense;
}

namespace detail {

bool is_stanford(const std::string& folder) {
  const Json config = read_json(folder, "config.json");
  const Json* classes = find_value(config, "architectures");
  return classes != nullptr && *classes == Json(std::vector<Json>{Json("HF_ColBERT")});
}

std::vector<Module> read_modules(const std::string& folder) {
  std::error_code ignored;
  const std::string list = joined(folder, "modules.json");
  if (!std::filesystem::exists(list, ignored)) return {{"Transformer", folder}};
  const Json json = io::load_json(list);
  MH_CHECK(json.is_array(), FormatError, list, ": must be an array of modules");
  std::vector<Module> modules;
  for (const Json& module : json.items()) {
    const Json *type = find_value(module, "type"), *path = find_value(module, "path");
    MH_CHECK(type != nullptr && type->is_string() && path != nullptr && path->is_string(), FormatError, list,
             ": each module needs a type and a path");
    const std::string& name = type->as_string();
    const std::string& part = path->as_string();
    MH_CHECK(std::filesystem::path(part).is_relative() && part.find("..") == part.npos, FormatError, list,
             ": path ", quote(part), " leaves the folder");
    modules.push_back({name.substr(name.rfind('.') + 1), joined(folder, part)});
  }
  if (!modules.empty() && modules[0].kind == "MLMTransformer") modules[0].kind = "Transformer";
  MH_CHECK(!modules.empty() && modules[0].kind == "Transformer", FormatError, list,
           ": the first module must be a Transformer");
  return modules;
}

Prompts read_prompts(const std::string& folder, std::initializer_list<const char*> types) {
  const std::string file = joined(folder, "config_sentence_transformers.json");
  const Json json = read_json(folder, "config_sentence_transformers.json");
  Prompts read;
  if (const Json* type = find_value(json, "model_type")) {
    std::string known;
    for (const char* name : types) known += concat(known.empty() ? "" : " or ", "\"", name, "\"");
    MH_CHECK(std::any_of(types.begin(), types.end(), [&](const char* name) { return *type == Json(name); }),
             FormatError, file, ": model_type must be ", known, ", got ", quote(type->dump(), 80));
  }
  if (const Json* prompts = find_value(json, "prompts"); prompts != nullptr && prompts->is_object()) {
    for (const auto& [name, prompt] : prompts->members()) {
      MH_CHECK(prompt.is_string(), FormatError, file, ": prompt ", quote(name), " must be a text");
      read.texts[std::string(name)] = prompt.as_string();
    }
  }
  if (const Json* name = find_value(json, "default_prompt_name")) {
    MH_CHECK(name->is_string() && read.texts.contains(name->as_string()), FormatError, file,
             ": default_prompt_name ", quote(name->dump(), 80), " is none of its prompts");
    read.default_name = name->as_string();
  }
  if (const Json* name = find_value(json, "similarity_fn_name")) {
    MH_CHECK(name->is_string(), FormatError, file, ": similarity_fn_name must be a string, got ",
             quote(name->dump(), 80));
    read.similarity = name->as_string();
  }
  return read;
}

void check_transformer(const std::string& folder, const text::Tokenizer& tokenizer, const char* task,
                       std::initializer_list<std::string_view> known) {
  const Json json = read_json(folder, "sentence_bert_config.json");
  for (const auto& [key, only] : {std::pair("transformer_task", task),
                                  {"module_output_name", "token_embeddings"},
                                  {"query_length", ""},
                                  {"document_length", ""},
                                  {"query_expansion", ""}}) {
    const Json* given = find_value(json, key);
    MH_CHECK(
        given == nullptr || *given == Json(only) || std::find(known.begin(), known.end(), key) != known.end(),
        FormatError, folder, "/sentence_bert_config.json: ", key, " ", quote(given->dump(), 80),
        " is not supported");
  }
  // A tokenizer that keeps capitals is refused where the folder wants them gone.
  const Json* lowers = find_value(json, "do_lower_case");
  MH_CHECK(lowers == nullptr || !lowers->is_bool() || !lowers->as_bool() ||
               tokenizer.encode("The CAT") == tokenizer.encode("the cat"),
           FormatError, folder,
           "/sentence_bert_config.json: do_lower_case is not supported, and the tokenizer keeps capitals");
}

}  // namespace detail

}  // namespace multihead::embed
