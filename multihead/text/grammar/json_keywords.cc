#include <algorithm>
#include <array>
#include <string>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/near_names.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/json_compiler-inl.h"

// Which words of a schema restrict values. The standard takes words that it does not know for annotations; here those
// that seem to mean a restriction are refused, so that none is dropped in silence.
namespace multihead::text::grammar {
namespace {

constexpr std::array kKeywords = std::to_array<std::string_view>(
    {// any value
     "type", "enum", "const", "not", "if", "then", "else", "$ref", "allOf", "anyOf", "oneOf",
     // objects
     "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "dependencies",
     "dependentRequired", "dependentSchemas", "minProperties", "maxProperties",
     // arrays
     "items", "prefixItems", "additionalItems", "contains", "minItems", "maxItems",
     // strings and numbers
     "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
     "exclusiveMaximum", "multipleOf"});
// Of the standard, and near enough to keywords that they would be taken for misspelt ones.
constexpr std::array kAnnotations = std::to_array<std::string_view>(
    {"$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "example",
     "readOnly", "writeOnly", "deprecated", "$vocabulary", "contentEncoding", "contentMediaType",
     "contentSchema", "enumNames"});
// Of drafts, of OpenAPI, of validators' extensions, and what is written for others: they restrict values.
constexpr std::array kRestrictions = std::to_array<std::string_view>(
    {// of drafts, references among them
     "uniqueItems", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties", "extends",
     "disallow", "divisibleBy", "ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef",
     "$recursiveAnchor",
     // of others
     "nullable", "min", "max", "minValue", "maxValue", "inclusiveMinimum", "inclusiveMaximum", "range",
     "regex", "regexp", "unique", "uniqueItemProperties", "optional", "constant", "instanceof"});

template <size_t N>
bool is_in(const std::array<std::string_view, N>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// The keyword that a word seems to be meant for, or "".
std::string_view meant(std::string_view word) {
  constexpr size_t kShort = 4, kLong = 8, kLongest = 40;
  if (word.size() > kLongest) return "";
  const std::string lower = in_lower_case(word);
  for (const std::string_view keyword : kKeywords) {
    const std::string known = in_lower_case(keyword);
    const size_t size = std::min(lower.size(), known.size());
    const size_t steps = size < kShort ? 0 : size < kLong ? 1 : 2;
    if (edit_distance(lower, known) <= steps) return keyword;
  }
  return "";
}

bool has_references(const Json& json) {
  if (json.is_object() && json.contains("$ref")) return true;
  const auto in_member = [](const JsonMember& member) { return has_references(member.value); };
  return json.is_array()
             ? std::any_of(json.items().begin(), json.items().end(), has_references)
             : json.is_object() && std::any_of(json.members().begin(), json.members().end(), in_member);
}

// What changes nothing where it stands.
bool is_neutral(std::string_view word, const Json& value, const Json& schema, const Json& root) {
  if (word == "uniqueItems" || word == "nullable") return value == Json(false);
  // An id changes what the references within are relative to.
  if (word == "$id" || word == "id") return &schema == &root || !has_references(schema);
  if (word == "minContains") return value == Json(1);
  return word.starts_with("x-") || word.starts_with('_');
}

}  // namespace

void JsonCompiler::check_keywords(const Schema& schema) const {
  for (const auto& [key, value] : schema.json->members()) {
    const std::string_view word = key.view();
    if (is_in(kKeywords, word) || is_in(kAnnotations, word) ||
        is_neutral(word, value, *schema.json, *schema.root))
      continue;
    if (word == "$id" || word == "id")
      refuse(schema, word, "is supported only in the whole schema, or where no $ref is within");
    if (is_in(kRestrictions, word)) refuse(schema, word, "is not supported");
    const std::string_view keyword = meant(word);
    if (!keyword.empty())
      refuse(schema, word, concat("is not a keyword; did you mean ", quote(keyword), "?"));
  }
}

}  // namespace multihead::text::grammar
