// Methods of strings and dictionaries in chat templates, as Python's.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "multihead/text/chat/chat_template_calls-inl.h"

namespace multihead::text {
namespace {

using Value = TemplateValue;
using In = TemplateArguments;

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_letter(char c) { return is_upper(c) || is_lower(c); }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

// Whose letters have a case that is known here.
const std::string& ascii(const std::string& text, const std::string& name, int line, TemplateBudget& budget) {
  if (std::ranges::any_of(text, [](char c) { return (c & 0x80) != 0; }))
    budget.program.fail(line, quote(name), " of non-ASCII letters is not supported");
  return text;
}
std::string ascii(const In& in) { return ascii(in.text_on(), in.call.name, in.call.line, in.budget); }

char upper(char c) { return is_lower(c) ? static_cast<char>(c - 32) : c; }
char lower(char c) { return is_upper(c) ? static_cast<char>(c + 32) : c; }

// Finds one string in another again and again, which costs as much as once.
class Finder {
 public:
  Finder(std::string_view text, std::string_view needle, const In& in) : text_(text), needle_(needle) {
    first_ = in.budget.find(text, needle, 0, in.call.line);
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

// The bound that split() and replace() take; none: below 0.
int64_t most_of(const In& in, size_t at) {
  const int64_t most = in.integer(at, -1);
  return most < 0 ? INT64_MAX : most;
}

Value split_at_spaces(const In& in) {
  std::string_view text = strip_front(*in.on().text());
  const int64_t most = most_of(in, 1);
  std::vector<Value> parts;
  while (!text.empty()) {
    size_t size = 0;
    const bool is_last = static_cast<int64_t>(parts.size()) == most;
    while (size < text.size() && (is_last || !is_python_space(decode_utf8(text, size).code_point)))
      size += static_cast<size_t>(decode_utf8(text, size).length);
    parts.push_back(in.string(std::string(text.substr(0, size))));
    text = strip_front(text.substr(size));
  }
  return in.list(std::move(parts));
}

Value split(const In& in) {
  if (in.is_missing(0)) return split_at_spaces(in);
  const std::string_view text = *in.on().text();
  const std::string& by = in.text(0);
  if (by.empty()) in.unsupported();
  const int64_t most = most_of(in, 1);
  std::vector<Value> parts;
  size_t at = 0;
  const Finder find(text, by, in);
  for (size_t found;
       static_cast<int64_t>(parts.size()) < most && (found = find(at)) != std::string_view::npos;) {
    parts.push_back(in.string(std::string(text.substr(at, found - at))));
    at = found + by.size();
  }
  parts.push_back(in.string(std::string(text.substr(at))));
  return in.list(std::move(parts));
}

Value split_from_the_end(const In& in) {
  if (most_of(in, 1) == INT64_MAX) return split(in);
  const std::string_view text = *in.on().text();
  if (in.is_missing(0) || in.text(0).empty()) in.unsupported();
  const std::string& by = in.text(0);
  const int64_t most = most_of(in, 1);
  in.budget.spend(text.size() * (1 + by.size() / 16), in.call.line);
  std::vector<Value> parts;
  size_t end = text.size();
  for (size_t found; static_cast<int64_t>(parts.size()) < most && end >= by.size() &&
                     (found = text.rfind(by, end - by.size())) != text.npos;) {
    parts.push_back(in.string(std::string(text.substr(found + by.size(), end - found - by.size()))));
    end = found;
  }
  parts.push_back(in.string(std::string(text.substr(0, end))));
  std::ranges::reverse(parts);
  return in.list(std::move(parts));
}

Value split_lines(const In& in) {
  std::vector<Value> parts;
  for (const std::string_view line : lines_of(*in.on().text())) parts.push_back(in.string(std::string(line)));
  return in.list(std::move(parts));
}

// Whether the text begins or ends with the argument, or with one of a tuple.
bool has_affix(const In& in, bool front) {
  const std::string& text = *in.on().text();
  const auto fits = [&](const std::string& part) {
    in.budget.spend(16 + part.size() / 16, in.call.line);
    return front ? text.starts_with(part) : text.ends_with(part);
  };
  const TemplateList* several = in.given[0]->list();
  if (several == nullptr) return fits(in.text(0));
  return std::ranges::any_of(several->items, [&](const Value& part) {
    if (several->kind != TemplateListKind::tuple || part.text() == nullptr) in.unsupported();
    return fits(*part.text());
  });
}

Value without_affix(const In& in, bool front) {
  const std::string& text = *in.on().text();
  if (in.text(0).empty() || !has_affix(in, front)) return text;
  const size_t size = text.size() - in.text(0).size();
  return in.string(front ? text.substr(in.text(0).size()) : text.substr(0, size));
}

Value position(const In& in, bool last) {
  const std::string &text = *in.on().text(), &part = in.text(0);
  in.budget.spend(16 + text.size() * (1 + part.size() / 16), in.call.line);
  const size_t found = last ? text.rfind(part) : text.find(part);
  if (found == text.npos) return int64_t{-1};
  return count_utf8(std::string_view(text).substr(0, found));
}

Value count(const In& in) {
  const std::string &text = *in.on().text(), &part = in.text(0);
  if (part.empty()) return count_utf8(text) + 1;
  const Finder find(text, part, in);
  int64_t times = 0;
  for (size_t at = 0; (at = find(at)) != text.npos; at += part.size()) ++times;
  return times;
}

template <bool (*fits)(char)>
Value consists_of(const In& in) {
  const std::string text = ascii(in);
  return !text.empty() && std::ranges::all_of(text, fits);
}

// Whether there are letters, and none of the other case.
template <bool (*is_other)(char)>
Value has_case(const In& in) {
  const std::string text = ascii(in);
  return std::ranges::any_of(text, is_letter) && std::ranges::none_of(text, is_other);
}

Value is_space(const In& in) { return !in.on().text()->empty() && strip_front(*in.on().text()).empty(); }

// str.title(): a letter after anything else is a capital.
Value title_by_python(const In& in) {
  std::string text = ascii(in);
  bool is_in_word = false;
  for (char& c : text) {
    c = is_in_word ? lower(c) : upper(c);
    is_in_word = is_letter(c);
  }
  return in.string(std::move(text));
}

Value join_texts(const In& in) {
  if (in.given[0]->list() == nullptr) in.unsupported();
  const std::vector<Value> items = in.budget.items(*in.given[0], in.call.line);
  if (!std::ranges::all_of(items, [](const Value& item) { return item.text() != nullptr; })) in.unsupported();
  return in.string(joined(items, *in.on().text(), in));
}

template <bool front, bool back>
Value strip(const In& in) {
  const std::string* wanted = in.is_missing(0) ? nullptr : &in.text(0);
  const std::string whole = in.text_on();
  std::string_view text = whole;
  if (wanted != nullptr) in.budget.spend(text.size() * (1 + wanted->size() / 16), in.call.line);
  if (front) text = strip_front(text, wanted);
  if (back) text = strip_back(text, wanted);
  return in.string(std::string(text));
}

constexpr TemplateFunction kOfStrings[] = {
    {"strip", strip<true, true>, 0, {kByPlace}},
    {"lstrip", strip<true, false>, 0, {kByPlace}},
    {"rstrip", strip<false, true>, 0, {kByPlace}},
    {"startswith", [](const In& in) -> Value { return has_affix(in, true); }, 1, {kByPlace}},
    {"endswith", [](const In& in) -> Value { return has_affix(in, false); }, 1, {kByPlace}},
    {"removeprefix", [](const In& in) { return without_affix(in, true); }, 1, {kByPlace}},
    {"removesuffix", [](const In& in) { return without_affix(in, false); }, 1, {kByPlace}},
    {"split", split, 0, {"sep", "maxsplit"}},
    {"rsplit", split_from_the_end, 0, {"sep", "maxsplit"}},
    {"splitlines", split_lines},
    {"replace", replaced, 2, {kByPlace, kByPlace, kByPlace}},
    {"join", join_texts, 1, {kByPlace}},
    {"find", [](const In& in) { return position(in, false); }, 1, {kByPlace}},
    {"rfind", [](const In& in) { return position(in, true); }, 1, {kByPlace}},
    {"count", count, 1, {kByPlace}},
    {"upper", to_upper},
    {"lower", to_lower},
    {"capitalize", capitalized},
    {"title", title_by_python},
    {"isdigit", consists_of<is_ascii_digit>},
    {"isalpha", consists_of<is_letter>},
    {"isalnum", consists_of<[](char c) { return is_letter(c) || is_ascii_digit(c); }>},
    {"isupper", has_case<is_lower>},
    {"islower", has_case<is_upper>},
    {"isspace", is_space},
};

Value keys(const In& in) { return in.list(in.items(), TemplateListKind::view); }

Value values(const In& in) {
  std::vector<Value> values;
  for (const auto& [key, value] : in.on().dict()->members) values.push_back(value);
  return in.list(std::move(values), TemplateListKind::view);
}

Value get(const In& in) {
  const std::optional<std::string> key = template_key(*in.given[0]);
  if (!key) in.unsupported();
  in.budget.spend((8 + key->size() / 16) * in.on().dict()->members.size(), in.call.line);
  const Value* found = in.on().dict()->find(*key);
  return found != nullptr ? *found : in.given[1] != nullptr ? *in.given[1] : Value(nullptr);
}

constexpr TemplateFunction kOfDictionaries[] = {
    {"items", pairs},
    {"keys", keys},
    {"values", values},
    {"get", get, 1, {kByPlace, kByPlace}},
};

}  // namespace

Value to_upper(const In& in) {
  std::string text = ascii(in);
  std::ranges::transform(text, text.begin(), upper);
  return in.string(std::move(text));
}

std::string lower_case(std::string text, const std::string& name, int line, TemplateBudget& budget) {
  text = ascii(text, name, line, budget);
  std::ranges::transform(text, text.begin(), lower);
  return text;
}

Value to_lower(const In& in) {
  return in.string(lower_case(in.text_on(), in.call.name, in.call.line, in.budget));
}

Value capitalized(const In& in) {
  std::string text = lower_case(in.text_on(), in.call.name, in.call.line, in.budget);
  if (!text.empty()) text[0] = upper(text[0]);
  return in.string(std::move(text));
}

Value stripped(const In& in) { return strip<true, true>(in); }

Value replaced(const In& in) {
  const std::string text = in.text_on();
  const std::string &from = in.text(0), &to = in.text(1);
  if (from.empty()) in.unsupported();
  const int64_t most = most_of(in, 2);
  std::string result;
  size_t at = 0;
  const Finder find(text, from, in);
  int64_t times = 0;
  for (size_t found; times < most && (found = find(at)) != std::string::npos; at = found + from.size()) {
    in.budget.spend(16 + to.size(), in.call.line);
    result.append(text, at, found - at).append(to);
    ++times;
  }
  return in.string(result.append(text, at));
}

std::vector<std::string_view> lines_of(std::string_view text) {
  const auto is_break = [](int32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const size_t next = at + static_cast<size_t>(c.length);
    if (is_break(c.code_point)) {
      lines.push_back(text.substr(begin, at - begin));
      begin = text.substr(at).starts_with("\r\n") ? next + 1 : next;
    }
    at = std::max(begin, next);
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string joined(const std::vector<Value>& items, const std::string& by, const In& in) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    in.budget.spend(by.size(), in.call.line);
    if (i > 0) text += by;
    text += in.budget.text(items[i], in.call.line);
  }
  return text;
}

Value pairs(const In& in) {
  std::vector<Value> found;
  if (in.on().undefined()) return in.list({});
  if (in.on().dict() == nullptr) in.unsupported();
  for (const auto& [key, value] : in.on().dict()->members) {
    in.budget.spend(64 + key.size(), in.call.line);
    found.push_back(in.list({template_key_value(key), value}, TemplateListKind::tuple));
  }
  return in.list(std::move(found), TemplateListKind::view);
}

Value call_method(const TemplateCall& call, TemplateBudget& budget) {
  if (call.on.undefined())
    budget.program.fail(call.line, "cannot call ", quote(call.name), " of an undefined value");
  const std::span<const TemplateFunction> none, strings = kOfStrings, dictionaries = kOfDictionaries;
  return call_of_table(call.on.text() != nullptr   ? strings
                       : call.on.dict() != nullptr ? dictionaries
                                                   : none,
                       "method", call, budget, concat(" of ", call.on.kind()));
}

}  // namespace multihead::text
