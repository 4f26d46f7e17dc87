// From a JSON schema to a program. Private to grammar/.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/text/grammar/json_program-inl.h"

namespace multihead::text::grammar {

/// A node of the program is a set of schemas that all hold. `$ref` and `allOf` add to the set; `anyOf`, `oneOf` and
/// arrays or objects among an enum's values make several such sets, each of which gives variants, by kind of value.
class JsonCompiler {
 public:
  /// The node that accepts the schema's values. The schema must live as long as this. Throws ValueError naming keyword and place.
  int32_t add(const Json& schema);
  /// Ends: what can never be completed is taken out.
  JsonProgram finish();
  bool is_possible(int32_t node) const { return !program_.nodes[static_cast<size_t>(node)].empty(); }

 private:
  using Ids = std::vector<int32_t>;  // of schemas
  /// In front of a set to which `$ref` and its like have been added already.
  static constexpr int32_t kFlat = -1;
  struct Schema {
    const Json* json;
    const Json* root;
    std::string place;
    bool ignores_values = false;  // without its enum and const
  };
  struct Literals {
    int32_t variant;
    std::vector<Json> values;
    int32_t base;  // the node that the values must fit besides
  };
  struct Exclusion {
    int32_t a, b;
    std::string place;
  };

  // json_schema.cc: from schemas to sets of them.
  int32_t schema_id(const Json& json, const Json& root, const std::string& place,
                    bool ignores_values = false);
  int32_t child(int32_t of, const Json& json, const std::string& path);
  int32_t made(Json json, const std::string& place);
  int32_t node_of(Ids ids);
  void work();
  void expand(int32_t node, const Ids& ids);
  void alternatives(Ids open, Ids carriers, std::vector<Ids> choices, std::vector<Ids>& out);
  void check_keywords(const Schema& schema) const;
  int32_t referenced(const Schema& schema, const std::string& reference);
  void add_dependencies(int32_t id, std::vector<Ids>& choices);
  bool split_values(int32_t id, Ids& choice);
  Json constant_schema(const Json& value) const;
  const Json* keyword(int32_t id, std::string_view key) const;
  [[noreturn]] void refuse(const Schema& schema, std::string_view key, const std::string& why) const;
  std::vector<Ids> branches(int32_t id, std::string_view key);

  // json_variants.cc: from a set to variants.
  void add_variants(int32_t node, const Ids& carriers);
  bool add_literals(int32_t node, const Ids& carriers);
  void add_variant(int32_t node, JsonVariant variant);
  unsigned kinds_of(const Ids& carriers, bool& is_integer) const;
  void add_number(int32_t node, const Ids& carriers, bool is_integer);
  void add_string(int32_t node, const Ids& carriers);
  void add_array(int32_t node, const Ids& carriers);
  void add_object(int32_t node, const Ids& carriers);
  Ids schemas_of_name(const Ids& carriers, const JsonVariant& own, const std::vector<std::string>& patterns,
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
  std::map<std::pair<const Json*, bool>, int32_t> schema_ids_;
  std::deque<Json> made_;
  std::map<Ids, int32_t> node_ids_;
  std::vector<std::pair<int32_t, Ids>> open_;
  std::vector<Literals> literals_;
  std::map<int32_t, size_t> literals_of_;  // by variant
  std::vector<Exclusion> exclusions_;
  size_t automata_ = 0, branchings_ = 0;  // states of all automata, and combinations tried
};

}  // namespace multihead::text::grammar
