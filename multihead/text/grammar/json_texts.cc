#include <algorithm>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/json_compiler-inl.h"

// Which strings a schema allows: its patterns, formats, and names of properties.
namespace multihead::text::grammar {
namespace {

struct FormatPattern {
  std::string_view name, pattern;
};
// As RFC 3339, 5321, 1123, 2673, 4291, 4122 and 3986 have them, or narrower: what fits is valid.
constexpr FormatPattern kFormats[] = {
    {"date",
     R"((\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|\d{4}-(0[13-9]|1[0-2])-(29|30)|\d{4}-(0[13578]|1[02])-31|)"
     R"((\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29))"},
    {"time", R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"date-time",
     R"((\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|\d{4}-(0[13-9]|1[0-2])-(29|30)|\d{4}-(0[13578]|1[02])-31|)"
     R"((\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29))"
     R"(T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"duration", R"(P(\d+W|\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D|(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)?)"
                 R"(T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)))"},
    {"email",
     R"([A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@)"
     R"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*)"},
    {"hostname",
     R"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*)"},
    {"ipv4", R"(((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"},
    {"ipv6",
     R"(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|([0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}|)"
     R"(([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|)"
     R"(([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|)"
     R"([0-9A-Fa-f]{1,4}:(:[0-9A-Fa-f]{1,4}){1,6}|:((:[0-9A-Fa-f]{1,4}){1,7}|:))"},
    {"uuid", R"([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12})"},
    {"json-pointer", R"((/([^~/]|~[01])*)*)"},
    {"relative-json-pointer", R"((0|[1-9]\d*)(#|(/([^~/]|~[01])*)*))"},
    {"uri-reference",
     R"(([A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*|)"
     R"(([A-Za-z0-9._~@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*([/?]([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?))"
     R"((#([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?)"},
    {"uri", R"([A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)"
            R"((#([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?)"},
};

// The standard takes a format that it does not know for an annotation. Known ones without a pattern here are refused, and
// known ones in another spelling.
const FormatPattern* format_named(std::string_view word, bool& is_refused) {
  constexpr std::string_view kUnsupported[] = {"regex",     "uri-template", "iri",       "iri-reference",
                                               "idn-email", "idn-hostname", "ip-address"};
  is_refused = std::find(std::begin(kUnsupported), std::end(kUnsupported), word) != std::end(kUnsupported);
  const auto letters = [](std::string_view text) {
    std::string lower = in_lower_case(text);
    std::erase_if(lower, [](char c) { return c < 'a' || c > 'z'; });
    return lower;
  };
  for (const FormatPattern& format : kFormats) {
    if (format.name == word) return &format;
    is_refused |= letters(format.name) == letters(word) && format.name.substr(0, 3) != "ipv";
  }
  return nullptr;
}

}  // namespace

const ByteDfa& JsonCompiler::any_text() {
  static const ByteDfa any = ByteDfa::regex("[\\s\\S]*");
  return any;
}

void JsonCompiler::allow_texts(int32_t id, ByteDfa texts) {
  automata_ += texts.size();
  texts_.push_back(std::move(texts));
  schemas_[static_cast<size_t>(id)].texts = &texts_.back();
}

ByteDfa JsonCompiler::pattern_of(const Schema& schema, std::string_view key, const Json& pattern) const {
  if (!pattern.is_string()) refuse(schema, key, "must be a string");
  try {
    return ByteDfa::regex(pattern.as_string(), true);
  } catch (const ValueError& error) {
    refuse(schema, key, concat("is not supported: ", error.what()));
  }
}

// What patterns and formats allow; length aside.
std::vector<ByteDfa> JsonCompiler::texts_of(const Ids& carriers) const {
  std::vector<ByteDfa> automata;
  for (const int32_t id : carriers) {
    const Schema& schema = schemas_[static_cast<size_t>(id)];
    if (schema.texts != nullptr) automata.push_back(*schema.texts);
    if (const Json* pattern = keyword(id, "pattern"))
      automata.push_back(pattern_of(schema, "pattern", *pattern));
    const Json* format = keyword(id, "format");
    if (format == nullptr) continue;
    if (!format->is_string()) refuse(schema, "format", "must be a string");
    bool is_refused = false;
    const FormatPattern* known = format_named(format->as_string(), is_refused);
    if (known != nullptr) {
      automata.push_back(ByteDfa::regex(known->pattern));
    } else if (is_refused) {
      refuse(schema, "format", concat("is not supported as ", quote(format->as_string())));
    }
  }
  return automata;
}

// The strings among a schema's values, of which a property's name must be one.
ByteDfa JsonCompiler::names_of(int32_t id) {
  std::vector<Ids> sets;
  alternatives({id}, {}, {}, sets);
  ByteDfa others = any_text();  // which no set allows
  for (const Ids& carriers : sets) {
    bool is_integer = false;
    if (!(kinds_of(carriers, is_integer) & kBitString)) continue;
    JsonVariant counts;
    merge_counts(carriers, "minLength", "maxLength", counts);
    ByteDfa own = any_text();
    for (const ByteDfa& texts : texts_of(carriers)) own = own.intersection(texts);
    for (const int32_t carrier : carriers) {
      for (const char* key : {"enum", "const"}) {
        const Json* given = keyword(carrier, key);
        if (given == nullptr || schemas_[static_cast<size_t>(carrier)].ignores_values) continue;
        std::vector<std::string> texts;
        for (const Json& value : given->is_array() ? given->items() : std::span(given, 1)) {
          if (value.is_string()) texts.push_back(value.as_string());
        }
        own = own.intersection(ByteDfa::literals(texts));
      }
    }
    if (counts.least > 0 || counts.most >= 0) own = own.with_length(counts.least, counts.most);
    others = others.without(own);
  }
  return any_text().without(others);
}

}  // namespace multihead::text::grammar
