#include "multihead/core/error.h"

#include <array>
#include <charconv>
#include <locale>
#include <sstream>

namespace multihead {
namespace {

template <class Number, class... Format>
void append(std::string& message, Number number, Format... format) {
  std::array<char, 32> digits;  // 20 of 2^64, 13 of a double
  message.append(digits.data(), std::to_chars(digits.begin(), digits.end(), number, format...).ptr);
}

}  // namespace

void MessagePart::append_to(std::string& message) const {
  switch (kind_) {
    case Kind::text:
      message += text_;
      return;
    case Kind::character:
      message += static_cast<char>(integer_);
      return;
    case Kind::number:
      append(message, number_, std::chars_format::general, 6);
      return;
    case Kind::integer:
      append(message, integer_);
      return;
    case Kind::natural:
      append(message, natural_);
      return;
    case Kind::printable:
      break;
  }
  std::ostringstream out;
  out.imbue(std::locale::classic());
  printable_.print(out, printable_.value);
  message += std::move(out).str();
}

std::string message(std::initializer_list<MessagePart> parts) {
  std::string all;
  for (const MessagePart& part : parts) part.append_to(all);
  return all;
}

}  // namespace multihead
