#include <algorithm>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/json_compiler-inl.h"

// What does not fit a schema, as alternatives that are schemas again: a value that is not allowed breaks one keyword.
namespace multihead::text::grammar {
namespace {

constexpr size_t kMostCopied = 200'000;

size_t parts_of(const Json& json) {
  size_t count = 1;
  if (json.is_array()) {
    for (const Json& item : json.items()) count += parts_of(item);
  } else if (json.is_object()) {
    for (const JsonMember& member : json.members()) count += parts_of(member.value);
  }
  return count;
}

Json typed(const char* type, std::initializer_list<JsonMember> members) {
  Json json = Json::object(members);
  json["type"] = type;
  return json;
}

}  // namespace

int32_t JsonCompiler::not_of(int32_t id) {
  const Schema schema = schemas_[static_cast<size_t>(id)];
  return schema_id(*schema.json, *schema.root, schema.place, schema.ignores_values, !schema.is_negated);
}

JsonCompiler::Choice JsonCompiler::conditional(int32_t id) {
  const Json *condition = keyword(id, "if"), *then = keyword(id, "then"), *otherwise = keyword(id, "else");
  if (condition == nullptr || (then == nullptr && otherwise == nullptr)) return {};
  const Schema schema = schemas_[static_cast<size_t>(id)];
  if (is_of_draft(*schema.root, "draft-04") || is_of_draft(*schema.root, "draft-06"))
    refuse(schema, "if", "has a meaning only from draft 7 on");
  const int32_t holds = child(id, *condition, "if");
  Ids yes = {holds}, no = {not_of(holds)};
  if (then != nullptr) yes.push_back(child(id, *then, "then"));
  if (otherwise != nullptr) no.push_back(child(id, *otherwise, "else"));
  return {yes, no};
}

// One branch and no other. Branches are expected to exclude each other, which is checked in the end; those that do not
// are known when the schema is compiled again.
JsonCompiler::Choice JsonCompiler::exclusive(const Schema& schema, const Ids& branches) {
  Choice choice;
  for (const int32_t branch : branches) choice.push_back({branch});
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (overlaps_.contains({schema.place, i, j})) {
        choice[i].push_back(not_of(branches[j]));
        choice[j].push_back(not_of(branches[i]));
        continue;
      }
      exclusions_.push_back({node_of({branches[i]}), node_of({branches[j]}), {schema.place, i, j}});
      MH_CHECK(exclusions_.size() < kMostBranchings, ValueError, "JSON schema: too many branches of oneOf");
    }
  }
  return choice;
}

JsonCompiler::Choice JsonCompiler::negation(int32_t id) {
  const Schema schema = schemas_[static_cast<size_t>(id)];
  Negation of = {id, schema, {}};
  if (schema.json->is_bool()) {
    if (!schema.json->as_bool()) add_to(of, Json(true));
    return of.choice;
  }
  check_keywords(schema);
  for (const char* key : {"patternProperties", "propertyNames", "multipleOf", "format", "dependencies",
                          "dependentRequired", "dependentSchemas", "additionalProperties"}) {
    const Json* given = keyword(id, key);
    const bool is_trivial = given == nullptr || *given == Json(true) || *given == Json::object();
    if (!is_trivial)
      refuse(schema, key, "is not supported under \"not\" or in branches of oneOf that overlap");
  }
  negate_combinations(of);
  negate_type(of);
  if (!schema.ignores_values) negate_values(of);
  negate_bounds(of);
  negate_parts(of);
  return of.choice;
}

void JsonCompiler::add_to(Negation& of, Json json) {
  of.choice.push_back({made(std::move(json), of.schema.place + "/not", of.schema.root)});
}

void JsonCompiler::negate_combinations(Negation& of) {
  if (const Json* reference = keyword(of.id, "$ref")) {
    if (!reference->is_string()) refuse(of.schema, "$ref", "must be a string");
    of.choice.push_back({not_of(referenced(of.schema, reference->as_string()))});
  }
  if (const Json* inner = keyword(of.id, "not")) of.choice.push_back({child(of.id, *inner, "not")});
  for (const Ids& all : branches(of.id, "allOf")) {
    for (const int32_t one : all) of.choice.push_back({not_of(one)});
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    for (const Ids& any : branches(of.id, key)) {
      Ids none;
      for (const int32_t one : any) none.push_back(not_of(one));
      of.choice.push_back(none);
      if (std::string_view(key) == "anyOf") continue;
      exclusive(of.schema, any);  // several branches may hold where they overlap
      for (size_t i = 0; i < any.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (overlaps_.contains({of.schema.place, i, j})) of.choice.push_back({any[i], any[j]});
        }
      }
    }
  }
  const Choice condition = conditional(of.id);
  for (const Ids& way : condition) {
    if (way.size() > 1) of.choice.push_back({way[0], not_of(way[1])});
  }
}

void JsonCompiler::negate_type(Negation& of) {
  if (keyword(of.id, "type") == nullptr) return;
  bool is_integer = false;
  const unsigned kinds = kinds_of({of.id}, is_integer);
  if (is_integer && (kinds & kBitNumber))
    refuse(of.schema, "type",
           "\"integer\" is not supported under \"not\" or in branches of oneOf that overlap");
  Json others = Json::array();
  for (const auto& [word, bit] : kTypeBits) {
    if (!(kinds & bit) && word != "integer") others.push_back(Json(word));
  }
  if (others.size() > 0) add_to(of, Json::object({{"type", others}}));
}

