// The files of a folder of sentence-transformers that every kind of model reads.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/modules/folder-inl.h"
#include "multihead/embed/modules/modules-inl.h"
#include "multihead/io/config.h"
#include "multihead/models/files/task_adapters.h"

namespace multihead::embed {

std::string Prompts::resolve(const char* who, const std::optional<std::string>& prompt,
                             const std::string& name) const {
  MH_CHECK(!prompt || name.empty(), ValueError, who, ": give a prompt or the name of one, not both");
  if (prompt) return *prompt;
  const std::string& chosen = name.empty() ? default_name : name;
  if (chosen.empty()) return "";
  const auto found = texts.find(chosen);
  if (found != texts.end()) return found->second;
  Enumeration known;
  for (const auto& [other, text] : texts) known.add(other);
  throw ValueError(concat(who, ": prompt_name ", quote(chosen), " is unknown; the folder has ",
                          known.empty() ? "none" : known.text()));
}

std::string Prompts::name_of(const std::string& task) const {
  std::vector<std::string> names = {task};
  if (task == word_of(TextTask::document)) names.insert(names.end(), {"passage", "corpus"});
  const auto found = std::ranges::find_if(names, [&](const auto& name) { return texts.contains(name); });
  return found == names.end() ? "" : *found;
}

std::string Prompts::of(TextTask task) const {
  const std::string name = task == TextTask::none ? "" : name_of(std::string(word_of(task)));
  return name.empty() ? "" : texts.at(name);
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
  if (type != nullptr && *type == Json("SparseEncoder")) return VectorKind::sparse;
  const bool is_native = type != nullptr && *type == Json("MultiVectorEncoder");
  const bool is_other = type == nullptr && detail::is_stanford(folder);
  return is_native || is_other || detail::is_pylate(json) ? VectorKind::multi_vector : VectorKind::dense;
}

namespace {

using detail::find_value;
using detail::Module;

Module module_of(const std::string& file, const std::string& folder, const Json* type,
                 const std::string& part) {
  MH_CHECK(type != nullptr && type->is_string(), FormatError, file, ": module ", quote(part, 80),
           " has no type");
  MH_CHECK(std::filesystem::path(part).is_relative() && part.find("..") == part.npos, FormatError, file,
           ": path ", quote(part), " leaves the folder");
  const std::string& name = type->as_string();
  // Others are code of the folder's own, but for Jina's, which we have.
  const bool is_known = std::ranges::any_of(
      std::initializer_list<std::string_view>{"sentence_transformers.", "pylate.", "custom_st.Transformer"},
      [&](std::string_view start) { return name.starts_with(start); });
  MH_CHECK(is_known, FormatError, file, ": module type ", quote(name, 80),
           " is not supported; supported are those of sentence_transformers and pylate");
  return {name.substr(name.rfind('.') + 1), detail::joined(folder, part)};
}

// Options that encode() hands on: the task is told to every module here.
void check_options(const std::string& file, const Json* given) {
  if (given == nullptr) return;
  MH_CHECK(given->is_array(), FormatError, file, ": kwargs must be an array, got ", quote(given->dump(), 80));
  for (const Json& name : given->items()) {
    MH_CHECK(name == Json("task"), FormatError, file, ": kwargs may be task alone, got ",
             quote(name.dump(), 80));
  }
}

// The lines of modules.json.
std::vector<Module> read_list(const std::string& folder) {
  std::error_code ignored;
  const std::string list = detail::joined(folder, "modules.json");
  if (!std::filesystem::exists(list, ignored)) return {{"Transformer", folder}};
  const Json json = io::load_json(list);
  MH_CHECK(json.is_array() && !json.items().empty(), FormatError, list, ": must be an array of modules");
  std::vector<Module> modules;
  std::set<std::string> names;
  for (const Json& module : json.items()) {
    const Json* name = find_value(module, "name");
    MH_CHECK(name == nullptr || names.insert(name->dump()).second, FormatError, list,
             ": two modules have the name ", quote(name->dump(), 80),
             "; one would take the place of the other");
    const Json* path = find_value(module, "path");
    MH_CHECK(path != nullptr && path->is_string(), FormatError, list,
             ": each module needs a type and a path");
    check_options(list, find_value(module, "kwargs"));
    modules.push_back(module_of(list, folder, find_value(module, "type"), path->as_string()));
  }
  return modules;
}

bool is_router(const Module& module) { return module.kind == "Router" || module.kind == "Asym"; }

// The name of the route for texts of a task: a mapping's, whose keys are written as Python writes pairs of task
// and modality, the task's or the modality's own, or without a task the default.
std::string route_of(const std::string& file, const Json& routes, const Json& parameters,
                     const std::string& task) {
  const std::string own = task.empty() ? "None" : concat("'", task, "'");
  const Json* mappings = find_value(parameters, "route_mappings");
  for (const std::string& key : {concat("(", own, ", 'text')"), concat("(", own, ", None)"),
                                 std::string("(None, 'text')"), std::string("(None, None)")}) {
    const Json* route = mappings == nullptr ? nullptr : find_value(*mappings, key.c_str());
    if (route != nullptr && route->is_string()) return route->as_string();
  }
  Enumeration known;
  for (const auto& [name, modules] : routes.members()) known.add(name);
  for (const std::string& name : {task, std::string("text")}) {
    if (!name.empty() && routes.find(name) != nullptr) return name;
  }
  MH_CHECK(task.empty(), FormatError, file, ": there is no route for the task ", quote(task, 80),
           "; the routes are ", known);
  if (const Json* name = find_value(parameters, "default_route"); name != nullptr && name->is_string())
    return name->as_string();
  const Json* takes_first = find_value(parameters, "allow_empty_key");
  MH_CHECK(takes_first == nullptr || *takes_first == Json(true), FormatError, file,
           ": there is no default route; give a task: ", known);
  return std::string(routes.members().front().key);
}

std::string router_file(const std::string& folder) {
  std::error_code ignored;
  const std::string file = detail::joined(folder, "router_config.json");
  return std::filesystem::exists(file, ignored) ? file : detail::joined(folder, "config.json");
}

// Of a Router: its routes, and what mappings name: "('query', 'text')".
std::vector<std::string> tasks_of_router(const Json& json) {
  std::vector<std::string> tasks;
  if (const Json* routes = find_value(json, "structure"); routes != nullptr && routes->is_object()) {
    for (const auto& [name, modules] : routes->members()) tasks.emplace_back(name);
  }
  const Json* parameters = find_value(json, "parameters");
  const Json* mappings = parameters == nullptr ? nullptr : find_value(*parameters, "route_mappings");
  if (mappings == nullptr || !mappings->is_object()) return tasks;
  for (const auto& [name, route] : mappings->members()) {
    const std::string key(name);
    const size_t end = key.starts_with("('") ? key.find("', ") : key.npos;
    if (end != key.npos) tasks.push_back(key.substr(2, end - 2));
  }
  return tasks;
}

// The modules of a Router's route for texts of a task.
std::vector<Module> read_route(const std::string& folder, const std::string& task) {
  const std::string file = router_file(folder);
  const Json json = io::load_json(file);
  const Json *types = find_value(json, "types"), *routes = find_value(json, "structure"),
             *parameters = find_value(json, "parameters");
  MH_CHECK(types != nullptr && types->is_object() && routes != nullptr && routes->is_object() &&
               !routes->members().empty(),
           FormatError, file, ": a Router needs types and a structure of routes");
  const std::string name = route_of(file, *routes, parameters == nullptr ? Json() : *parameters, task);
  const Json* list = find_value(*routes, name.c_str());
  MH_CHECK(list != nullptr && list->is_array() && !list->items().empty(), FormatError, file, ": route ",
           quote(name, 80), " has no modules");
  std::vector<Module> modules;
  for (const Json& id : list->items()) {
    MH_CHECK(id.is_string(), FormatError, file, ": route ", quote(name, 80), " must list names of modules");
    modules.push_back(module_of(file, folder, find_value(*types, id.as_string().c_str()), id.as_string()));
  }
  return modules;
}

}  // namespace

bool has_routes(const std::string& folder) { return !detail::read_routes(folder).empty(); }

namespace detail {

std::set<std::string> read_routes(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return {};
  const Module first = read_list(folder).front();
  const bool routes = is_router(first);
  std::vector<std::string> tasks = routes ? tasks_of_router(io::load_json(router_file(first.path)))
                                          : models::read_task_adapters(first.path).all_names();
  return {tasks.begin(), tasks.end()};
}

std::string pylate_setting(const Json& config) {
  for (const char* key :
       {"query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words",
        "do_query_expansion", "query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens"}) {
    if (config.is_object() && config.find(key) != nullptr) return key;
  }
  return "";
}

bool is_pylate(const Json& config) {
  const Json* type = find_value(config, "model_type");
  return type != nullptr ? *type == Json("ColBERT") : !pylate_setting(config).empty();
}

bool is_stanford(const std::string& folder) {
  const Json config = read_json(folder, "config.json");
  const Json* classes = find_value(config, "architectures");
  return classes != nullptr && *classes == Json(std::vector<Json>{Json("HF_ColBERT")});
}

std::vector<Module> read_modules(const std::string& folder, const std::optional<std::string>& task) {
  std::vector<Module> modules = read_list(folder);
  if (task && is_router(modules.front())) {
    std::vector<Module> route = read_route(modules.front().path, *task);
    route.insert(route.end(), modules.begin() + 1, modules.end());
    modules = std::move(route);
  }
  Module& first = modules.front();
  if (first.kind == "MLMTransformer") first.kind = "Transformer";
  MH_CHECK(first.kind == "Transformer", FormatError, first.path,
           ": the first module must be a Transformer, got ", quote(first.kind, 80));
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
  if (const Json* prompts = find_value(json, "prompts")) {
    MH_CHECK(prompts->is_object(), FormatError, file, ": prompts must be an object, got ",
             quote(prompts->dump(), 80));
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
  if (const Json* columns = find_value(json, "truncate_dim")) {
    MH_CHECK(columns->is_integer() && columns->as_int() > 0, FormatError, file,
             ": truncate_dim must be a positive integer, got ", quote(columns->dump(), 80));
    read.truncate_dim = columns->as_int();
  }
  return read;
}

namespace {

bool says_nothing(const Json& json) {
  return json.is_null() || json == Json("") || (json.is_object() && json.members().empty()) ||
         (json.is_array() && json.items().empty());
}

// Options of transformers' classes: how weights are stored and computed changes nothing here.
void check_options_of_class(const std::string& file, const std::string& key, const Json& given) {
  if (says_nothing(given)) return;
  MH_CHECK(given.is_object(), FormatError, file, ": ", key, " must be an object, got ",
           quote(given.dump(), 80));
  constexpr std::string_view kHarmless[] = {
      "trust_remote_code", "attn_implementation", "torch_dtype",     "dtype",     "device_map",
      "use_fast",          "low_cpu_mem_usage",   "use_safetensors", "use_cache", "output_hidden_states"};
  for (const JsonMember& option : given.members()) {
    MH_CHECK(says_nothing(option.value) || std::ranges::count(kHarmless, option.key.view()) > 0, FormatError,
             file, ": ", key, ".", option.key, " ", quote(option.value.dump(), 80), " is not supported");
  }
}

// What becomes of texts; images and the like have keys beside it.
void check_modality(const std::string& file, const Json& given, const char* output) {
  if (says_nothing(given)) return;
  const Json* text = find_value(given, "text");
  MH_CHECK(text != nullptr && *text == Json::object({{"method", "forward"}, {"method_output_name", output}}),
           FormatError, file, ": modality_config ", quote(given.dump(), 80),
           " is not supported; its text must have the method forward, whose ", output, " is taken");
}

}  // namespace

void check_transformer(const std::string& folder, const text::Tokenizer& tokenizer, const char* task,
                       std::initializer_list<std::string_view> known) {
  const Json json = read_json(folder, "sentence_bert_config.json");
  if (json.is_null()) return;
  const std::string file = joined(folder, "sentence_bert_config.json");
  MH_CHECK(json.is_object(), FormatError, file, ": must be an object");
  const bool is_pairs = task == std::string_view("sequence-classification");
  const bool is_head = is_pairs || task == std::string_view("fill-mask");
  const std::map<std::string_view, std::string_view> only = {
      {"transformer_task", task}, {"module_output_name", is_pairs ? "scores" : "token_embeddings"}};
  constexpr std::string_view kRead[] = {"max_seq_length", "do_lower_case", "unpad_inputs"};
  for (const auto& [name, given] : json.members()) {
    const std::string key(name);
    if (std::ranges::count(kRead, key) > 0 || std::ranges::count(known, key) > 0) continue;
    if (key == "modality_config") {
      check_modality(file, given, is_head ? "logits" : "last_hidden_state");
    } else if (key.ends_with("_args") || (key.ends_with("_kwargs") && key != "processing_kwargs")) {
      check_options_of_class(file, key, given);
    } else {
      const auto value = only.find(key);
      const bool fits = value != only.end() && given == Json(std::string(value->second));
      MH_CHECK(fits || says_nothing(given), FormatError, file, ": ", key, " ", quote(given.dump(), 80),
               " is not supported");
    }
  }
  // A tokenizer that keeps capitals is refused where the folder wants them gone.
  const Json* lowers = find_value(json, "do_lower_case");
  MH_CHECK(lowers == nullptr || !lowers->is_bool() || !lowers->as_bool() ||
               tokenizer.encode("The CAT") == tokenizer.encode("the cat"),
           FormatError, file, ": do_lower_case is not supported, and the tokenizer keeps capitals");
}

}  // namespace detail

}  // namespace multihead::embed
