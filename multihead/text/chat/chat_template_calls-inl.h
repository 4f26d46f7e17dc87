// The methods, filters and tests of chat templates: how their tables are written and their arguments bound. Private to
// text/.
#pragma once

#include <array>
#include <span>

#include "multihead/text/chat/chat_template-inl.h"

namespace multihead::text {

/// What a function of a table is called with.
struct TemplateArguments {
  const TemplateCall& call;
  TemplateBudget& budget;
  std::array<const TemplateValue*, 4> given = {};  ///< by parameter; null: left out

  const TemplateValue& on() const { return call.on; }
  [[noreturn]] void unsupported() const;
  /// The text of parameter `at`, which must be given.
  const std::string& text(size_t at) const;
  /// Of parameters that may be left out. A truth of what is no truth is Python's.
  bool truth(size_t at, bool missing = false) const;
  int64_t integer(size_t at, int64_t missing) const;
  bool is_missing(size_t at) const { return given[at] == nullptr || given[at]->none(); }
  TemplateValue string(std::string text) const { return budget.string(std::move(text), call.line); }
  TemplateValue list(std::vector<TemplateValue> items, TemplateListKind kind = TemplateListKind::list) const {
    return budget.list(std::move(items), call.line, kind);
  }
  std::vector<TemplateValue> items() const { return budget.items(call.on, call.line); }
  /// The value as a string.
  std::string text_on() const { return budget.text(call.on, call.line); }
};

/// A row: parameters have their names in Python, or kByPlace where keywords cannot give them.
struct TemplateFunction {
  std::string_view name;
  TemplateValue (*call)(const TemplateArguments& in);
  size_t required = 0;
  std::array<std::string_view, 4> parameters = {};
};
inline constexpr std::string_view kByPlace = "-";
/// The row's function takes any arguments, from TemplateArguments::call.
inline constexpr size_t kAnyArguments = 99;

/// `kind`: what the table holds, `of`: for what, for messages.
TemplateValue call_of_table(std::span<const TemplateFunction> table, const char* kind,
                            const TemplateCall& call, TemplateBudget& budget, const std::string& of = {});

// Texts, for methods and filters.

/// ASCII alone.
TemplateValue to_upper(const TemplateArguments& in);
TemplateValue to_lower(const TemplateArguments& in);
TemplateValue capitalized(const TemplateArguments& in);
TemplateValue stripped(const TemplateArguments& in);
TemplateValue replaced(const TemplateArguments& in);
/// `name`: of what is called, for messages.
std::string lower_case(std::string text, const std::string& name, int line, TemplateBudget& budget);
std::vector<std::string_view> lines_of(std::string_view text);
std::string joined(const std::vector<TemplateValue>& items, const std::string& by,
                   const TemplateArguments& in);
TemplateValue pairs(const TemplateArguments& in);
/// transformers' tojson: json.dumps() of Python.
TemplateValue to_json(const TemplateArguments& in);

}  // namespace multihead::text
