// Lists, tuples and dictionaries as Python prints them.
#include <utf8proc.h>

#include <cstdio>

#include "multihead/text/chat/chat_template-inl.h"

namespace multihead::text {
namespace {

bool is_printable(int32_t code_point) {
  if (code_point < 0x80) return code_point >= ' ' && code_point < 0x7F;
  switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string quoted(const std::string& text) {
  const bool is_double = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char mark = is_double ? '"' : '\'';
  std::string out(1, mark);
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const auto length = static_cast<size_t>(c.length);
    const char* const known = c.code_point == '\n'   ? "\\n"
                              : c.code_point == '\r' ? "\\r"
                              : c.code_point == '\t' ? "\\t"
                              : c.code_point == '\\' ? "\\\\"
                                                     : nullptr;
    if (known != nullptr) {
      out += known;
    } else if (c.code_point == mark) {
      out.append(1, '\\').append(1, mark);
    } else if (is_printable(c.code_point)) {
      out.append(text, at, length);
    } else {
      char escape[16];
      const char* const form = c.code_point < 0x100     ? "\\x%02x"
                               : c.code_point < 0x10000 ? "\\u%04x"
                                                        : "\\U%08x";
      std::snprintf(escape, sizeof escape, form, static_cast<unsigned>(c.code_point));
      out += escape;
    }
    at += length;
  }
  return out + mark;
}

}  // namespace

std::string TemplateBudget::repr(const TemplateValue& value, int line) {
  if (value.text() != nullptr) {
    spend(16 + 10 * value.text()->size(), line);
    return quoted(*value.text());
  }
  spend(16, line);
  if (value.undefined()) return "Undefined";
  std::string out;
  const auto put = [&](const std::string& part) {
    spend(part.size(), line);
    out += (out.empty() ? "" : ", ") + part;
  };
  if (value.list() != nullptr) {
    if (!value.list()->is_plain()) program.fail(line, value.kind(), " as text is not supported");
    for (const TemplateValue& item : value.list()->items) put(repr(item, line));
    if (value.list()->kind == TemplateListKind::list) return "[" + out + "]";
    return "(" + out + (value.list()->items.size() == 1 ? ",)" : ")");
  }
  if (value.dict() != nullptr) {
    for (const auto& [key, item] : value.dict()->members)
      put(repr(template_key_value(key), line) + ": " + repr(item, line));
    return "{" + out + "}";
  }
  return text(value, line);
}

}  // namespace multihead::text
