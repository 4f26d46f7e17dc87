// The values of chat templates as Python's: what is true, equal, printed, and the operators.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "multihead/text/chat/chat_template-inl.h"

namespace multihead::text {
namespace {

using Value = TemplateValue;

constexpr int kNesting = 64;

int deeper(int depth, const Value& inner) {
  if (inner.list() != nullptr) return std::max(depth, inner.list()->depth + 1);
  if (inner.dict() != nullptr) return std::max(depth, inner.dict()->depth + 1);
  return depth;
}

// Truths count as numbers, as in Python.
std::optional<double> number(const Value& value) {
  if (const auto* b = value.as<bool>()) return *b ? 1 : 0;
  if (const auto* i = value.as<int64_t>()) return static_cast<double>(*i);
  if (const auto* d = value.as<double>()) return *d;
  return std::nullopt;
}
std::optional<int64_t> integer(const Value& value) {
  if (const auto* b = value.as<bool>()) return *b ? 1 : 0;
  if (const auto* i = value.as<int64_t>()) return *i;
  return std::nullopt;
}

bool less(const std::string& op, const auto& a, const auto& b) {
  return op == "<" ? a < b : op == "<=" ? a <= b : op == ">" ? a > b : a >= b;
}

// What an assistant thought has one of these names; templates read the first or the second. As in transformers, that
// one comes first.
Json with_thoughts_named(const Json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!message.contains(name)) continue;
    Json named = Json::object({{"thinking", message.at(name)}});
    for (const auto& [key, value] : message.members()) named[key] = value;
    named["reasoning_content"] = message.at(name);
    return named;
  }
  return message;
}

}  // namespace

Json messages_as_given(const Json& messages) {
  Json kept = Json::array();
  for (const Json& message : messages.items()) {
    Json members = Json::object();
    for (const auto& [key, value] : message.members()) {
      if (!value.is_null()) members[key] = value;
    }
    kept.push_back(with_thoughts_named(members));
  }
  return kept;
}

const Value* TemplateDict::find(const std::string& key) const {
  const auto found = std::ranges::find(members, key, &std::pair<std::string, Value>::first);
  return found == members.end() ? nullptr : &found->second;
}

const TemplateList* Value::iterator() const {
  return list() != nullptr && list()->is_iterator() ? list() : nullptr;
}

bool Value::truth() const {
  if (undefined() || none()) return false;
  if (const auto n = number(*this)) return *n != 0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return list()->is_iterator() || !list()->items.empty();
  if (dict() != nullptr) return !dict()->members.empty();
  return true;
}

const char* Value::kind() const {
  static constexpr const char* kNames[] = {"undefined",   "none",     "a truth value",  "an integer",
                                           "a number",    "a string", "a list",         "a dictionary",
                                           "a namespace", "a macro",  "a large integer"};
  static constexpr const char* kLists[] = {"a list", "a tuple", "a range", "a dictionary's view",
                                           "an iterator"};
  if (list() != nullptr) return kLists[static_cast<size_t>(list()->kind)];
  return kNames[is.index()];
}

std::optional<std::string> template_key(const Value& value) {
  if (value.text() != nullptr && !value.text()->starts_with('\0')) return *value.text();
  if (const auto key = integer(value)) return std::string(1, '\0') + std::to_string(*key);
  return std::nullopt;
}

Value template_key_value(const std::string& key) {
  return key.starts_with('\0') ? Value(int64_t{std::stoll(key.substr(1))}) : Value(key);
}

