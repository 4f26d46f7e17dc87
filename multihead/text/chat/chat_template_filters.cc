// Filters and tests of chat templates, as Jinja's.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "multihead/core/text/numbers-inl.h"
#include "multihead/text/chat/chat_template_calls-inl.h"

namespace multihead::text {
namespace {

using Value = TemplateValue;
using In = TemplateArguments;

// "function.name", or "0.role": the item's item; `missing` for what is undefined on the way.
Value attribute_path(Value value, const std::string& path, const In& in, const Value& missing = {}) {
  for (size_t at = 0; at <= path.size();) {
    const size_t dot = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, dot - at);
    const auto index = spelled_number<int64_t>(part);
    const Value key = index && *index >= 0 ? Value(*index) : Value(part);
    const bool is_item = key.text() == nullptr || value.dict() != nullptr;
    value = is_item ? item_of(value, key, in.call.line, in.budget)
                    : attribute_of(value, part, in.call.line, in.budget);
    if (value.undefined() && !missing.none()) value = missing;
    at = dot + 1;
  }
  return value;
}

Value iterator(std::vector<Value> items, const In& in) {
  return in.list(std::move(items), TemplateListKind::iterator);
}

// What each item counts as where filters sort or compare: the attribute `path`, if it is given, in small letters unless
// case counts.
struct Key {
  const std::string* path;
  bool case_counts;
  Value operator()(const Value& item, const In& in) const {
    const Value value = path == nullptr ? item : attribute_path(item, *path, in);
    if (case_counts || value.text() == nullptr) return value;
    return in.string(lower_case(*value.text(), in.call.name, in.call.line, in.budget));
  }
};

const std::string* path_of(const In& in, size_t at) { return in.is_missing(at) ? nullptr : &in.text(at); }

// By their keys; equals stay in order, whichever the direction.
Value sorted(std::vector<std::pair<Value, Value>> keyed, bool reverse, const In& in) {
  const int line = in.call.line;
  for (size_t n = keyed.size(); n > 1; n /= 2) in.budget.spend(64 * keyed.size(), line);
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return calculate("<", reverse ? b.first : a.first, reverse ? a.first : b.first, line, in.budget).truth();
  });
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return in.list(std::move(items));
}

Value sort(const In& in) {
  const Key key = {path_of(in, 2), in.truth(1)};
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : in.items()) keyed.emplace_back(key(item, in), item);
  return sorted(std::move(keyed), in.truth(0), in);
}

Value sorted_pairs(const In& in) {
  const bool by_value = !in.is_missing(1) && in.text(1) == "value";
  if (!in.is_missing(1) && !by_value && in.text(1) != "key") in.unsupported();
  if (in.on().undefined()) in.unsupported();
  const Key key = {nullptr, in.truth(0)};
  const Value list = pairs(in);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& pair : list.list()->items)
    keyed.emplace_back(key(pair.list()->items[by_value ? 1 : 0], in), pair);
  return sorted(std::move(keyed), in.truth(2), in);
}

Value unique(const In& in) {
  const Key key = {path_of(in, 1), in.truth(0)};
  std::vector<Value> keys, found;
  for (const Value& item : in.items()) {
    const Value own = key(item, in);
    in.budget.spend(16 * keys.size(), in.call.line);
    const auto is_same = [&](const Value& other) { return in.budget.equal(own, other, in.call.line); };
    if (std::ranges::any_of(keys, is_same)) continue;
    keys.push_back(own);
    found.push_back(item);
  }
  return iterator(std::move(found), in);
}

Value reversed(const In& in) {
  if (in.on().dict() != nullptr) in.unsupported();
  std::vector<Value> items = in.items();
  std::ranges::reverse(items);
  if (in.on().iterator() != nullptr) return in.list(std::move(items));
  if (in.on().text() == nullptr) return iterator(std::move(items), in);
  std::string text;
  for (const Value& item : items) text += *item.text();
  return in.string(std::move(text));
}

Value length(const In& in) {
  const Value& on = in.on();
  if (on.undefined()) return int64_t{0};
  if (on.iterator() != nullptr) in.unsupported();
  if (on.list() != nullptr) return static_cast<int64_t>(on.list()->items.size());
  if (on.dict() != nullptr) return static_cast<int64_t>(on.dict()->members.size());
  if (on.text() == nullptr) in.unsupported();
  return static_cast<int64_t>(in.items().size());
}

