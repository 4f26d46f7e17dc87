// From a JSON schema to a program. Private to grammar/.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "multihead/text/grammar/json_program-inl.h"

namespace multihead::text::grammar {

/// Two branches of the oneOf at a place.
struct JsonOverlap {
  std::string place;
  size_t a, b;
  bool operator<(const JsonOverlap& other) const {
    return std::tie(place, a, b) < std::tie(other.place, other.a, other.b);
  }
};
using JsonOverlaps = std::set<JsonOverlap>;

/// Whether "$schema" names a draft.
bool is_of_draft(const Json& root, std::string_view name);

enum KindBit : unsigned {
  kBitNull = 1,
  kBitBoolean = 2,
  kBitNumber = 4,
  kBitString = 8,
  kBitArray = 16,
  kBitObject = 32
};
inline constexpr auto kTypeBits =
    std::to_array<std::pair<std::string_view, unsigned>>({{"null", kBitNull},
                                                          {"boolean", kBitBoolean},
                                                          {"number", kBitNumber},
                                                          {"integer", kBitNumber},
                                                          {"string", kBitString},
                                                          {"array", kBitArray},
                                                          {"object", kBitObject}});

/// A node of the program is a set of schemas that all hold. `$ref` and `allOf` add to the set; `anyOf`, `oneOf` and
/// arrays or objects among an enum's values make several such sets, each of which gives variants, by kind of value.
/// A schema that must not hold is replaced by alternatives to it, one for each keyword that may be broken.
class JsonCompiler {
 public:
  /// `overlaps`: branches of oneOf that do not exclude each other, as finish() found them.
  explicit JsonCompiler(JsonOverlaps overlaps = {}) : overlaps_(std::move(overlaps)) {}
  /// The node that accepts the schema's values. The schema must live as long as this. Throws ValueError naming keyword and place.
  int32_t add(const Json& schema);
  /// Ends: what can never be completed is taken out. Adds branches of oneOf that should exclude each other and do not:
  /// the schemas must then be compiled again.
  JsonProgram finish(JsonOverlaps& found);
  bool is_possible(int32_t node) const { return !program_.nodes[static_cast<size_t>(node)].empty(); }

 private:
  using Ids = std::vector<int32_t>;  // of schemas
  using Choice = std::vector<Ids>;   // ways, in each of which several schemas hold
  /// In front of a set to which `$ref` and its like have been added already.
  static constexpr int32_t kFlat = -1;
  struct Schema {
    const Json* json;
    const Json* root;
    std::string place;
    bool ignores_values = false;  // without its enum and const
    bool is_negated = false;
    const ByteDfa* texts = nullptr;  // its strings are among these
  };
  struct Negation {
    int32_t id;
    Schema schema;
    Choice choice;
  };
  struct Literals {
    int32_t variant;
    std::vector<Json> values;
    int32_t base;  // the node that the values must fit besides
  };
  struct Exclusion {
    int32_t a, b;
    JsonOverlap branches;
  };
  static constexpr size_t kMostBranchings = 20'000;

  // json_keywords.cc, json_schema.cc: from schemas to sets of them.
  int32_t schema_id(const Json& json, const Json& root, const std::string& place, bool ignores_values = false,
                    bool is_negated = false);
  int32_t child(int32_t of, const Json& json, const std::string& path);
  int32_t made(Json json, const std::string& place, const Json* root = nullptr);
  int32_t node_of(Ids ids);
  void work();
  void expand(int32_t node, const Ids& ids);
  void alternatives(Ids open, Ids carriers, std::vector<Choice> choices, std::vector<Ids>& out);
  void add_carrier(int32_t id, const Schema& schema, Ids& open, std::vector<Choice>& choices);
  void check_keywords(const Schema& schema) const;
  int32_t referenced(const Schema& schema, const std::string& reference);
  void add_dependencies(int32_t id, std::vector<Choice>& choices);
  std::optional<std::vector<Json>> values_of(int32_t id) const;
  bool split_values(int32_t id, Choice& choice);
  Json constant_schema(const Json& value) const;
  const Json* keyword(int32_t id, std::string_view key) const;
  [[noreturn]] void refuse(const Schema& schema, std::string_view key, const std::string& why) const;
  std::vector<Ids> branches(int32_t id, std::string_view key);

  // json_negation.cc: what holds where a schema does not.
  int32_t not_of(int32_t id);
  Choice conditional(int32_t id);
  Choice exclusive(const Schema& schema, const Ids& branches);
  Choice negation(int32_t id);
  void add_to(Negation& of, Json json);
  void negate_combinations(Negation& of);
  void negate_type(Negation& of);
  void negate_values(Negation& of);
  void negate_bounds(Negation& of);
  void negate_parts(Negation& of);

  // json_texts.cc: strings.
  static const ByteDfa& any_text();
  void allow_texts(int32_t id, ByteDfa texts);
  ByteDfa pattern_of(const Schema& schema, std::string_view key, const Json& pattern) const;
  std::vector<ByteDfa> texts_of(const Ids& carriers) const;
  ByteDfa names_of(int32_t id);

  // json_variants.cc: from a set to variants.
  void add_variants(int32_t node, const Ids& carriers);
  bool add_literals(int32_t node, const Ids& carriers);
  void add_variant(int32_t node, JsonVariant variant);
  unsigned kinds_of(const Ids& carriers, bool& is_integer) const;
  void add_number(int32_t node, const Ids& carriers, bool is_integer);
  void add_string(int32_t node, const Ids& carriers);
  void add_array(int32_t node, const Ids& carriers);
  void add_object(int32_t node, const Ids& carriers);
  struct NamePattern {
    std::string source;
    int32_t names = -1;  // the schema whose propertyNames these are
  };
  void add_name_patterns(const Ids& carriers, JsonVariant& own, std::vector<NamePattern>& patterns);
  Ids schemas_of_name(const Ids& carriers, const JsonVariant& own, const std::vector<NamePattern>& patterns,
                      const std::string* name, size_t fitting);
  int64_t count(int32_t id, std::string_view key, int64_t otherwise) const;
  void merge_counts(const Ids& carriers, std::string_view least, std::string_view most,
                    JsonVariant& to) const;

  // json_checks.cc: what can be, and what cannot be both.
  void fill_literals(size_t at, std::vector<uint8_t>& done);
  bool has_scalar(const JsonVariant& variant, const Json& value) const;
  bool is_productive(const JsonVariant& variant, const std::vector<uint8_t>& nodes) const;
  void prune();
  bool are_disjoint(int32_t a, int32_t b, int depth) const;
  bool are_disjoint(const JsonVariant& a, const JsonVariant& b, int depth) const;
  bool have_disjoint_property(const JsonVariant& a, const JsonVariant& b, int depth) const;

  JsonProgram program_;
  std::vector<Schema> schemas_;
  std::map<std::pair<const Json*, unsigned>, int32_t> schema_ids_;
  std::deque<Json> made_;
  std::deque<ByteDfa> texts_;
  JsonOverlaps overlaps_;
  std::map<Ids, int32_t> node_ids_;
  std::vector<std::pair<int32_t, Ids>> open_;
  std::vector<Literals> literals_;
  std::map<int32_t, size_t> literals_of_;  // by variant
  std::vector<Exclusion> exclusions_;
  // States of all automata, combinations tried, and parts copied.
  size_t automata_ = 0, branchings_ = 0, copied_ = 0;
};

}  // namespace multihead::text::grammar