std::string template_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[64];
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(digits, digits + sizeof digits, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(digits, end);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

size_t TemplateBudget::find(std::string_view text, std::string_view needle, size_t at, int line) {
  if (at > text.size()) return std::string_view::npos;
  // The search is linear for long needles alone.
  const size_t rest = text.size() - at;
  spend(16 + rest / 16 + rest / 64 * std::min<size_t>(needle.size(), 256), line);
  const void* const found = memmem(text.data() + at, rest, needle.data(), needle.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

Value TemplateBudget::of(const Json& json, int line) {
  switch (json.kind()) {
    case Json::Kind::null:
      return nullptr;
    case Json::Kind::boolean:
      return json.as_bool();
    case Json::Kind::integer:
      return json.as_int();
    case Json::Kind::number:
      if (json.digits().empty()) return json.as_double();
      spend(json.digits().size(), line);
      return std::make_shared<const TemplateDigits>(TemplateDigits{std::string(json.digits())});
    case Json::Kind::string:
      return string(json.as_string(), line);
    case Json::Kind::array: {
      std::vector<Value> items;
      for (const Json& item : json.items()) items.push_back(of(item, line));
      return list(std::move(items), line);
    }
    case Json::Kind::object: {
      std::vector<std::pair<std::string, Value>> members;
      for (const auto& [key, item] : json.members()) {
        if (key.view().starts_with('\0')) program.fail(line, "a key that begins with NUL is not supported");
        members.emplace_back(key, of(item, line));
      }
      return dict(members, line);
    }
  }
  return {};
}

std::string TemplateBudget::text(const Value& value, int line) {
  spend(16, line);
  if (value.undefined()) return {};
  if (value.none()) return "None";
  if (const auto* b = value.as<bool>()) return *b ? "True" : "False";
  if (const auto* i = value.as<int64_t>()) return std::to_string(*i);
  if (const auto* d = value.as<double>()) return template_number(*d);
  if (value.digits() != nullptr) return *value.digits();
  if (value.list() != nullptr || value.dict() != nullptr) return repr(value, line);
  if (value.text() == nullptr) program.fail(line, value.kind(), " as text is not supported");
  spend(value.text()->size(), line);
  return *value.text();
}

bool TemplateBudget::equal(const Value& a, const Value& b, int line) {
  spend(8, line);
  if (const auto x = integer(a), y = integer(b); x && y) return *x == *y;
  if (const auto x = number(a), y = number(b); x && y) return *x == *y;
  if ((a.digits() != nullptr && b.as<double>() != nullptr) ||
      (b.digits() != nullptr && a.as<double>() != nullptr))
    program.fail(line, "comparing ", a.kind(), " with ", b.kind(), " is not supported");
  if (a.is.index() != b.is.index()) return false;
  if (a.digits() != nullptr) return *a.digits() == *b.digits();
  if (a.undefined() || a.none()) return true;
  if (a.text() != nullptr) {
    spend(std::min(a.text()->size(), b.text()->size()) / 16, line);
    return *a.text() == *b.text();
  }
  if (a.list() != nullptr) {
    if (a.list() == b.list()) return true;
    if (a.list()->kind != b.list()->kind) return false;
    if (a.list()->is_iterator()) return false;
    if (!a.list()->is_sequence())
      program.fail(line, "comparing ", a.kind(), " with another is not supported");
    const auto &x = a.list()->items, &y = b.list()->items;
    return x.size() == y.size() &&
           std::equal(x.begin(), x.end(), y.begin(),
                      [&](const Value& p, const Value& q) { return equal(p, q, line); });
  }
  if (a.dict() != nullptr) {
    const auto &x = a.dict()->members, &y = b.dict()->members;
    spend(x.size() * y.size(), line);
    return x.size() == y.size() && std::all_of(x.begin(), x.end(), [&](const auto& member) {
             const Value* other = b.dict()->find(member.first);
             return other != nullptr && equal(member.second, *other, line);
           });
  }
  return a.is == b.is;
}

bool TemplateBudget::contains(const Value& in, const Value& what, int line) {
  if (in.text() != nullptr && what.text() != nullptr) {
    return find(*in.text(), *what.text(), 0, line) != std::string::npos;
  }
  if (in.dict() != nullptr && template_key(what)) {
    spend((8 + template_key(what)->size() / 16) * in.dict()->members.size(), line);
    return in.dict()->find(*template_key(what)) != nullptr;
  }
  if (in.undefined()) return false;
  if (in.list() == nullptr) program.fail(line, "cannot look for ", what.kind(), " in ", in.kind());
  const TemplateList& list = *in.list();
  check_settled(list, line);
  const auto begin = list.items.begin() + static_cast<std::ptrdiff_t>(list.taken);
  const auto found =
      std::find_if(begin, list.items.end(), [&](const Value& item) { return equal(item, what, line); });
  const bool is_in = found != list.items.end();
  if (list.is_iterator()) list.taken = static_cast<size_t>(found - list.items.begin()) + (is_in ? 1 : 0);
  return is_in;
}

void TemplateBudget::check_settled(const TemplateList& list, int line) const {
  if (list.is_unsettled)
    program.fail(line, "an iterator inside of a loop through it, or after a break in one, is not supported");
}

std::vector<Value> TemplateBudget::items(const Value& value, int line) {
  std::vector<Value> found;
  if (value.undefined()) return found;
  if (const TemplateList* list = value.list()) {
    spend(64 * list->items.size(), line);
    check_settled(*list, line);
    const size_t from = list->is_iterator() ? std::exchange(list->taken, list->items.size()) : 0;
    return {list->items.begin() + static_cast<std::ptrdiff_t>(from), list->items.end()};
  }
  if (value.dict() != nullptr) {
    for (const auto& [key, item] : value.dict()->members) {
      spend(64 + key.size(), line);
      found.push_back(template_key_value(key));
    }
    return found;
  }
  if (value.text() == nullptr) program.fail(line, "cannot iterate over ", value.kind());
  const std::string& text = *value.text();
  for (size_t at = 0; at < text.size();) {
    const auto size = static_cast<size_t>(decode_utf8(text, at).length);
    found.emplace_back(string(text.substr(at, size), line));
    at += size;
  }
  return found;
}

Value TemplateBudget::list(std::vector<Value> items, int line, TemplateListKind kind) {
  spend(64 + 64 * items.size(), line);
  int depth = 1;
  for (const Value& item : items) depth = deeper(depth, item);
  if (depth > kNesting) program.fail(line, "a list is nested too deeply");
  return std::make_shared<const TemplateList>(TemplateList{std::move(items), depth, kind});
}

Value TemplateBudget::dict(const std::vector<std::pair<std::string, Value>>& members, int line) {
  int depth = 1;
  std::map<std::string, size_t> places;
  std::vector<std::pair<std::string, Value>> kept;  // a key that comes again keeps its place
  for (const auto& [key, item] : members) {
    spend(128 + key.size(), line);
    depth = deeper(depth, item);
    const auto [place, is_new] = places.emplace(key, kept.size());
    if (is_new)
      kept.emplace_back(key, item);
    else
      kept[place->second].second = item;
  }
  if (depth > kNesting) program.fail(line, "a dictionary is nested too deeply");
  return std::make_shared<const TemplateDict>(TemplateDict{std::move(kept), depth});
}

namespace {

// What Python's texts, lists and numbers have themselves; other attributes of theirs are undefined, as Jinja has it.
constexpr const char* kPythons[] = {"append",       "as_integer_ratio",
                                    "bit_count",    "bit_length",
                                    "capitalize",   "casefold",
                                    "center",       "clear",
                                    "conjugate",    "copy",
                                    "count",        "denominator",
                                    "encode",       "endswith",
                                    "expandtabs",   "extend",
                                    "find",         "format",
                                    "format_map",   "from_bytes",
                                    "fromhex",      "hex",
                                    "imag",         "index",
                                    "insert",       "is_integer",
                                    "isalnum",      "isalpha",
                                    "isascii",      "isdecimal",
                                    "isdigit",      "isidentifier",
                                    "islower",      "isnumeric",
                                    "isprintable",  "isspace",
                                    "istitle",      "isupper",
                                    "join",         "ljust",
                                    "lower",        "lstrip",
                                    "maketrans",    "numerator",
                                    "partition",    "pop",
                                    "real",         "remove",
                                    "removeprefix", "removesuffix",
                                    "replace",      "reverse",
                                    "rfind",        "rindex",
                                    "rjust",        "rpartition",
                                    "rsplit",       "rstrip",
                                    "sort",         "split",
                                    "splitlines",   "startswith",
                                    "strip",        "swapcase",
                                    "title",        "to_bytes",
                                    "translate",    "upper",
                                    "zfill"};

bool is_plain(const Value& value) {
  return value.text() != nullptr || value.list() != nullptr || value.as<int64_t>() != nullptr ||
         value.as<double>() != nullptr || value.as<bool>() != nullptr || value.digits() != nullptr;
}

}  // namespace

Value attribute_of(const Value& value, const std::string& name, int line, TemplateBudget& budget) {
  if (value.undefined()) budget.program.fail(line, "has no ", quote(name), " because it is undefined");
  if (const auto* space = value.as<TemplateNamespace*>()) {
    const auto found = (*space)->members.find(name);
    if (found != (*space)->members.end()) return found->second;
    const bool loop = (*space)->members.contains("revindex0");
    if (loop && name != "previtem" && name != "nextitem")
      budget.program.fail(line, "loop.", name, " is not supported");
    return {};
  }
  if (value.dict() != nullptr) {
    static constexpr const char* kMethods[] = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                               "pop",   "popitem", "setdefault", "update", "values"};
    const bool method = std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
    if (!method && !name.starts_with("__")) {
      budget.spend(16 + 8 * value.dict()->members.size(), line);
      const Value* found = value.dict()->find(name);
      return found != nullptr ? *found : Value();
    }
  }
  if (value.none()) return {};
  const bool is_pythons = std::ranges::find(kPythons, name) != std::end(kPythons) || name.starts_with("__");
  if (is_plain(value) && !is_pythons) return {};
  budget.program.fail(line, quote(name), " of ", value.kind(), " is not supported");
}

Value item_of(const Value& value, const Value& key, int line, TemplateBudget& budget) {
  if (value.undefined()) budget.program.fail(line, "cannot take an item of an undefined value");
  const auto at = integer(key);
  if (const auto name = value.dict() != nullptr ? template_key(key) : std::nullopt) {
    budget.spend(16 + (8 + name->size() / 16) * value.dict()->members.size(), line);
    if (const Value* found = value.dict()->find(*name)) return *found;
    return at ? Value() : attribute_of(value, *name, line, budget);
  }
  if (value.list() != nullptr && at && !value.list()->is_sequence()) return {};  // Jinja's undefined
  if (value.list() != nullptr && at) {
    const auto size = static_cast<int64_t>(value.list()->items.size());
    const int64_t from = *at < 0 ? *at + size : *at;
    return from >= 0 && from < size ? value.list()->items[static_cast<size_t>(from)] : Value();
  }
  if (value.text() != nullptr && at) {
    const std::vector<Value> characters = budget.items(value, line);
    return item_of(budget.list(characters, line), key, line, budget);
  }
  if (value.text() != nullptr && key.text() != nullptr)
    return {};  // message['content']['type'] of a plain text
  budget.program.fail(line, "item ", key.kind(), " of ", value.kind(), " is not supported");
}

Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step, int line,
               TemplateBudget& budget) {
  if (value.list() != nullptr ? !value.list()->is_sequence() : value.text() == nullptr)
    budget.program.fail(line, "a slice of ", value.kind());
  const std::vector<Value> all = budget.items(value, line);
  const auto size = static_cast<int64_t>(all.size());
  const auto part = [&](const Value& given, int64_t missing) {
    if (given.none()) return missing;
    if (!integer(given)) budget.program.fail(line, "a slice from or to ", given.kind());
    return *integer(given);
  };
  const int64_t by = part(step, 1), last = by > 0 ? size : size - 1, first = by > 0 ? 0 : -1;
  if (by == 0 || by == INT64_MIN) budget.program.fail(line, "this step of a slice is not supported");
  const auto bound = [&](const Value& given, int64_t missing) {
    if (given.none()) return missing;
    const int64_t at = part(given, 0);
    return std::clamp(at < 0 ? at + size : at, first, last);
  };
  const int64_t from = bound(begin, by > 0 ? first : last), to = bound(end, by > 0 ? last : first);
  std::vector<Value> items;
  for (int64_t at = from; by > 0 ? at < to : at > to;) {
    items.push_back(all[static_cast<size_t>(at)]);
    if (by > size || by < -size) break;
    at += by;
  }
  if (value.list() != nullptr) return budget.list(std::move(items), line, value.list()->kind);
  std::string text;
  for (const Value& item : items) text += *item.text();
  return budget.string(std::move(text), line);
}

namespace {

std::optional<Value> on_integers(const std::string& op, int64_t x, int64_t y) {
  int64_t result = 0;
  bool overflows = false;
  if (op == "+")
    overflows = __builtin_add_overflow(x, y, &result);
  else if (op == "-")
    overflows = __builtin_sub_overflow(x, y, &result);
  else if (op == "*")
    overflows = __builtin_mul_overflow(x, y, &result);
  else if (y == 0 || (y == -1 && x == INT64_MIN))
    return std::nullopt;
  else if (op == "/")
    return Value(static_cast<double>(x) / static_cast<double>(y));
  else if (op == "//")
    result = x / y - (x % y != 0 && (x % y < 0) != (y < 0) ? 1 : 0);
  else
    result = x % y + (x % y != 0 && (x % y < 0) != (y < 0) ? y : 0);
  return overflows ? std::nullopt : std::optional<Value>(result);
}

std::optional<Value> on_numbers(const std::string& op, double x, double y) {
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (y == 0 || !std::isfinite(x) || !std::isfinite(y)) return std::nullopt;
  if (op == "/") return x / y;
  // As Python: the rest has the divisor's sign.
  double rest = std::fmod(x, y), whole = (x - rest) / y;
  if (rest != 0 && (rest < 0) != (y < 0)) rest += y, whole -= 1;
  if (op == "%") return rest == 0 ? std::copysign(0.0, y) : rest;
  return whole == 0 ? std::copysign(0.0, x / y) : std::round(whole);
}

}  // namespace

Value calculate(const std::string& op, const Value& a, const Value& b, int line, TemplateBudget& budget) {
  budget.spend(16, line);
  if (op == "==") return budget.equal(a, b, line);
  if (op == "!=") return !budget.equal(a, b, line);
  if (op == "in") return budget.contains(b, a, line);
  if (op == "not in") return !budget.contains(b, a, line);
  if (op == "~") return budget.string(budget.text(a, line) + budget.text(b, line), line);
  if (op[0] == '<' || op[0] == '>') {
    if (a.text() != nullptr && b.text() != nullptr) {
      budget.spend(std::min(a.text()->size(), b.text()->size()) / 16, line);
      return less(op, *a.text(), *b.text());
    }
    if (const auto x = integer(a), y = integer(b); x && y) return less(op, *x, *y);
    if (const auto x = number(a), y = number(b); x && y) return less(op, *x, *y);
  }
  if (op == "+" && a.text() != nullptr && b.text() != nullptr)
    return budget.string(*a.text() + *b.text(), line);
  if (op == "+" && a.list() != nullptr && b.list() != nullptr && a.list()->is_plain() &&
      a.list()->kind == b.list()->kind) {
    std::vector<Value> items = budget.items(a, line), more = budget.items(b, line);
    items.insert(items.end(), more.begin(), more.end());
    return budget.list(std::move(items), line, a.list()->kind);
  }
  if (op == "*" && a.text() != nullptr && integer(b)) {
    const auto times = static_cast<size_t>(std::max<int64_t>(*integer(b), 0));
    if (times > 0 && a.text()->size() > SIZE_MAX / times) budget.program.fail(line, "takes too much memory");
    budget.spend(a.text()->size() * times, line);
    std::string text;
    if (!a.text()->empty())
      for (size_t i = 0; i < times; ++i) text += *a.text();
    return budget.string(std::move(text), line);
  }
  if (op == "%" && a.text() != nullptr) return format_text(a, b, line, budget);
  if (const auto x = integer(a), y = integer(b); x && y) {
    if (const auto result = on_integers(op, *x, *y)) return *result;
    budget.program.fail(line, quote(op), " of these integers has no result");
  }
  if (const auto x = number(a), y = number(b); x && y) {
    if (const auto result = on_numbers(op, *x, *y)) return *result;
    budget.program.fail(line, quote(op), " of these numbers has no result");
  }
  budget.program.fail(line, quote(op), " of ", a.kind(), " and ", b.kind(), " is not supported");
}

}  // namespace multihead::text