// As Python's int(), with 0 or the given value for what is no number; integers have 64 bits.
Value to_integer(const In& in) {
  const Value &on = in.on(), missing = in.given[0] == nullptr ? Value(int64_t{0}) : *in.given[0];
  if (on.undefined()) in.budget.program.fail(in.call.line, "\"int\" of an undefined value");
  if (on.as<int64_t>() != nullptr) return on;
  if (const auto* truth = on.as<bool>()) return int64_t{*truth};
  if (const auto* number = on.as<double>(); number != nullptr && !std::isnan(*number)) {
    if (*number < -0x1p63 || *number >= 0x1p63) in.unsupported();
    return static_cast<int64_t>(*number);
  }
  if (on.text() == nullptr) return missing;
  std::string_view digits = strip_back(strip_front(*on.text()));
  const bool signs = digits.size() > 1 && digits[0] == '+';
  if (signs) digits.remove_prefix(1);
  const auto value = spelled_number<int64_t>(digits);
  if (value && !(signs && digits[0] == '-')) return *value;
  if (digits.find_first_of("0123456789") != digits.npos) in.unsupported();
  return missing;
}

// As Python's float(), likewise.
Value to_number(const In& in) {
  const Value &on = in.on(), missing = in.given[0] == nullptr ? Value(0.0) : *in.given[0];
  if (on.undefined()) in.budget.program.fail(in.call.line, "\"float\" of an undefined value");
  if (on.as<double>() != nullptr) return on;
  if (const auto* truth = on.as<bool>()) return *truth ? 1.0 : 0.0;
  if (const auto* integer = on.as<int64_t>()) return static_cast<double>(*integer);
  if (on.text() == nullptr) return missing;
  const std::string_view digits = strip_back(strip_front(*on.text()));
  const auto value = spelled_number<double>(digits);
  if (value && std::isfinite(*value)) return *value;
  if (value || digits.find_first_of("0123456789") != digits.npos) in.unsupported();
  return missing;
}

Value absolute(const In& in) {
  if (const auto* integer = in.on().as<int64_t>(); integer != nullptr && *integer != INT64_MIN)
    return std::abs(*integer);
  if (const auto* number = in.on().as<double>()) return std::abs(*number);
  in.unsupported();
}

Value rounded(const In& in) {
  const int64_t digits = in.integer(0, 0);
  const std::string method = in.is_missing(1) ? "common" : in.text(1);
  const auto* integer = in.on().as<int64_t>();
  const auto* number = in.on().as<double>();
  if (digits < 0 || digits > 15 || (integer == nullptr && number == nullptr)) in.unsupported();
  if (method == "common" && integer != nullptr) return in.on();
  const double value = number != nullptr ? *number : static_cast<double>(*integer);
  const double unit = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return std::ceil(value * unit) / unit;
  if (method == "floor") return std::floor(value * unit) / unit;
  if (method != "common" || !std::isfinite(value)) in.unsupported();
  char text[400];
  const auto [end, error] =
      std::to_chars(text, std::end(text), value, std::chars_format::fixed, static_cast<int>(digits));
  return error == std::errc() ? spelled_number<double>({text, end}).value_or(value) : value;
}

// Jinja's: lines but the first get spaces in front, or a text; empty ones do not unless they are wanted.
Value indented(const In& in) {
  if (in.on().text() == nullptr) in.unsupported();
  const bool is_text = in.given[0] != nullptr && in.given[0]->text() != nullptr;
  const int64_t width = is_text ? 0 : in.integer(0, 4);
  if (width > 1000) in.unsupported();
  const std::string space =
      is_text ? in.text(0) : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  const bool first = in.truth(1), blank = in.truth(2);
  const std::string whole = *in.on().text() + '\n';
  std::string text;
  bool begins = true;
  for (const std::string_view line : lines_of(whole)) {
    in.budget.spend(64 + space.size(), in.call.line);
    if (!begins) text += '\n';
    if (begins ? first : blank || !line.empty()) text += space;
    text += line;
    begins = false;
  }
  return in.string(std::move(text));
}

