// Methods, filters and tests of chat templates.
#include <algorithm>
#include <cmath>

#include "multihead/core/text/numbers-inl.h"
#include "multihead/text/chat/chat_template-inl.h"

namespace multihead::text {
namespace {

using Value = TemplateValue;
using Call = TemplateCall;

[[noreturn]] void unsupported(const Call& call, TemplateBudget& budget, const char* what) {
  budget.program.fail(call.line, what, " ", quote(call.name), " of ", call.on.kind(),
                      " with these arguments is not supported");
}

// The call has from `least` to `most` arguments, none of them by name.
void expect(const Call& call, size_t least, size_t most, TemplateBudget& budget) {
  if (call.args.size() >= least && call.args.size() <= most && call.named.empty()) return;
  budget.program.fail(call.line, quote(call.name), " with these arguments is not supported");
}

const std::string& string_argument(const Call& call, size_t at, TemplateBudget& budget) {
  const std::string* text = call.args[at].text();
  if (text == nullptr)
    budget.program.fail(call.line, quote(call.name), ": an argument must be a string, got ",
                        call.args[at].kind());
  return *text;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += static_cast<size_t>(decode_utf8(text, at).length);
  return count;
}

std::string cased(const Call& call, bool upper, TemplateBudget& budget) {
  std::string text = budget.text(call.on, call.line);
  for (char& c : text) {
    if (c & 0x80) budget.program.fail(call.line, quote(call.name), " of non-ASCII letters is not supported");
    const char from = upper ? 'a' : 'A';
    if (c >= from && c <= from + 25) c = static_cast<char>(c ^ 0x20);
  }
  return text;
}

Value strip(const Call& call, bool front, bool back, TemplateBudget& budget) {
  expect(call, 0, 1, budget);
  const std::string* wanted =
      call.args.empty() || call.args[0].none() ? nullptr : &string_argument(call, 0, budget);
  const std::string whole = budget.text(call.on, call.line);
  std::string_view text = whole;
  if (wanted != nullptr) budget.spend(text.size() * (1 + wanted->size() / 16), call.line);
  if (front) text = strip_front(text, wanted);
  if (back) text = strip_back(text, wanted);
  return budget.string(std::string(text), call.line);
}

// Finds one string in another again and again, which costs as much as once.
class Finder {
 public:
  Finder(std::string_view text, std::string_view needle, int line, TemplateBudget& budget)
      : text_(text), needle_(needle) {
    first_ = budget.find(text, needle, 0, line);
  }
  size_t operator()(size_t at) const {
    if (first_ == std::string_view::npos || at <= first_) return first_;
    const void* const found = memmem(text_.data() + at, text_.size() - at, needle_.data(), needle_.size());
    return found == nullptr ? std::string_view::npos
                            : static_cast<size_t>(static_cast<const char*>(found) - text_.data());
  }

