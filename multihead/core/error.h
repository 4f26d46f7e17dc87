// Errors. Invalid arguments derive from std::invalid_argument, external failures from std::runtime_error.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace multihead {

/// A tensor has the wrong rank, sizes or strides.
struct ShapeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
/// A tensor has a dtype the operation does not support.
struct DtypeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
/// A number, flag or combination of options is outside its domain.
struct ValueError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
/// Reading or writing failed.
struct IoError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A file violates its format.
struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// NaN or Inf in a computation.
struct NumericError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// All parts, printed and concatenated.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out << std::boolalpha;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace multihead

/// MH_CHECK(x > 0, ValueError, "who: argument must be > 0, got ", x): throws unless the condition holds.
#define MH_CHECK(condition, Error, ...)                           \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      throw ::multihead::Error(::multihead::concat(__VA_ARGS__)); \
  } while (false)
