#include <algorithm>
#include <cmath>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/json_compiler-inl.h"

namespace multihead::text::grammar {
namespace {

constexpr size_t kMostAutomata = 50'000, kMostPatterns = 6;
constexpr int64_t kMostCount = 1 << 20;

unsigned bit_of(std::string_view type) {
  for (const auto& [word, bit] : kTypeBits) {
    if (word == type) return bit;
  }
  return 0;
}

}  // namespace

void JsonCompiler::add_variant(int32_t node, JsonVariant variant) {
  automata_ += variant.dfa.size();
  MH_CHECK(automata_ <= kMostAutomata, ValueError, "JSON schema: its patterns and names need more than ",
           kMostAutomata, " states");
  program_.nodes[static_cast<size_t>(node)].push_back(static_cast<int32_t>(program_.variants.size()));
  program_.variants.push_back(std::move(variant));
}

int64_t JsonCompiler::count(int32_t id, std::string_view key, int64_t otherwise) const {
  const Json* value = keyword(id, key);
  if (value == nullptr) return otherwise;
  const bool is_whole = value->is_number() && value->as_double() >= 0 && value->as_double() <= kMostCount &&
                        value->as_double() == std::floor(value->as_double());
  if (!is_whole)
    refuse(schemas_[static_cast<size_t>(id)], key, concat("must be a whole number of at most ", kMostCount));
  return static_cast<int64_t>(value->as_double());
}

void JsonCompiler::merge_counts(const Ids& carriers, std::string_view least, std::string_view most,
                                JsonVariant& to) const {
  for (const int32_t id : carriers) {
    to.least = std::max(to.least, count(id, least, 0));
    const int64_t own = count(id, most, -1);
    if (own >= 0) to.most = to.most < 0 ? own : std::min(to.most, own);
  }
}

unsigned JsonCompiler::kinds_of(const Ids& carriers, bool& is_integer) const {
  unsigned kinds = 63;
  for (const int32_t id : carriers) {
    const Json* type = keyword(id, "type");
    if (type == nullptr) continue;
    const Schema& schema = schemas_[static_cast<size_t>(id)];
    std::vector<Json> words = type->is_array() ? std::vector<Json>(type->items().begin(), type->items().end())
                                               : std::vector<Json>{*type};
    unsigned own = 0;
    bool has_number = false;
    for (const Json& word : words) {
      const unsigned bit = word.is_string() ? bit_of(word.as_string()) : 0;
      if (bit == 0) refuse(schema, "type", concat("must name types, got ", quote(word.dump(), 60)));
      has_number |= word == Json("number");
      own |= bit;
    }
    if (!has_number) is_integer = true;
    kinds &= own;
  }
  return kinds;
}

// The values of enum and const, if any carrier has them; what else holds for them is looked at in the end.
bool JsonCompiler::add_literals(int32_t node, const Ids& carriers) {
  bool any = false;
  std::vector<Json> values;
  Ids base = {kFlat};
  for (const int32_t id : carriers) {
    const Schema schema = schemas_[static_cast<size_t>(id)];
    if (std::optional<std::vector<Json>> own = values_of(id)) {
      if (any) {
        std::erase_if(values,
                      [&](const Json& v) { return std::find(own->begin(), own->end(), v) == own->end(); });
      } else {
        values = std::move(*own);
      }
      any = true;
    }
    const bool has_values = keyword(id, "enum") != nullptr || keyword(id, "const") != nullptr;
    base.push_back(has_values ? schema_id(*schema.json, *schema.root, schema.place, true) : id);
  }
  if (!any) return false;
  literals_of_[static_cast<int32_t>(program_.variants.size())] = literals_.size();
  literals_.push_back({static_cast<int32_t>(program_.variants.size()), std::move(values), node_of(base)});
  add_variant(node, {.kind = JsonVariant::Kind::literal});
  return true;
}

void JsonCompiler::add_variants(int32_t node, const Ids& carriers) {
  if (add_literals(node, carriers)) return;
  bool is_integer = false;
  const unsigned kinds = kinds_of(carriers, is_integer);
  std::vector<std::string> words;
  if (kinds & kBitNull) words.emplace_back("null");
  if (kinds & kBitBoolean) words.insert(words.end(), {"true", "false"});
  if (!words.empty())
    add_variant(node, {.kind = JsonVariant::Kind::literal, .dfa = ByteDfa::literals(words)});
  if (kinds & kBitNumber) add_number(node, carriers, is_integer);
  if (kinds & kBitString) add_string(node, carriers);
  if (kinds & kBitArray) add_array(node, carriers);
  if (kinds & kBitObject) add_object(node, carriers);
}

void JsonCompiler::add_number(int32_t node, const Ids& carriers, bool is_integer) {
  NumberBounds bounds = {.is_integer = is_integer};
  const auto keep = [&](int32_t id, std::string_view key, std::optional<Json>& to, bool is_upper) {
    const Json* value = keyword(id, key);
    if (value == nullptr) return;
    if (!value->is_number()) refuse(schemas_[static_cast<size_t>(id)], key, "must be a number");
    const bool is_tighter =
        !to || (is_upper ? value->as_double() < to->as_double() : value->as_double() > to->as_double());
    if (is_tighter) to = *value;
  };
  for (const int32_t id : carriers) {
    keep(id, "minimum", bounds.least, false), keep(id, "maximum", bounds.most, true);
    keep(id, "exclusiveMinimum", bounds.above, false), keep(id, "exclusiveMaximum", bounds.below, true);
    const Json* multiple = keyword(id, "multipleOf");
    if (multiple == nullptr) continue;
    const bool is_whole = multiple->is_number() && multiple->as_double() >= 1 &&
                          multiple->as_double() < 1e15 &&
                          multiple->as_double() == std::floor(multiple->as_double());
    if (!is_whole)
      refuse(schemas_[static_cast<size_t>(id)], "multipleOf",
             "is supported only as a whole number below 1e15");
    const auto own = static_cast<int64_t>(multiple->as_double());
    const int64_t before = std::max<int64_t>(bounds.multiple_of, 1), shared = std::gcd(before, own);
    if (before / shared > 1'000'000'000'000'000 / own)
      refuse(schemas_[static_cast<size_t>(id)], "multipleOf", "has too large a common multiple with another");
    bounds.multiple_of = before / shared * own;
  }
  if (bounds.multiple_of == 1) bounds.multiple_of = 0, bounds.is_integer = true;
  if (!bounds.is_bounded()) {
    add_variant(node, {.kind = JsonVariant::Kind::number, .is_integer = bounds.is_integer});
    return;
  }
  JsonVariant own = {
      .kind = JsonVariant::Kind::range, .is_integer = is_integer, .range = number_range(bounds)};
  if (!own.range.is_empty()) add_variant(node, std::move(own));
}

void JsonCompiler::add_string(int32_t node, const Ids& carriers) {
  JsonVariant own = {.kind = JsonVariant::Kind::string};
  merge_counts(carriers, "minLength", "maxLength", own);
  if (own.most >= 0 && own.least > own.most) return;
  std::vector<ByteDfa> automata = texts_of(carriers);
  if (automata.empty()) {
    add_variant(node, std::move(own));
    return;
  }
  own.kind = JsonVariant::Kind::pattern, own.dfa = std::move(automata[0]);
  for (size_t i = 1; i < automata.size(); ++i) own.dfa = own.dfa.intersection(automata[i]);
  if (own.least > 0 || own.most >= 0) own.dfa = own.dfa.with_length(own.least, own.most);
  if (!own.dfa.is_empty()) add_variant(node, std::move(own));
}

void JsonCompiler::add_array(int32_t node, const Ids& carriers) {
  JsonVariant own = {.kind = JsonVariant::Kind::array};
  merge_counts(carriers, "minItems", "maxItems", own);
  struct Rule {
    Ids prefix, rest;
  };
  std::vector<Rule> rules;
  size_t longest = 0;
  Ids contained;
  for (const int32_t id : carriers) {
    Rule rule;
    const Schema schema = schemas_[static_cast<size_t>(id)];
    const Json *prefix = keyword(id, "prefixItems"), *items = keyword(id, "items");
    const char* rest = "items";
    if (items != nullptr && items->is_array()) {  // as drafts before 2020 spell it
      if (prefix != nullptr) refuse(schema, "items", "must be a schema beside prefixItems");
      prefix = items, items = keyword(id, "additionalItems"), rest = "additionalItems";
    }
    if (prefix != nullptr) {
      if (!prefix->is_array()) refuse(schema, "prefixItems", "must be an array of schemas");
      for (size_t i = 0; i < prefix->size(); ++i)
        rule.prefix.push_back(child(id, prefix->at(i), concat("prefixItems/", i)));
    }
    if (items != nullptr) rule.rest.push_back(child(id, *items, rest));
    if (const Json* contains = keyword(id, "contains")) {
      if (!contained.empty()) refuse(schema, "contains", "is supported once for a value");
      contained.push_back(child(id, *contains, "contains"));
    }
    longest = std::max(longest, rule.prefix.size());
    rules.push_back(std::move(rule));
  }
  for (size_t i = 0; i <= longest; ++i) {
    Ids ids;
    for (const Rule& rule : rules) {
      if (i < rule.prefix.size()) {
        ids.push_back(rule.prefix[i]);
      } else {
        ids.insert(ids.end(), rule.rest.begin(), rule.rest.end());
      }
    }
    Ids having = ids;
    having.insert(having.end(), contained.begin(), contained.end());
    if (!contained.empty()) own.having.push_back(node_of(std::move(having)));
    const int32_t item = node_of(std::move(ids));
    if (i < longest) {
      own.prefix.push_back(item);
    } else {
      own.items = item;
    }
  }
  if (own.most < 0 || own.least <= own.most) add_variant(node, std::move(own));
}

// The schemas that hold for a name, or for other names that fit these patterns.
JsonCompiler::Ids JsonCompiler::schemas_of_name(const Ids& carriers, const JsonVariant& own,
                                                const std::vector<NamePattern>& patterns,
                                                const std::string* name, size_t fitting) {
  Ids ids;
  for (const int32_t id : carriers) {
    bool is_named = false;
    const Json* properties = keyword(id, "properties");
    if (name != nullptr && properties != nullptr && properties->contains(*name)) {
      ids.push_back(child(id, properties->at(*name), "properties/" + *name));
      is_named = true;
    }
    const Json* by_pattern = keyword(id, "patternProperties");
    for (size_t i = 0; i < patterns.size(); ++i) {
      const bool fits = name != nullptr ? own.patterns[i].accepts(*name) : (fitting >> i & 1) != 0;
      if (patterns[i].names == id && !fits) ids.push_back(made(Json(false), "propertyNames"));
      if (patterns[i].names >= 0 || by_pattern == nullptr || !fits) continue;
      const Json* schema = by_pattern->find(patterns[i].source);
      if (schema == nullptr) continue;
      ids.push_back(child(id, *schema, "patternProperties/" + patterns[i].source));
      is_named = true;
    }
    const Json* rest = keyword(id, "additionalProperties");
    if (!is_named && rest != nullptr) ids.push_back(child(id, *rest, "additionalProperties"));
  }
  return ids;
}

// The patterns that tell names apart: those of patternProperties, and those that propertyNames allows.
void JsonCompiler::add_name_patterns(const Ids& carriers, JsonVariant& own,
                                     std::vector<NamePattern>& patterns) {
  const auto add = [&](const Schema& schema, std::string_view key, NamePattern pattern, ByteDfa dfa) {
    if (patterns.size() >= kMostPatterns)
      refuse(schema, key,
             concat("is supported for at most ", kMostPatterns, " patterns of an object's names"));
    automata_ += dfa.size();
    patterns.push_back(std::move(pattern));
    own.patterns.push_back(std::move(dfa));
  };
  for (const int32_t id : carriers) {
    const Schema schema = schemas_[static_cast<size_t>(id)];
    if (const Json* names = keyword(id, "propertyNames"))
      add(schema, "propertyNames", {.names = id}, names_of(child(id, *names, "propertyNames")));
    const Json* by_pattern = keyword(id, "patternProperties");
    if (by_pattern == nullptr) continue;
    if (!by_pattern->is_object()) refuse(schema, "patternProperties", "must be an object");
    for (const auto& [key, value] : by_pattern->members()) {
      const bool is_known = std::any_of(
          patterns.begin(), patterns.end(),
          [&, &word = key](const NamePattern& p) { return p.names < 0 && p.source == word.view(); });
      if (is_known) continue;
      add(schema, "patternProperties", {.source = std::string(key.view())},
          pattern_of(schema, "patternProperties", Json(key.view())));
    }
  }
}

void JsonCompiler::add_object(int32_t node, const Ids& carriers) {
  JsonVariant own = {.kind = JsonVariant::Kind::object};
  merge_counts(carriers, "minProperties", "maxProperties", own);
  std::vector<std::string> names;
  std::vector<NamePattern> patterns;
  std::map<std::string, bool> known;  // and whether they are required
  for (const int32_t id : carriers) {
    const Schema schema = schemas_[static_cast<size_t>(id)];
    const auto keep = [&](const std::string& name, bool is_required) {
      const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 &&
               std::string_view("\b\f\n\r\t").find(c) == std::string_view::npos;
      });
      if (has_control)
        refuse(schema, "properties", concat("has the name ", quote(name), ", which is not supported"));
      const auto [at, is_new] = known.try_emplace(name, is_required);
      if (is_new) names.push_back(name);
      at->second |= is_required;
    };
    if (const Json* properties = keyword(id, "properties")) {
      if (!properties->is_object()) refuse(schema, "properties", "must be an object");
      for (const auto& [key, value] : properties->members()) keep(std::string(key.view()), false);
    }
    if (const Json* required = keyword(id, "required")) {
      if (!required->is_array()) refuse(schema, "required", "must be an array of names");
      for (const Json& name : required->items()) {
        if (!name.is_string()) refuse(schema, "required", "must be an array of names");
        keep(name.as_string(), true);
      }
    }
  }
  add_name_patterns(carriers, own, patterns);
  for (const std::string& name : names) {
    const int32_t value = node_of(schemas_of_name(carriers, own, patterns, &name, 0));
    own.properties.push_back({name, value, known[name]});
  }
  for (size_t fitting = 0; fitting < size_t{1} << patterns.size(); ++fitting) {
    own.others.push_back(node_of(schemas_of_name(carriers, own, patterns, nullptr, fitting)));
  }
  if (!names.empty()) own.dfa = ByteDfa::literals(names);
  own.name_at.assign(own.dfa.size(), -1), own.names_at.resize(own.dfa.size());
  for (size_t p = 0; p < names.size(); ++p) {
    int32_t state = ByteDfa::kStart;
    own.names_at[0].push_back(static_cast<int32_t>(p));
    for (const char c : names[p]) {
      state = own.dfa.next(state, static_cast<uint8_t>(c));
      own.names_at[static_cast<size_t>(state)].push_back(static_cast<int32_t>(p));
    }
    own.name_at[static_cast<size_t>(state)] = static_cast<int32_t>(p);
  }
  if (own.most < 0 || own.least <= own.most) add_variant(node, std::move(own));
}

}  // namespace multihead::text::grammar
