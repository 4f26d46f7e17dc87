#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/json_compiler-inl.h"

namespace multihead::text::grammar {
namespace {

bool is_whole(const Json& number) {
  return number.is_integer() || number.as_double() == std::floor(number.as_double());
}

bool are_apart(const JsonVariant& a, const JsonVariant& b) {
  return (a.most >= 0 && a.most < b.least) || (b.most >= 0 && b.most < a.least);
}

bool is_number_kind(JsonVariant::Kind kind) {
  return kind == JsonVariant::Kind::number || kind == JsonVariant::Kind::range;
}
bool is_string_kind(JsonVariant::Kind kind) {
  return kind == JsonVariant::Kind::string || kind == JsonVariant::Kind::pattern;
}

}  // namespace

// Whether a value that is neither array nor object is one of a variant's.
bool JsonCompiler::has_scalar(const JsonVariant& own, const Json& value) const {
  switch (own.kind) {
    case JsonVariant::Kind::literal:
      return own.dfa.accepts(value.dump());
    case JsonVariant::Kind::number:
      return value.is_number() && (!own.is_integer || is_whole(value));
    case JsonVariant::Kind::range:
      return value.is_number() && (!own.is_integer || is_whole(value)) && own.range.holds(value);
    case JsonVariant::Kind::string: {
      if (!value.is_string()) return false;
      const int64_t size = count_utf8(value.as_string());
      return size >= own.least && (own.most < 0 || size <= own.most);
    }
    case JsonVariant::Kind::pattern:
      return value.is_string() && own.dfa.accepts(value.as_string());
    default:
      return false;
  }
}

// Keeps the enum's values that the other keywords allow.
void JsonCompiler::fill_literals(size_t at, std::vector<uint8_t>& done) {
  if (done[at]) return;
  done[at] = 1;
  const Literals own = literals_[at];
  const std::vector<int32_t> others = program_.nodes[static_cast<size_t>(own.base)];
  std::vector<std::string> texts;
  for (const int32_t other : others) {
    const auto found = literals_of_.find(other);
    if (found != literals_of_.end()) fill_literals(found->second, done);
  }
  for (const Json& value : own.values) {
    const bool fits = std::any_of(others.begin(), others.end(), [&](int32_t other) {
      return has_scalar(program_.variants[static_cast<size_t>(other)], value);
    });
    if (!fits) continue;
    texts.push_back(value.dump());
    constexpr double kExact = 1e15;
    if (value.is_number() && is_whole(value) &&
        std::abs(value.as_double()) < kExact) {  // 2 and 2.0 are one value
      const std::string digits = std::to_string(static_cast<int64_t>(value.as_double()));
      texts.insert(texts.end(), {digits, digits + ".0"});
    }
  }
  if (texts.empty()) return;
  automata_ += texts.size();
  program_.variants[static_cast<size_t>(own.variant)].dfa = ByteDfa::literals(texts);
}

bool JsonCompiler::is_productive(const JsonVariant& own, const std::vector<uint8_t>& nodes) const {
  const auto lives = [&](int32_t node) { return nodes[static_cast<size_t>(node)] != 0; };
  switch (own.kind) {
    case JsonVariant::Kind::literal:
    case JsonVariant::Kind::pattern:
      return !own.dfa.is_empty();
    case JsonVariant::Kind::array:
      for (int64_t i = 0; i < std::min<int64_t>(own.least, std::ssize(own.prefix) + 1); ++i) {
        if (!lives(own.item(i))) return false;
      }
      return own.having.empty() || own.can_find(0, lives);
    case JsonVariant::Kind::object: {
      int64_t required = 0, possible = 0;
      for (const JsonProperty& property : own.properties) {
        if (property.is_required && !lives(property.node)) return false;
        required += property.is_required, possible += lives(property.node);
      }
      const bool has_others = std::any_of(own.others.begin(), own.others.end(), lives);
      return (own.most < 0 || required <= own.most) && (has_others || possible >= own.least);
    }
    default:
      return true;
  }
}

// Takes out the variants that no finite text completes, such as an object that must hold one like itself.
void JsonCompiler::prune() {
  std::vector<uint8_t> lives(program_.variants.size(), 0), nodes(program_.nodes.size(), 0);
  for (bool changes = true; changes;) {
    changes = false;
    for (size_t node = 0; node < nodes.size(); ++node) {
      for (const int32_t number : program_.nodes[node]) {
        uint8_t& own = lives[static_cast<size_t>(number)];
        if (own || !is_productive(program_.variants[static_cast<size_t>(number)], nodes)) continue;
        own = nodes[node] = 1;
        changes = true;
      }
    }
  }
  for (std::vector<int32_t>& list : program_.nodes) {
    std::erase_if(list, [&](int32_t number) { return lives[static_cast<size_t>(number)] == 0; });
  }
  for (JsonVariant& own : program_.variants) {
    if (own.kind != JsonVariant::Kind::object) continue;
    own.has_others =
        std::any_of(own.others.begin(), own.others.end(), [&](int32_t n) { return is_possible(n); });
    const auto required = std::count_if(own.properties.begin(), own.properties.end(),
                                        [](const JsonProperty& p) { return p.is_required; });
    if (own.least <= required) own.least = 0;  // they alone are enough
    own.counts_names = own.has_others && (own.most >= 0 || own.least > 0);
  }
}

bool JsonCompiler::have_disjoint_property(const JsonVariant& a, const JsonVariant& b, int depth) const {
  return std::any_of(a.properties.begin(), a.properties.end(), [&](const JsonProperty& property) {
    if (!property.is_required) return false;
    const auto same = std::find_if(b.properties.begin(), b.properties.end(),
                                   [&](const JsonProperty& p) { return p.name == property.name; });
    if (same != b.properties.end()) return are_disjoint(property.node, same->node, depth - 1);
    size_t fitting = 0;
    for (size_t i = 0; i < b.patterns.size(); ++i)
      fitting |= size_t{b.patterns[i].accepts(property.name)} << i;
    return are_disjoint(property.node, b.others[fitting], depth - 1);
  });
}

bool JsonCompiler::are_disjoint(const JsonVariant& a, const JsonVariant& b, int depth) const {
  using Kind = JsonVariant::Kind;
  if (b.kind == Kind::literal && a.kind != Kind::literal) return are_disjoint(b, a, depth);
  if (a.kind == Kind::literal) {
    if (b.kind == Kind::literal) return a.dfa.intersection(b.dfa).is_empty();
    const auto number = static_cast<int32_t>(&a - program_.variants.data());
    const auto found = literals_of_.find(number);
    if (found == literals_of_.end()) return true;  // null, true, false
    const std::vector<Json>& values = literals_[found->second].values;
    return std::none_of(values.begin(), values.end(),
                        [&](const Json& v) { return a.dfa.accepts(v.dump()) && has_scalar(b, v); });
  }
  if (is_number_kind(a.kind) && is_number_kind(b.kind)) return false;
  if (is_string_kind(a.kind) && is_string_kind(b.kind)) {
    if (a.kind == Kind::pattern && b.kind == Kind::pattern) return a.dfa.intersection(b.dfa).is_empty();
    return a.kind == b.kind && are_apart(a, b);
  }
  if (a.kind != b.kind) return true;
  if (are_apart(a, b)) return true;
  if (a.kind == Kind::array) {
    for (int64_t i = 0; i < std::min({a.least, b.least, int64_t{8}}); ++i) {
      if (are_disjoint(a.item(i), b.item(i), depth - 1)) return true;
    }
    return false;
  }
  return have_disjoint_property(a, b, depth) || have_disjoint_property(b, a, depth);
}

bool JsonCompiler::are_disjoint(int32_t a, int32_t b, int depth) const {
  if (!is_possible(a) || !is_possible(b)) return true;
  if (depth < 0 || a == b) return false;
  for (const int32_t x : program_.nodes[static_cast<size_t>(a)]) {
    for (const int32_t y : program_.nodes[static_cast<size_t>(b)]) {
      if (x == y || !are_disjoint(program_.variants[static_cast<size_t>(x)],
                                  program_.variants[static_cast<size_t>(y)], depth))
        return false;
    }
  }
  return true;
}

JsonProgram JsonCompiler::finish(JsonOverlaps& found) {
  std::vector<uint8_t> done(literals_.size(), 0);
  for (size_t i = 0; i < literals_.size(); ++i) fill_literals(i, done);
  prune();
  for (const Exclusion& exclusion : exclusions_) {
    if (!are_disjoint(exclusion.a, exclusion.b, 3)) found.insert(exclusion.branches);
  }
  return std::move(program_);
}

}  // namespace multihead::text::grammar
