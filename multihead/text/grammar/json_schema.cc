#include <algorithm>
#include <cmath>
#include <span>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/json_compiler-inl.h"

namespace multihead::text::grammar {
namespace {

// Schemas come from strangers: what they may cost.
constexpr size_t kMostSchemas = 20'000, kMostNodes = 10'000, kMostAlternatives = 256;
constexpr int kMostRounds = 12;

// Before draft 2019-09 nothing beside a reference counted.
bool is_older_draft(const Json& root) {
  return is_of_draft(root, "draft-04") || is_of_draft(root, "draft-06") || is_of_draft(root, "draft-07");
}

// 2.0 as 2, which is the same value.
Json canonical(const Json& value) {
  constexpr double kExact = 1e15;
  if (value.is_array()) {
    Json items = Json::array();
    for (const Json& item : value.items()) items.push_back(canonical(item));
    return items;
  }
  if (value.is_object()) {
    Json members = Json::object();
    for (const auto& [key, member] : value.members()) members[key.view()] = canonical(member);
    return members;
  }
  if (!value.is_number()) return value;
  const double number = value.as_double();
  return number == std::floor(number) && std::abs(number) < kExact ? Json(static_cast<int64_t>(number))
                                                                   : value;
}

std::string unescaped_pointer(std::string_view part) {
  std::string text;
  for (size_t i = 0; i < part.size(); ++i) {
    const bool is_tilde = part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1');
    const auto hex = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                    : -1;
    };
    const bool is_percent =
        part[i] == '%' && i + 2 < part.size() && hex(part[i + 1]) >= 0 && hex(part[i + 2]) >= 0;
    if (is_tilde) {
      text += part[++i] == '0' ? '~' : '/';
    } else if (is_percent) {
      text += static_cast<char>(hex(part[i + 1]) * 16 + hex(part[i + 2]));
      i += 2;
    } else {
      text += part[i];
    }
  }
  return text;
}

}  // namespace

bool is_of_draft(const Json& root, std::string_view name) {
  const Json* draft = root.is_object() ? root.find("$schema") : nullptr;
  return draft != nullptr && draft->is_string() && draft->as_string().find(name) != std::string::npos;
}

int32_t JsonCompiler::schema_id(const Json& json, const Json& root, const std::string& place,
                                bool ignores_values, bool is_negated) {
  const auto [at, is_new] = schema_ids_.try_emplace(
      {&json, unsigned{ignores_values} + 2 * unsigned{is_negated}}, static_cast<int32_t>(schemas_.size()));
  if (!is_new) return at->second;
  MH_CHECK(schemas_.size() < kMostSchemas, ValueError, "JSON schema: it holds more than ", kMostSchemas,
           " schemas");
  MH_CHECK(json.is_object() || json.is_bool(), ValueError, "JSON schema: ", quote(place),
           " must be an object or a boolean, got ", name(json.kind()));
  schemas_.push_back({&json, &root, place, ignores_values, is_negated});
  return at->second;
}

int32_t JsonCompiler::child(int32_t of, const Json& json, const std::string& path) {
  const Schema parent = schemas_[static_cast<size_t>(of)];
  return schema_id(json, *parent.root, parent.place + "/" + path);
}

int32_t JsonCompiler::made(Json json, const std::string& place, const Json* root) {
  made_.push_back(std::move(json));
  return schema_id(made_.back(), root != nullptr ? *root : made_.back(), place);
}

const Json* JsonCompiler::keyword(int32_t id, std::string_view key) const {
  const Schema& schema = schemas_[static_cast<size_t>(id)];
  if (!schema.json->is_object()) return nullptr;
  const bool is_beside = key != "$ref" && schema.json->contains("$ref");
  return is_beside && is_older_draft(*schema.root) ? nullptr : schema.json->find(key);
}

void JsonCompiler::refuse(const Schema& schema, std::string_view key, const std::string& why) const {
  throw ValueError(concat("JSON schema: ", quote(key), " at ", quote(schema.place), " ", why));
}

int32_t JsonCompiler::referenced(const Schema& from, const std::string& reference) {
  const Schema schema = from;
  if (!reference.starts_with('#') || (reference.size() > 1 && reference[1] != '/'))
    refuse(schema, "$ref", concat("must begin with \"#/\", got ", quote(reference)));
  const Json* at = schema.root;
  for (size_t begin = 2; begin <= reference.size();) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    const std::string part = unescaped_pointer(std::string_view(reference).substr(begin, end - begin));
    const Json* next = nullptr;
    if (at->is_object()) next = at->find(part);
    const bool is_index = at->is_array() && !part.empty() && part.size() < 6 &&
                          part.find_first_not_of("0123456789") == std::string::npos;
    if (is_index && std::stoul(part) < at->size()) next = &at->at(std::stoul(part));
    if (next == nullptr) refuse(schema, "$ref", concat("names ", quote(reference), ", which does not exist"));
    at = next, begin = end + 1;
  }
  return schema_id(*at, *schema.root, reference);
}

