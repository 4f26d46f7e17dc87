// Errors. All derive from Error; invalid arguments from std::invalid_argument too, external failures from
// std::runtime_error.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace multihead {

/// What all errors of this library derive from, beside a standard exception.
class Error {
 public:
  virtual ~Error() = default;
  virtual const char* what() const noexcept = 0;
};

namespace detail {
template <class Standard>
struct ErrorAs : Standard, Error {
  using Standard::Standard;
  const char* what() const noexcept override { return Standard::what(); }
};
}  // namespace detail

/// A tensor has the wrong rank, sizes or strides.
struct ShapeError : detail::ErrorAs<std::invalid_argument> {
  using ErrorAs::ErrorAs;
};
/// A tensor has a dtype the operation does not support.
struct DtypeError : detail::ErrorAs<std::invalid_argument> {
  using ErrorAs::ErrorAs;
};
/// A number, flag or combination of options is outside its domain.
struct ValueError : detail::ErrorAs<std::invalid_argument> {
  using ErrorAs::ErrorAs;
};
/// Reading or writing failed.
struct IoError : detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};
/// A file violates its format.
struct FormatError : detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};
/// NaN or Inf in a computation.
struct NumericError : detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

/// One part of a message: text, a number, or anything with an operator<<. A view: it lives as long as the
/// call.
class MessagePart {
 public:
  MessagePart(std::string_view text) : kind_(Kind::text), text_(text) {}
  MessagePart(const std::string& text) : MessagePart(std::string_view(text)) {}
  MessagePart(const char* text) : MessagePart(std::string_view(text)) {}
  MessagePart(char character) : kind_(Kind::character), integer_(character) {}
  MessagePart(bool truth) : MessagePart(truth ? "true" : "false") {}
  MessagePart(double number) : kind_(Kind::number), number_(number) {}
  MessagePart(float number) : MessagePart(double{number}) {}
  template <std::signed_integral Integer>
  MessagePart(Integer integer) : kind_(Kind::integer), integer_(integer) {}
  template <std::unsigned_integral Integer>
  MessagePart(Integer integer) : kind_(Kind::natural), natural_(integer) {}
  template <class Printable>
  requires(std::is_class_v<Printable> || std::is_enum_v<Printable>) MessagePart(const Printable& value)
      : kind_(Kind::printable), printable_{&value, print<Printable>} {}

  void append_to(std::string& message) const;

 private:
  enum class Kind : uint8_t { text, character, number, integer, natural, printable };
  struct Value {
    const void* value;
    void (*print)(std::ostream& out, const void* value);
  };
  template <class Printable>
  static void print(std::ostream& out, const void* value) {
    out << *static_cast<const Printable*>(value);
  }

  Kind kind_;
  union {
    std::string_view text_;
    double number_;
    int64_t integer_;
    uint64_t natural_;
    Value printable_;
  };
};

/// The parts one after the other; numbers with six digits, as a stream prints them.
std::string message(std::initializer_list<MessagePart> parts);

template <class... Parts>
std::string concat(const Parts&... parts) {
  return message({parts...});
}

}  // namespace multihead

/// MH_CHECK(x > 0, ValueError, "who: argument must be > 0, got ", x): throws unless the condition holds.
#define MH_CHECK(condition, Error, ...)                           \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      throw ::multihead::Error(::multihead::concat(__VA_ARGS__)); \
  } while (false)