// Strings, numbers and the rest are told from the values of enum and const each in a way of their own.
void JsonCompiler::negate_values(Negation& of) {
  for (const char* key : {"enum", "const"}) {
    const Json* given = keyword(of.id, key);
    if (given == nullptr) continue;
    const bool is_enum = std::string_view(key) == "enum";
    if (is_enum && !given->is_array()) refuse(of.schema, key, "must be an array");
    const std::vector<Json> values =
        is_enum ? std::vector<Json>(given->items().begin(), given->items().end()) : std::vector<Json>{*given};
    std::vector<std::string> texts;
    std::vector<double> numbers;
    Json words = Json::array();
    for (const Json& value : values) {
      if (value.is_array() || value.is_object())
        refuse(of.schema, key, "with arrays or objects is not supported under \"not\"");
      if (value.is_string()) texts.push_back(value.as_string());
      if (value.is_number()) numbers.push_back(value.as_double());
    }
    for (const Json& word : {Json(), Json(true), Json(false)}) {
      if (std::find(values.begin(), values.end(), word) == values.end()) words.push_back(word);
    }
    add_to(of, Json::object({{"type", Json::parse(R"(["array","object"])")}}));
    if (words.size() > 0) add_to(of, Json::object({{"enum", words}}));
    add_to(of, Json::object({{"type", "string"}}));
    if (!texts.empty()) allow_texts(of.choice.back()[0], any_text().without(ByteDfa::literals(texts)));
    std::sort(numbers.begin(), numbers.end());
    for (size_t i = 0; i <= numbers.size(); ++i) {
      Json range = typed("number", {});
      if (i > 0) range["exclusiveMinimum"] = numbers[i - 1];
      if (i < numbers.size()) range["exclusiveMaximum"] = numbers[i];
      add_to(of, std::move(range));
    }
  }
}

void JsonCompiler::negate_bounds(Negation& of) {
  constexpr std::array<std::array<const char*, 3>, 3> kCounts = {
      {{"string", "minLength", "maxLength"},
       {"array", "minItems", "maxItems"},
       {"object", "minProperties", "maxProperties"}}};
  for (const auto& [type, least, most] : kCounts) {
    const int64_t from = count(of.id, least, 0), to = count(of.id, most, -1);
    if (from > 0) add_to(of, typed(type, {{most, from - 1}}));
    if (to >= 0) add_to(of, typed(type, {{least, to + 1}}));
  }
  constexpr std::array<std::array<const char*, 2>, 4> kRanges = {{{"minimum", "exclusiveMaximum"},
                                                                  {"maximum", "exclusiveMinimum"},
                                                                  {"exclusiveMinimum", "maximum"},
                                                                  {"exclusiveMaximum", "minimum"}}};
  for (const auto& [key, opposite] : kRanges) {
    const Json* bound = keyword(of.id, key);
    if (bound == nullptr) continue;
    if (!bound->is_number()) refuse(of.schema, key, "must be a number");
    add_to(of, typed("number", {{opposite, *bound}}));
  }
  if (const Json* pattern = keyword(of.id, "pattern")) {
    const ByteDfa others = any_text().without(pattern_of(of.schema, "pattern", *pattern));
    if (others.is_empty()) return;
    add_to(of, typed("string", {}));
    allow_texts(of.choice.back()[0], others);
  }
}

// Properties and items that break their own schemas.
void JsonCompiler::negate_parts(Negation& of) {
  const auto broken = [&](const Json& part) {
    copied_ += parts_of(part);
    MH_CHECK(copied_ < kMostCopied, ValueError, "JSON schema: \"not\" takes too large schemas apart");
    return Json::object({{"not", part}});
  };
  if (const Json* required = keyword(of.id, "required")) {
    if (!required->is_array()) refuse(of.schema, "required", "must be an array of names");
    for (const Json& name : required->items()) {
      if (!name.is_string()) refuse(of.schema, "required", "must be an array of names");
      add_to(of, typed("object", {{"properties", Json::object({{name.as_string(), false}})}}));
    }
  }
  if (const Json* properties = keyword(of.id, "properties")) {
    if (!properties->is_object()) refuse(of.schema, "properties", "must be an object");
    for (const auto& [name, part] : properties->members()) {
      if (part == Json(true) || part == Json::object()) continue;
      Json names = Json::array();
      names.push_back(Json(name.view()));
      add_to(of, typed("object",
                       {{"required", names}, {"properties", Json::object({{name.view(), broken(part)}})}}));
    }
  }
  const Json *prefix = keyword(of.id, "prefixItems"), *items = keyword(of.id, "items");
  if (prefix != nullptr || (items != nullptr && items->is_array()))
    refuse(of.schema, prefix != nullptr ? "prefixItems" : "items",
           "of several schemas is not supported under \"not\" or in branches of oneOf that overlap");
  if (items != nullptr) add_to(of, typed("array", {{"contains", broken(*items)}}));
  if (const Json* contains = keyword(of.id, "contains"))
    add_to(of, typed("array", {{"items", broken(*contains)}}));
}

}  // namespace multihead::text::grammar
