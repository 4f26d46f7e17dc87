// What the C++ library of Emscripten 3.1.6 lacks of C++20: every file includes this first (packaging/dependencies.sh).
#pragma once

#if __cplusplus > 201703L
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>

namespace std {

template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

template <class Array>
unique_ptr<Array> make_unique_for_overwrite(size_t size) {
  return unique_ptr<Array>(new remove_extent_t<Array>[size]);
}

// The fewest digits that read back as `value`, "-d.ddde-05", in a buffer of 32.
template <class Float>
inline int multihead_shortest(char* buffer, Float value) {
  int length = 0;
  for (int digits = 0; digits < 17; ++digits) {
    length = snprintf(buffer, 32, "%.*e", digits, static_cast<double>(value));
    if (static_cast<Float>(is_same_v<Float, float> ? strtof(buffer, nullptr) : strtod(buffer, nullptr)) ==
        value)
      break;
  }
  return length;
}

template <class Float, class = enable_if_t<is_floating_point_v<Float>>>
to_chars_result to_chars(char* first, char* last, Float value, chars_format format) {
  char buffer[32];
  auto length = static_cast<size_t>(multihead_shortest(buffer, value));
  char* e = static_cast<char*>(memchr(buffer, 'e', length));
  string text(buffer, length);
  if (format == chars_format::fixed) {
    const int exponent = atoi(e + 1);
    string digits;
    for (const char* c = buffer; c != e; ++c)
      if (*c != '.' && *c != '-') digits += *c;
    const int point = exponent + 1;
    if (point <= 0) digits.insert(0, static_cast<size_t>(1 - point), '0');
    if (point > static_cast<int>(digits.size()))
      digits.append(static_cast<size_t>(point) - digits.size(), '0');
    const auto whole = static_cast<size_t>(point <= 0 ? 1 : point);
    text = (signbit(value) ? "-" : "") + digits.substr(0, whole);
    if (whole < digits.size()) text += "." + digits.substr(whole);
  }
  if (text.size() > static_cast<size_t>(last - first)) return {last, errc::value_too_large};
  memcpy(first, text.data(), text.size());
  return {first + text.size(), errc()};
}

inline to_chars_result to_chars(char* first, char* last, double value, chars_format format, int precision) {
  const char* pattern = format == chars_format::fixed     ? "%.*f"
                        : format == chars_format::general ? "%.*g"
                                                          : "%.*e";
  char buffer[400];
  const auto length = static_cast<size_t>(snprintf(buffer, sizeof buffer, pattern, precision, value));
  if (length > static_cast<size_t>(last - first)) return {last, errc::value_too_large};
  memcpy(first, buffer, length);
  return {first + length, errc()};
}

template <class Float, class = enable_if_t<is_floating_point_v<Float>>>
to_chars_result to_chars(char* first, char* last, Float value) {
  return to_chars(first, last, value, chars_format::scientific);
}

// strtod knows no locale here but "C".
inline from_chars_result from_chars(const char* first, const char* last, double& value) {
  const string text(first, last);
  char* end = nullptr;
  const double read = strtod(text.c_str(), &end);
  if (end == text.c_str()) return {first, errc::invalid_argument};
  const char* stopped = first + (end - text.c_str());
  if (isinf(read)) return {stopped, errc::result_out_of_range};
  value = read;
  return {stopped, errc()};
}

// The algorithms of std::ranges that the library calls.
namespace ranges {

template <class Range, class Test>
auto find_if(Range&& range, Test test) {
  return std::find_if(std::begin(range), std::end(range), test);
}
template <class Range, class Test>
bool any_of(Range&& range, Test test) {
  return std::any_of(std::begin(range), std::end(range), test);
}
template <class Range, class Value, class Key = identity>
auto find(Range&& range, const Value& value, Key key = {}) {
  return ranges::find_if(range, [&](const auto& one) { return std::invoke(key, one) == value; });
}
template <class Range, class Value>
auto count(Range&& range, const Value& value) {
  return std::count(std::begin(range), std::end(range), value);
}
template <class Range, class Out>
void copy(Range&& range, Out out) {
  std::copy(std::begin(range), std::end(range), out);
}
template <class Key>
auto by(Key key) {
  return [key](const auto& a, const auto& b) { return std::invoke(key, a) < std::invoke(key, b); };
}
struct Less {};
template <class Range, class Key = identity>
void sort(Range&& range, Less = {}, Key key = {}) {
  std::sort(std::begin(range), std::end(range), by(key));
}
template <class Range, class Key = identity>
void stable_sort(Range&& range, Less = {}, Key key = {}) {
  std::stable_sort(std::begin(range), std::end(range), by(key));
}
template <class Range, class Value>
auto lower_bound(Range&& range, const Value& value) {
  return std::lower_bound(std::begin(range), std::end(range), value);
}
template <class Range, class Value, class Key = identity>
auto upper_bound(Range&& range, const Value& value, Less = {}, Key key = {}) {
  return std::upper_bound(std::begin(range), std::end(range), value,
                          [&](const auto& a, const auto& b) { return a < std::invoke(key, b); });
}

}  // namespace ranges
}  // namespace std
#endif
