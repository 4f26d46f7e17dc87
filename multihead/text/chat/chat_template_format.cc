// Python's text % values, of %s, %r and numbers.
#include <clocale>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "multihead/text/chat/chat_template-inl.h"

namespace multihead::text {
namespace {

using Value = TemplateValue;

// "%-08.3f": its parts.
struct Place {
  std::string flags;
  int width = 0, precision = -1;
  char kind = ' ';
};

class Formatter {
 public:
  Formatter(const std::string& form, int line, TemplateBudget& budget)
      : form_(form), line_(line), budget_(budget) {}

  std::string run(const std::vector<Value>& values) {
    size_t used = 0;
    while (at_ < form_.size()) {
      if (form_[at_++] != '%') {
        out_ += form_[at_ - 1];
        continue;
      }
      const Place place = next_place();
      if (place.kind == '%') {
        out_ += '%';
        continue;
      }
      if (used == values.size()) budget_.program.fail(line_, "the format has more places than values");
      put(place, values[used++]);
    }
    if (used < values.size()) budget_.program.fail(line_, "the format has fewer places than values");
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported() const {
    budget_.program.fail(line_, "the format ", quote(form_, 40), " is not supported");
  }

  char peek() const { return at_ < form_.size() ? form_[at_] : ' '; }
  int number() {
    int value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) value = std::min(9999, 10 * value + (peek() - '0'));
    if (value > 1000) unsupported();
    return value;
  }

  Place next_place() {
    Place place;
    for (; peek() == '-' || peek() == '+' || peek() == '0'; ++at_) place.flags += peek();
    place.width = number();
    if (peek() == '.') ++at_, place.precision = number();
    if (at_ == form_.size()) unsupported();
    place.kind = form_[at_++];
    return place;
  }

  void put(const Place& place, const Value& value) {
    if (place.kind == 's' || place.kind == 'r') return put_text(place, value);
    const auto* truth = value.as<bool>();
    const auto* integer = value.as<int64_t>();
    const auto* number = value.as<double>();
    const bool is_integer = truth != nullptr || integer != nullptr;
    const int64_t whole = truth != nullptr ? *truth : integer != nullptr ? *integer : 0;
    if ((place.kind == 'd' || place.kind == 'i') && is_integer)
      return print(place, "lld", static_cast<long long>(whole));
    const bool is_float = std::string_view("feg").find(place.kind) != std::string_view::npos;
    const double real = number != nullptr ? *number : static_cast<double>(whole);
    if (!is_float || (!is_integer && number == nullptr) || !std::isfinite(real)) unsupported();
    const char kind[] = {place.kind, '\0'};
    print(place, kind, real);
  }

  template <class Number>
  void print(const Place& place, const char* kind, Number number) {
    const std::string form = "%" + place.flags + "*.*" + kind;
    char text[2400];
    budget_.spend(sizeof text, line_);
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
    std::snprintf(text, sizeof text, form.c_str(), place.width, place.precision, number);
    const std::string_view point = std::localeconv()->decimal_point;
    std::string spelled = text;
    if (const size_t at = spelled.find(point); at != std::string::npos)
      spelled.replace(at, point.size(), ".");
    out_ += spelled;
  }

  void put_text(const Place& place, const Value& value) {
    std::string text = place.kind == 's' ? budget_.text(value, line_) : budget_.repr(value, line_);
    std::vector<size_t> ends = {0};  // of characters
    for (size_t at = 0; at < text.size();)
      ends.push_back(at += static_cast<size_t>(decode_utf8(text, at).length));
    budget_.spend(16 * text.size() + static_cast<size_t>(place.width), line_);
    const size_t size = ends.size() - 1,
                 kept = place.precision < 0 ? size
                                            : std::min<size_t>(size, static_cast<size_t>(place.precision));
    text.resize(ends[kept]);
    const auto width = static_cast<size_t>(place.width);
    const std::string space(width > kept ? width - kept : 0, ' ');
    const bool is_left = place.flags.find('-') != std::string::npos;
    out_ += is_left ? text + space : space + text;
  }

  const std::string& form_;
  int line_;
  TemplateBudget& budget_;
  std::string out_;
  size_t at_ = 0;
};

}  // namespace

Value format_text(const Value& text, const Value& values, int line, TemplateBudget& budget) {
  const bool is_tuple = values.list() != nullptr && values.list()->kind == TemplateListKind::tuple;
  const std::vector<Value> given = is_tuple ? budget.items(values, line) : std::vector<Value>{values};
  return budget.string(Formatter(*text.text(), line, budget).run(given), line);
}

}  // namespace multihead::text