std::vector<JsonCompiler::Ids> JsonCompiler::branches(int32_t id, std::string_view key) {
  const Json* list = keyword(id, key);
  if (list == nullptr) return {};
  const Schema schema = schemas_[static_cast<size_t>(id)];
  if (!list->is_array() || list->size() == 0) refuse(schema, key, "must be an array of schemas");
  Ids ids;
  for (size_t i = 0; i < list->size(); ++i) ids.push_back(child(id, list->at(i), concat(key, "/", i)));
  return {ids};
}

Json JsonCompiler::constant_schema(const Json& value) const {
  if (value.is_array()) {
    Json items = Json::array();
    for (const Json& item : value.items()) items.push_back(Json::object({{"const", item}}));
    const auto size = static_cast<int64_t>(value.size());
    return Json::object({{"type", "array"}, {"prefixItems", items}, {"minItems", size}, {"maxItems", size}});
  }
  Json properties = Json::object(), required = Json::array();
  for (const auto& [key, member] : value.members()) {
    properties[key.view()] = Json::object({{"const", member}});
    required.push_back(Json(key.view()));
  }
  return Json::object({{"type", "object"},
                       {"properties", properties},
                       {"required", required},
                       {"additionalProperties", false}});
}

// The values of a schema's enum and const, if it has one of them; of both, those that they share.
std::optional<std::vector<Json>> JsonCompiler::values_of(int32_t id) const {
  const Schema& schema = schemas_[static_cast<size_t>(id)];
  const Json *list = keyword(id, "enum"), *one = keyword(id, "const");
  if (schema.ignores_values || (list == nullptr && one == nullptr)) return std::nullopt;
  if (list != nullptr && !list->is_array()) refuse(schema, "enum", "must be an array");
  std::vector<Json> values;
  for (const Json& value : list != nullptr ? list->items() : std::span(one, 1)) {
    Json own = canonical(value);
    if (one == nullptr || own == canonical(*one)) values.push_back(std::move(own));
  }
  return values;
}

// Arrays and objects among the values of an enum become schemas of their own, as the scalars together do. False: there
// are only scalars.
bool JsonCompiler::split_values(int32_t id, Choice& choice) {
  const std::vector<Json> values = values_of(id).value_or(std::vector<Json>());
  const Schema schema = schemas_[static_cast<size_t>(id)];
  const auto is_scalar = [](const Json& value) { return !value.is_array() && !value.is_object(); };
  if (std::all_of(values.begin(), values.end(), is_scalar)) return false;
  Json scalars = Json::array();
  for (const Json& value : values) {
    if (is_scalar(value)) {
      scalars.push_back(value);
    } else {
      choice.push_back({made(constant_schema(value), schema.place)});
    }
  }
  if (scalars.size() > 0) choice.push_back({made(Json::object({{"enum", scalars}}), schema.place)});
  return true;
}

// Either a property is not there, or what depends on it holds.
void JsonCompiler::add_dependencies(int32_t id, std::vector<Choice>& choices) {
  const Schema schema = schemas_[static_cast<size_t>(id)];
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Json* list = keyword(id, key);
    if (list == nullptr) continue;
    if (!list->is_object()) refuse(schema, key, "must be an object");
    for (const auto& [name, rule] : list->members()) {
      const std::string place = concat(schema.place, "/", key, "/", name.view());
      const Json absent = Json::object({{"properties", Json::object({{name.view(), false}})}});
      const int32_t holds = rule.is_array() ? made(Json::object({{"required", rule}}), place)
                                            : child(id, rule, concat(key, "/", name.view()));
      choices.push_back({{made(absent, place)}, {holds}});
    }
  }
}

// What a schema asks for besides what its own keywords say of a value.
void JsonCompiler::add_carrier(int32_t id, const Schema& schema, Ids& open, std::vector<Choice>& choices) {
  check_keywords(schema);
  if (const Json* reference = keyword(id, "$ref")) {
    if (!reference->is_string()) refuse(schema, "$ref", "must be a string");
    open.push_back(referenced(schema, reference->as_string()));
  }
  if (const Json* inner = keyword(id, "not")) open.push_back(not_of(child(id, *inner, "not")));
  for (const Ids& all : branches(id, "allOf")) open.insert(open.end(), all.begin(), all.end());
  add_dependencies(id, choices);
  Choice condition = conditional(id);
  if (!condition.empty()) choices.push_back(std::move(condition));
  for (const Ids& any : branches(id, "anyOf")) {
    Choice choice;
    for (const int32_t one : any) choice.push_back({one});
    choices.push_back(std::move(choice));
  }
  for (const Ids& one : branches(id, "oneOf")) choices.push_back(exclusive(schema, one));
}