// Jinja's: words end at spaces, hyphens and opening brackets.
Value title_by_jinja(const In& in) {
  std::string text = lower_case(in.text_on(), in.call.name, in.call.line, in.budget);
  bool begins = true;
  for (char& c : text) {
    if (begins && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    begins = std::string_view("-({[<").find(c) != std::string_view::npos || is_python_space(c);
  }
  return in.string(std::move(text));
}

// The test that arguments from `at` on name, of the value; without one whether the value is true.
bool fits(const Value& value, size_t at, const In& in) {
  const TemplateArgs& args = in.call.args;
  if (args.size() <= at) return value.truth();
  const std::string* name = args[at].text();
  if (name == nullptr) in.unsupported();
  const auto rest = args.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  return call_test({*name, value, TemplateArgs(rest, args.end()), in.call.named, in.call.line}, in.budget);
}

template <bool wanted>
Value select(const In& in) {
  std::vector<Value> found;
  for (const Value& item : in.items())
    if (fits(item, 0, in) == wanted) found.push_back(item);
  return iterator(std::move(found), in);
}

// selectattr('role', 'equalto', 'user') and the like.
template <bool wanted>
Value select_by_attribute(const In& in) {
  if (in.call.args.empty() || in.call.args[0].text() == nullptr) in.unsupported();
  std::vector<Value> found;
  for (const Value& item : in.items())
    if (fits(attribute_path(item, *in.call.args[0].text(), in), 1, in) == wanted) found.push_back(item);
  return iterator(std::move(found), in);
}

// map(attribute='role', default='') or map('trim').
Value map(const In& in) {
  const TemplateArgs& args = in.call.args;
  const std::string* path = nullptr;
  Value missing;
  for (const auto& [key, value] : in.call.named) {
    if (key == "attribute") path = value.text();
    if (key == "default") missing = value;
  }
  const size_t known = (path != nullptr ? 1 : 0) + (missing.undefined() ? 0 : 1);
  const bool is_filter = !args.empty() && args[0].text() != nullptr && path == nullptr;
  if (!is_filter && (!args.empty() || path == nullptr || in.call.named.size() != known)) in.unsupported();
  std::vector<Value> found;
  for (const Value& item : in.items()) {
    if (is_filter) {
      found.push_back(call_filter(
          {*args[0].text(), item, TemplateArgs(args.begin() + 1, args.end()), in.call.named, in.call.line},
          in.budget));
      continue;
    }
    found.push_back(attribute_path(item, *path, in, missing));
  }
  return iterator(std::move(found), in);
}

template <bool front>
Value end_of(const In& in) {
  const TemplateList* const iterator = in.on().iterator();
  const size_t before = iterator != nullptr ? iterator->taken : 0;
  if (iterator != nullptr && !front) in.unsupported();
  const std::vector<Value> items = in.items();
  if (iterator != nullptr && !items.empty()) iterator->taken = before + 1;
  return items.empty() ? Value() : front ? items.front() : items.back();
}

Value default_of(const In& in) {
  const bool missing = in.on().undefined() || (in.truth(1) && !in.on().truth());
  return !missing ? in.on() : in.given[0] == nullptr ? Value(std::string()) : *in.given[0];
}

Value join_items(const In& in) {
  std::vector<Value> items = in.items();
  if (const std::string* path = path_of(in, 1))
    for (Value& item : items) item = attribute_path(item, *path, in);
  return in.string(joined(items, in.is_missing(0) ? "" : in.text(0), in));
}

Value format(const In& in) {
  if (!in.call.named.empty() || in.on().text() == nullptr) in.unsupported();
  return format_text(in.on(), in.list(in.call.args, TemplateListKind::tuple), in.call.line, in.budget);
}

Value safe(const In& in) {
  if (in.on().text() == nullptr) in.unsupported();
  return in.on();
}

constexpr TemplateFunction kFilters[] = {
    {"abs", absolute},
    {"capitalize", capitalized},
    {"count", length},
    {"d", default_of, 0, {"default_value", "boolean"}},
    {"default", default_of, 0, {"default_value", "boolean"}},
    {"dictsort", sorted_pairs, 0, {"case_sensitive", "by", "reverse"}},
    {"first", end_of<true>},
    {"float", to_number, 0, {"default"}},
    {"format", format, kAnyArguments},
    {"indent", indented, 0, {"width", "first", "blank"}},
    {"int", to_integer, 0, {"default"}},
    {"items", [](const In& in) { return iterator(pairs(in).list()->items, in); }},
    {"join", join_items, 0, {"d", "attribute"}},
    {"last", end_of<false>},
    {"length", length},
    {"list", [](const In& in) { return in.list(in.items()); }},
    {"lower", to_lower},
    {"map", map, kAnyArguments},
    {"reject", select<false>, kAnyArguments},
    {"rejectattr", select_by_attribute<false>, kAnyArguments},
    {"replace", replaced, 2, {"old", "new", "count"}},
    {"reverse", reversed},
    {"round", rounded, 0, {"precision", "method"}},
    {"safe", safe},
    {"select", select<true>, kAnyArguments},
    {"selectattr", select_by_attribute<true>, kAnyArguments},
    {"sort", sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"string", [](const In& in) { return in.string(in.text_on()); }},
    {"title", title_by_jinja},
    {"tojson", to_json, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", stripped, 0, {"chars"}},
    {"unique", unique, 0, {"case_sensitive", "attribute"}},
    {"upper", to_upper},
};

bool is_integer(const Value& value) { return value.as<int64_t>() != nullptr || value.digits() != nullptr; }
bool is_number(const Value& value) {
  return is_integer(value) || value.as<double>() != nullptr || value.as<bool>() != nullptr;
}
bool is_iterable(const Value& value) {
  return value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr || value.undefined();
}
bool is_sequence(const Value& value) {
  return is_iterable(value) && (value.list() == nullptr || value.list()->is_sequence());
}

template <bool (*is)(const Value&)>
Value test(const In& in) {
  return is(in.on());
}

template <char op, bool or_equal>
Value compare(const In& in) {
  const std::string sign = std::string(1, op) + (op == '=' || or_equal ? "=" : "");
  return calculate(sign, in.on(), *in.given[0], in.call.line, in.budget);
}
constexpr auto equals = compare<'=', false>, differs = compare<'!', true>, is_less = compare<'<', false>,
               is_greater = compare<'>', false>, at_most = compare<'<', true>, at_least = compare<'>', true>;

template <bool odd>
Value has_parity(const In& in) {
  if (in.on().as<int64_t>() == nullptr) in.unsupported();
  return (*in.on().as<int64_t>() % 2 != 0) == odd;
}

Value divides(const In& in) {
  const auto* integer = in.on().as<int64_t>();
  const int64_t by = in.integer(0, 0);
  if (integer == nullptr || by <= 0) in.unsupported();
  return *integer % by == 0;
}

constexpr TemplateFunction kTests[] = {
    {"==", equals, 1, {kByPlace}},
    {"eq", equals, 1, {kByPlace}},
    {"equalto", equals, 1, {kByPlace}},
    {"!=", differs, 1, {kByPlace}},
    {"ne", differs, 1, {kByPlace}},
    {"<", is_less, 1, {kByPlace}},
    {"lt", is_less, 1, {kByPlace}},
    {"lessthan", is_less, 1, {kByPlace}},
    {">", is_greater, 1, {kByPlace}},
    {"gt", is_greater, 1, {kByPlace}},
    {"greaterthan", is_greater, 1, {kByPlace}},
    {"<=", at_most, 1, {kByPlace}},
    {"le", at_most, 1, {kByPlace}},
    {">=", at_least, 1, {kByPlace}},
    {"ge", at_least, 1, {kByPlace}},
    {"in",
     [](const In& in) -> Value { return in.budget.contains(*in.given[0], in.on(), in.call.line); },
     1,
     {"seq"}},
    {"divisibleby", divides, 1, {"num"}},
    {"odd", has_parity<true>},
    {"even", has_parity<false>},
    {"defined", test<[](const Value& value) { return !value.undefined(); }>},
    {"undefined", test<[](const Value& value) { return value.undefined(); }>},
    {"none", test<[](const Value& value) { return value.none(); }>},
    {"string", test<[](const Value& value) { return value.text() != nullptr; }>},
    {"mapping", test<[](const Value& value) { return value.dict() != nullptr; }>},
    {"boolean", test<[](const Value& value) { return value.as<bool>() != nullptr; }>},
    {"true", test<[](const Value& value) { return value.as<bool>() != nullptr && value.truth(); }>},
    {"false", test<[](const Value& value) { return value.as<bool>() != nullptr && !value.truth(); }>},
    {"integer", test<is_integer>},
    {"float", test<[](const Value& value) { return value.as<double>() != nullptr; }>},
    {"number", test<is_number>},
    {"iterable", test<is_iterable>},
    {"sequence", test<is_sequence>},
};

}  // namespace

Value call_filter(const TemplateCall& call, TemplateBudget& budget) {
  return call_of_table(kFilters, "filter", call, budget);
}

bool call_test(const TemplateCall& call, TemplateBudget& budget) {
  return call_of_table(kTests, "test", call, budget).truth();
}

}  // namespace multihead::text
