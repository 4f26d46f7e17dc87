// transformers' filter tojson: what Python's json.dumps() writes.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "multihead/text/chat/chat_template_calls-inl.h"

namespace multihead::text {
namespace {

using Value = TemplateValue;

struct Style {
  bool is_ascii = false, sorts_keys = false;
  int64_t indent = -1;  // below 0: one line
  std::string comma = ", ", colon = ": ";
};

class Writer {
 public:
  Writer(const Style& style, int line, TemplateBudget& budget)
      : style_(style), line_(line), budget_(budget) {}

  void value(const Value& value, int64_t level = 1) {
    budget_.spend(16, line_);
    if (value.none()) {
      out += "null";
    } else if (const auto* b = value.as<bool>()) {
      out += *b ? "true" : "false";
    } else if (const auto* number = value.as<double>(); number != nullptr && !std::isfinite(*number)) {
      out += std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity";
    } else if (value.as<int64_t>() != nullptr || number != nullptr || value.digits() != nullptr) {
      out += budget_.text(value, line_);
    } else if (value.text() != nullptr) {
      text(*value.text());
    } else if (value.list() != nullptr && value.list()->is_plain()) {
      list(value.list()->items, level);
    } else if (value.dict() != nullptr) {
      dict(value.dict()->members, level);
    } else {
      budget_.program.fail(line_, "tojson of ", value.kind(), " is not supported");
    }
  }

  std::string out;

 private:
  using Members = std::vector<std::pair<std::string, Value>>;

  void separate(size_t item, int64_t level) {
    budget_.spend(style_.comma.size(), line_);
    if (item > 0) out += style_.comma;
    new_line(level);
  }

  void new_line(int64_t level) {
    if (style_.indent < 0) return;
    const auto spaces = static_cast<size_t>(style_.indent * level);
    budget_.spend(spaces, line_);
    out.append(1, '\n').append(spaces, ' ');
  }

  void list(const std::vector<Value>& items, int64_t level) {
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i, level);
      value(items[i], level + 1);
    }
    if (!items.empty()) new_line(level - 1);
    out += ']';
  }

  void dict(Members members, int64_t level) {
    if (style_.sorts_keys) sort(members);
    out += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      separate(i, level);
      text(budget_.text(template_key_value(members[i].first), line_));
      budget_.spend(style_.colon.size(), line_);
      out += style_.colon;
      value(members[i].second, level + 1);
    }
    if (!members.empty()) new_line(level - 1);
    out += '}';
  }

  void sort(Members& members) {
    const auto key = [](const auto& member) { return template_key_value(member.first); };
    const auto is_integer = [&](const auto& member) { return key(member).template as<int64_t>() != nullptr; };
    const auto integers = std::ranges::count_if(members, is_integer);
    budget_.spend(64 * members.size(), line_);
    if (integers == 0) {
      std::ranges::stable_sort(members, {}, [](const auto& member) { return member.first; });
    } else if (static_cast<size_t>(integers) == members.size()) {
      std::ranges::stable_sort(members, {},
                               [&](const auto& member) { return *key(member).template as<int64_t>(); });
    } else {
      budget_.program.fail(line_, "tojson cannot sort strings and integers");
    }
  }

  void text(const std::string& text) {
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    budget_.spend(6 * text.size(), line_);
    out += '"';
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(text, at);
      if (const size_t known = kFrom.find(text[at]); known != std::string_view::npos) {
        out += {'\\', kTo[known]};
      } else if (c.code_point < 0x20 || (style_.is_ascii && c.code_point > 0x7E)) {
        escape(static_cast<unsigned>(c.code_point));
      } else {
        out.append(text, at, static_cast<size_t>(c.length));
      }
      at += static_cast<size_t>(c.length);
    }
    out += '"';
  }

  // In one or two units of UTF-16.
  void escape(unsigned code_point) {
    char units[16];
    const unsigned rest = code_point - 0x10000;
    if (code_point < 0x10000) {
      std::snprintf(units, sizeof units, "\\u%04x", code_point);
    } else {
      std::snprintf(units, sizeof units, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
    out += units;
  }

  const Style& style_;
  int line_;
  TemplateBudget& budget_;
};

}  // namespace

Value to_json(const TemplateArguments& in) {
  Style style = {.is_ascii = in.truth(0), .sorts_keys = in.truth(3), .indent = in.integer(1, -1)};
  if (!in.is_missing(1)) style.comma = ",";
  if (style.indent > 64 || (!in.is_missing(1) && style.indent < 0)) in.unsupported();
  if (!in.is_missing(2)) {
    const TemplateList* both = in.given[2]->list();
    if (both == nullptr || both->items.size() != 2) in.unsupported();
    const std::string *comma = both->items[0].text(), *colon = both->items[1].text();
    if (comma == nullptr || colon == nullptr) in.unsupported();
    style.comma = *comma, style.colon = *colon;
  }
  Writer writer(style, in.call.line, in.budget);
  writer.value(in.on());
  return in.string(std::move(writer.out));
}

}  // namespace multihead::text