void JsonCompiler::alternatives(Ids open, Ids carriers, std::vector<Choice> choices, std::vector<Ids>& out) {
  const auto is_carried = [&](int32_t id) {
    return std::find(carriers.begin(), carriers.end(), id) != carriers.end();
  };
  while (!open.empty()) {
    int32_t id = open.back();
    open.pop_back();
    const Schema schema = schemas_[static_cast<size_t>(id)];
    if (schema.json->is_bool() && !schema.is_negated) {
      if (!schema.json->as_bool()) return;  // no value
      continue;
    }
    if (is_carried(id)) continue;
    if (is_carried(not_of(id))) return;
    if (schema.is_negated) {
      carriers.push_back(id);
      choices.push_back(negation(id));
      continue;
    }
    Choice values;
    if (split_values(id, values)) {
      choices.push_back(std::move(values));
      id = schema_id(*schema.json, *schema.root, schema.place, true);
      if (is_carried(id)) continue;
    }
    carriers.push_back(id);
    add_carrier(id, schema, open, choices);
  }
  if (choices.empty()) {
    MH_CHECK(out.size() < kMostAlternatives, ValueError,
             "JSON schema: ", quote(schemas_[static_cast<size_t>(carriers.empty() ? 0 : carriers[0])].place),
             " has more than ", kMostAlternatives, " combinations of anyOf, oneOf and enum");
    std::erase_if(carriers, [&](int32_t id) { return schemas_[static_cast<size_t>(id)].is_negated; });
    std::sort(carriers.begin(), carriers.end());
    out.push_back(std::move(carriers));
    return;
  }
  const Choice choice = std::move(choices.back());
  choices.pop_back();
  for (const Ids& way : choice) {
    MH_CHECK(++branchings_ < kMostBranchings, ValueError,
             "JSON schema: anyOf, oneOf and enum combine in too many ways");
    alternatives(way, carriers, choices, out);
  }
}

int32_t JsonCompiler::node_of(Ids ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto [at, is_new] = node_ids_.try_emplace(ids, static_cast<int32_t>(program_.nodes.size()));
  if (is_new) {
    MH_CHECK(program_.nodes.size() < kMostNodes, ValueError, "JSON schema: it needs more than ", kMostNodes,
             " states");
    program_.nodes.emplace_back();
    open_.emplace_back(at->second, std::move(ids));
  }
  return at->second;
}

void JsonCompiler::expand(int32_t node, const Ids& ids) {
  if (!ids.empty() && ids[0] == kFlat) return add_variants(node, Ids(ids.begin() + 1, ids.end()));
  std::vector<Ids> sets;
  alternatives(Ids(ids.rbegin(), ids.rend()), {}, {}, sets);
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  for (const Ids& carriers : sets) add_variants(node, carriers);
}

void JsonCompiler::work() {
  while (!open_.empty()) {
    const auto [node, ids] = std::move(open_.back());
    open_.pop_back();
    expand(node, ids);
  }
}

int32_t JsonCompiler::add(const Json& schema) {
  const int32_t node = node_of({schema_id(schema, schema, "#")});
  work();
  return node;
}

LanguagePtr json_schema_language(const Json& schema) { return json_parts_language({{{.schema = &schema}}}); }

LanguagePtr json_parts_language(const std::vector<std::vector<JsonPart>>& alternatives,
                                std::string_view trigger) {
  JsonProgram program;
  JsonOverlaps overlaps;
  std::vector<std::vector<JsonProgram::Part>> sequences;
  for (int round = 0, is_done = 0; !is_done; ++round) {
    MH_CHECK(round < kMostRounds, ValueError,
             "JSON schema: branches of oneOf overlap too deep in each other");
    const size_t known = overlaps.size();
    sequences.clear();
    JsonCompiler compiler(overlaps);
    for (const std::vector<JsonPart>& parts : alternatives) {
      std::vector<JsonProgram::Part>& own = sequences.emplace_back();
      for (const JsonPart& part : parts) {
        if (part.schema != nullptr) {
          own.push_back({.node = compiler.add(*part.schema)});
        } else if (!part.literal.empty()) {
          own.push_back({.literal = std::string(part.literal)});
        }
      }
    }
    program = compiler.finish(overlaps);
    is_done = overlaps.size() == known;
  }
  for (const auto& parts : sequences) {
    for (const JsonProgram::Part& part : parts) {
      MH_CHECK(part.node < 0 || !program.nodes[static_cast<size_t>(part.node)].empty(), ValueError,
               "JSON schema: no value fits it");
    }
  }
  program.sequences = std::move(sequences), program.trigger = trigger;
  return make_json_language(std::move(program));
}

}  // namespace multihead::text::grammar