 private:
  std::string_view text_, needle_;
  size_t first_ = 0;
};

Value replace(const Call& call, TemplateBudget& budget) {
  expect(call, 2, 2, budget);
  const std::string text = budget.text(call.on, call.line);
  const std::string &from = string_argument(call, 0, budget), &to = string_argument(call, 1, budget);
  if (from.empty()) unsupported(call, budget, "replacing nothing by");
  std::string result;
  size_t at = 0;
  const Finder find(text, from, call.line, budget);
  for (size_t found; (found = find(at)) != std::string::npos; at = found + from.size()) {
    budget.spend(16 + to.size(), call.line);
    result.append(text, at, found - at).append(to);
  }
  return budget.string(result.append(text, at), call.line);
}

Value split(const Call& call, TemplateBudget& budget) {
  expect(call, 0, 2, budget);
  std::string_view text = *call.on.text();
  std::vector<Value> parts;
  int64_t most = INT64_MAX;
  if (call.args.size() == 2) {
    if (call.args[1].as<int64_t>() == nullptr) unsupported(call, budget, "method");
    most = *call.args[1].as<int64_t>() < 0 ? INT64_MAX : *call.args[1].as<int64_t>();
  }
  const auto put = [&](std::string_view part) {
    parts.emplace_back(budget.string(std::string(part), call.line));
  };
  if (call.args.empty()) {
    for (text = strip_front(text); !text.empty(); text = strip_front(text)) {
      size_t size = 0;
      while (size < text.size() && !is_python_space(decode_utf8(text, size).code_point)) {
        size += static_cast<size_t>(decode_utf8(text, size).length);
      }
      put(text.substr(0, size));
      text.remove_prefix(size);
    }
    return budget.list(std::move(parts), call.line);
  }
  const std::string& by = string_argument(call, 0, budget);
  if (by.empty()) unsupported(call, budget, "method");
  size_t at = 0;
  const Finder find(text, by, call.line, budget);
  for (size_t found;
       static_cast<int64_t>(parts.size()) < most && (found = find(at)) != std::string_view::npos;) {
    put(text.substr(at, found - at));
    at = found + by.size();
  }
  put(text.substr(at));
  return budget.list(std::move(parts), call.line);
}

Value affix(const Call& call, bool front, TemplateBudget& budget) {
  expect(call, 1, 1, budget);
  const std::string &text = *call.on.text(), &part = string_argument(call, 0, budget);
  budget.spend(16 + part.size() / 16, call.line);
  return front ? text.starts_with(part) : text.ends_with(part);
}

Value join(const Value& list, const std::string& by, int line, TemplateBudget& budget) {
  std::string text;
  const char* const none = "";
  bool first = true;
  for (const Value& item : budget.items(list, line)) {
    budget.spend(by.size(), line);
    text += (first ? none : by) + budget.text(item, line);
    first = false;
  }
  return budget.string(std::move(text), line);
}

Value length(const Call& call, TemplateBudget& budget) {
  expect(call, 0, 0, budget);
  const Value& on = call.on;
  if (on.undefined()) return int64_t{0};
  if (on.list() != nullptr) return static_cast<int64_t>(on.list()->items.size());
  if (on.dict() != nullptr) return static_cast<int64_t>(on.dict()->members.size());
  if (on.text() == nullptr) unsupported(call, budget, "filter");
  budget.spend(on.text()->size(), call.line);
  return static_cast<int64_t>(count_characters(*on.text()));
}

// As Python's json.dumps(ensure_ascii=False).
void append_json(const Value& value, int line, std::string& out, TemplateBudget& budget, int64_t indent = -1,
                 int64_t level = 1) {
  budget.spend(16, line);
  const auto new_line = [&](int64_t deep) {
    if (indent < 0) return;
    budget.spend(static_cast<size_t>(indent * deep), line);
    out.append(1, '\n').append(static_cast<size_t>(indent * deep), ' ');
  };
  const char* const between = indent < 0 ? ", " : ",";
  if (value.none()) {
    out += "null";
  } else if (const auto* b = value.as<bool>()) {
    out += *b ? "true" : "false";
  } else if (value.as<int64_t>() != nullptr || value.as<double>() != nullptr) {
    out += budget.text(value, line);
  } else if (value.text() != nullptr) {
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    budget.spend(6 * value.text()->size(), line);
    out += '"';
    for (const char c : *value.text()) {
      if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
        out += {'\\', kTo[known]};
      } else if (static_cast<unsigned char>(c) < 0x20) {
        out += {'\\', 'u', '0', '0', c < 0x10 ? '0' : '1', "0123456789abcdef"[c & 15]};
      } else {
        out += c;
      }
    }
    out += '"';
  } else if (value.list() != nullptr) {
    const char* comma = "[";
    for (const Value& item : value.list()->items) {
      out += comma;
      new_line(level);
      append_json(item, line, out, budget, indent, level + 1);
      comma = between;
    }
    if (!value.list()->items.empty()) new_line(level - 1);
    out += value.list()->items.empty() ? "[]" : "]";
  } else if (value.dict() != nullptr) {
    const char* comma = "{";
    for (const auto& [key, item] : value.dict()->members) {
      out += comma;
      new_line(level);
      append_json(budget.string(budget.text(template_key_value(key), line), line), line, out, budget);
      out += ": ";
      append_json(item, line, out, budget, indent, level + 1);
      comma = between;
    }
    if (!value.dict()->members.empty()) new_line(level - 1);
    out += value.dict()->members.empty() ? "{}" : "}";
  } else {
    budget.program.fail(line, "tojson of ", value.kind(), " is not supported");
  }
}

// transformers' tojson has these keywords too.
Value to_json(const Call& call, TemplateBudget& budget) {
  int64_t indent = -1;
  if (!call.args.empty()) unsupported(call, budget, "filter");
  for (const auto& [key, value] : call.named) {
    const auto* integer = value.as<int64_t>();
    const bool is_usual = (key == "ensure_ascii" || key == "sort_keys") && !value.truth();
    if (key == "indent" && integer != nullptr && *integer >= 0 && *integer <= 64) {
      indent = *integer;
    } else if (!is_usual && !value.none()) {
      unsupported(call, budget, "filter");
    }
  }
  std::string text;
  append_json(call.on, call.line, text, budget, indent);
  return budget.string(std::move(text), call.line);
}

// As Python's int(), with 0 or the given value for what is no number.
Value to_integer(const Call& call, TemplateBudget& budget) {
  expect(call, 0, 1, budget);
  const Value missing = call.args.empty() ? Value(int64_t{0}) : call.args[0];
  if (call.on.as<int64_t>() != nullptr) return call.on;
  if (const auto* truth = call.on.as<bool>()) return int64_t{*truth};
  if (const auto* number = call.on.as<double>())
    return std::abs(*number) < 9e18 ? Value(static_cast<int64_t>(*number)) : missing;
  if (call.on.text() == nullptr) return missing;
  std::string_view digits = strip_back(strip_front(*call.on.text()));
  const bool signs = digits.size() > 1 && digits[0] == '+';
  if (signs) digits.remove_prefix(1);
  const auto value = spelled_number<int64_t>(digits);
  if (value && !(signs && digits[0] == '-')) return *value;
  if (digits.find_first_of("0123456789") != digits.npos) unsupported(call, budget, "filter");
  return missing;
}

// selectattr('role', 'equalto', 'user') and the like; one argument: those whose attribute is true.
Value select(const Call& call, bool wanted, TemplateBudget& budget) {
  expect(call, 1, 3, budget);
  const std::string& attribute = string_argument(call, 0, budget);
  if (attribute.find('.') != std::string::npos) unsupported(call, budget, "filter");
  std::vector<Value> found;
  for (const Value& item : budget.items(call.on, call.line)) {
    const Value value = attribute_of(item, attribute, call.line, budget);
    bool fits = value.truth();
    if (call.args.size() > 1) {
      fits = call_test({string_argument(call, 1, budget),
                        value,
                        TemplateArgs(call.args.begin() + 2, call.args.end()),
                        {},
                        call.line},
                       budget);
    }
    if (fits == wanted) found.push_back(item);
  }
  return budget.list(std::move(found), call.line);
}

Value map(const Call& call, TemplateBudget& budget) {
  const bool supported = call.args.empty() && call.named.size() == 1 && call.named[0].first == "attribute" &&
                         call.named[0].second.text() != nullptr;
  if (!supported) unsupported(call, budget, "filter");
  std::vector<Value> found;
  for (const Value& item : budget.items(call.on, call.line)) {
    found.push_back(attribute_of(item, *call.named[0].second.text(), call.line, budget));
  }
  return budget.list(std::move(found), call.line);
}

Value pairs(const Call& call, TemplateBudget& budget) {
  expect(call, 0, 0, budget);
  std::vector<Value> found;
  if (call.on.undefined()) return budget.list({}, call.line);
  if (call.on.dict() == nullptr) unsupported(call, budget, "filter");
  for (const auto& [key, value] : call.on.dict()->members) {
    budget.spend(64 + key.size(), call.line);
    found.push_back(budget.list({template_key_value(key), value}, call.line, true));
  }
  return budget.list(std::move(found), call.line);
}

// By key, without regard to case, as Jinja does unless it is told otherwise.
Value sorted_pairs(const Call& call, TemplateBudget& budget) {
  const Value list = pairs(call, budget);
  std::vector<std::pair<std::string, Value>> keyed;
  for (const Value& pair : list.list()->items) {
    const Value& key = pair.list()->items[0];
    if (key.text() == nullptr) unsupported(call, budget, "filter");
    keyed.emplace_back(cased({call.name, key, {}, {}, call.line}, false, budget), pair);
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Value> sorted;
  for (auto& [key, pair] : keyed) sorted.push_back(std::move(pair));
  return budget.list(std::move(sorted), call.line);
}

Value end_of(const Call& call, bool front, TemplateBudget& budget) {
  expect(call, 0, 0, budget);
  const std::vector<Value> items = budget.items(call.on, call.line);
  return items.empty() ? Value() : front ? items.front() : items.back();
}

Value default_of(const Call& call, TemplateBudget& budget) {
  bool also_false = call.args.size() == 2 && call.args[1].truth();
  if (call.named.size() == 1 && call.named[0].first == "boolean") {
    also_false = call.named[0].second.truth();
  } else if (!call.named.empty()) {
    unsupported(call, budget, "filter");
  }
  if (call.args.size() > 2) unsupported(call, budget, "filter");
  const bool missing = call.on.undefined() || (also_false && !call.on.truth());
  return !missing ? call.on : call.args.empty() ? Value(std::string()) : call.args[0];
}

Value capitalized(const Call& call, TemplateBudget& budget) {
  std::string text = cased(call, false, budget);
  const bool word = std::all_of(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  if (call.name == "title" && !word) unsupported(call, budget, "filter");
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return budget.string(std::move(text), call.line);
}

Value string_method(const Call& call, TemplateBudget& budget) {
  const std::string& name = call.name;
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return strip(call, name != "rstrip", name != "lstrip", budget);
  if (name == "startswith" || name == "endswith") return affix(call, name == "startswith", budget);
  if (name == "split") return split(call, budget);
  if (name == "replace") return replace(call, budget);
  if (name == "join" && call.args.size() == 1 && call.args[0].list() != nullptr) {
    for (const Value& item : call.args[0].list()->items) {
      if (item.text() == nullptr) unsupported(call, budget, "method");
    }
    return join(call.args[0], *call.on.text(), call.line, budget);
  }
  expect(call, 0, 0, budget);
  if (name == "upper" || name == "lower")
    return budget.string(cased(call, name == "upper", budget), call.line);
  if (name == "capitalize" || name == "title") return capitalized(call, budget);
  unsupported(call, budget, "method");
}

}  // namespace

Value format_text(const Value& text, const Value& values, int line, TemplateBudget& budget) {
  const std::string& form = *text.text();
  const bool is_tuple = values.list() != nullptr && values.list()->is_tuple;
  const std::vector<Value> given = is_tuple ? budget.items(values, line) : std::vector<Value>{values};
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < form.size(); ++at) {
    const char kind = form[at] == '%' && at + 1 < form.size() ? form[at + 1] : ' ';
    if (form[at] != '%') {
      out += form[at];
      continue;
    }
    ++at;
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (used == given.size()) budget.program.fail(line, "the format has more places than values");
    const Value& value = given[used++];
    const bool is_integer = value.as<int64_t>() != nullptr || value.as<bool>() != nullptr;
    if (kind != 's' && !(kind == 'd' && is_integer))
      budget.program.fail(line, "the format ", quote(form, 40), " is not supported");
    const auto* truth = value.as<bool>();
    out += kind == 'd' && truth != nullptr ? (*truth ? "1" : "0") : budget.text(value, line);
  }
  if (used < given.size()) budget.program.fail(line, "the format has fewer places than values");
  return budget.string(std::move(out), line);
}

Value call_method(const Call& call, TemplateBudget& budget) {
  budget.spend(16, call.line);
  if (call.on.text() != nullptr) return string_method(call, budget);
  if (call.on.undefined())
    budget.program.fail(call.line, "cannot call ", quote(call.name), " of an undefined value");
  if (call.on.dict() != nullptr) {
    if (call.name == "items") return pairs(call, budget);
    if (call.name == "keys")
      return expect(call, 0, 0, budget), budget.list(budget.items(call.on, call.line), call.line);
    if (call.name == "values") {
      expect(call, 0, 0, budget);
      std::vector<Value> values;
      for (const auto& [key, value] : call.on.dict()->members) values.push_back(value);
      return budget.list(std::move(values), call.line);
    }
    if (call.name == "get") {
      expect(call, 1, 2, budget);
      const std::optional<std::string> key = template_key(call.args[0]);
      if (!key) unsupported(call, budget, "method");
      budget.spend((8 + key->size() / 16) * call.on.dict()->members.size(), call.line);
      const Value* found = call.on.dict()->find(*key);
      return found != nullptr ? *found : call.args.size() == 2 ? call.args[1] : Value(nullptr);
    }
  }
  unsupported(call, budget, "method");
}

Value call_filter(const Call& call, TemplateBudget& budget) {
  budget.spend(16, call.line);
  const std::string& name = call.name;
  if (name == "default" || name == "d") return default_of(call, budget);
  if (name == "map") return map(call, budget);
  if (name == "selectattr" || name == "rejectattr") return select(call, name == "selectattr", budget);
  if (name == "trim") return strip(call, true, true, budget);
  if (name == "length" || name == "count") return length(call, budget);
  if (name == "replace") return replace(call, budget);
  if (name == "items") return pairs(call, budget);
  if (name == "first" || name == "last") return end_of(call, name == "first", budget);
  if (name == "join") {
    expect(call, 0, 1, budget);
    return join(call.on, call.args.empty() ? "" : string_argument(call, 0, budget), call.line, budget);
  }
  if (name == "format") {
    if (!call.named.empty()) unsupported(call, budget, "filter");
    return format_text(call.on, budget.list(call.args, call.line, true), call.line, budget);
  }
  if (name == "int") return to_integer(call, budget);
  if (name == "tojson") return to_json(call, budget);
  expect(call, 0, 0, budget);
  if (name == "string") return budget.string(budget.text(call.on, call.line), call.line);
  if (name == "upper" || name == "lower")
    return budget.string(cased(call, name == "upper", budget), call.line);
  if (name == "capitalize" || name == "title") return capitalized(call, budget);
  if (name == "safe" && call.on.text() != nullptr) return call.on;
  if (name == "dictsort") return sorted_pairs(call, budget);
  if (name == "list") return budget.list(budget.items(call.on, call.line), call.line);
  budget.program.fail(call.line, "the filter ", quote(name), " is not supported");
}

bool call_test(const Call& call, TemplateBudget& budget) {
  const Value& on = call.on;
  const std::string& name = call.name;
  budget.spend(16, call.line);
  if (name == "equalto" || name == "eq" || name == "==" || name == "ne" || name == "!=" || name == "in") {
    expect(call, 1, 1, budget);
    if (name == "in") return budget.contains(call.args[0], on, call.line);
    return budget.equal(on, call.args[0], call.line) == (name[0] == 'e' || name[0] == '=');
  }
  const auto* integer = on.as<int64_t>();
  if (name == "divisibleby") {
    expect(call, 1, 1, budget);
    const auto* by = call.args[0].as<int64_t>();
    if (integer == nullptr || by == nullptr || *by <= 0) unsupported(call, budget, "test");
    return *integer % *by == 0;
  }
  expect(call, 0, 0, budget);
  const auto* truth = on.as<bool>();
  if (name == "defined") return !on.undefined();
  if (name == "undefined") return on.undefined();
  if (name == "none") return on.none();
  if (name == "string") return on.text() != nullptr;
  if (name == "mapping") return on.dict() != nullptr;
  if (name == "boolean") return truth != nullptr;
  if (name == "true") return truth != nullptr && *truth;
  if (name == "false") return truth != nullptr && !*truth;
  if (name == "integer") return integer != nullptr;
  if (name == "float") return on.as<double>() != nullptr;
  if (name == "number") return integer != nullptr || truth != nullptr || on.as<double>() != nullptr;
  if (name == "iterable" || name == "sequence") {
    return on.text() != nullptr || on.list() != nullptr || on.dict() != nullptr || on.undefined();
  }
  if ((name == "odd" || name == "even") && integer != nullptr) return (*integer % 2 != 0) == (name == "odd");
  budget.program.fail(call.line, "the test ", quote(name), " is not supported");
}

}  // namespace multihead::text
