// Element types and the two 16-bit float storage formats.
#pragma once

#if __cplusplus < 202002L
#error "multihead needs C++20: compile with -std=c++20"
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

namespace multihead {

enum class Dtype : uint8_t { f32, f64, bf16, f16, i64, i32, boolean };

/// Bytes of one element.
size_t size_of(Dtype dtype);
/// "f32", "f64", "bf16", "f16", "i64", "i32", "bool".
std::string_view name(Dtype dtype);
/// The inverse of name(); throws ValueError.
Dtype parse_dtype(std::string_view text);
bool is_floating(Dtype dtype);

namespace detail {
/// What values of `dtype` are computed in, and the type of their gradients: f64 of f64, else f32.
constexpr Dtype arithmetic_dtype(Dtype dtype) { return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }
}  // namespace detail

std::ostream& operator<<(std::ostream& out, Dtype dtype);

/// Brain float: the upper half of an f32, rounded to nearest even.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE 754 binary16, rounded to nearest even.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> : std::integral_constant<Dtype, Dtype::f32> {};
template <>
struct DtypeOf<double> : std::integral_constant<Dtype, Dtype::f64> {};
template <>
struct DtypeOf<BFloat16> : std::integral_constant<Dtype, Dtype::bf16> {};
template <>
struct DtypeOf<Float16> : std::integral_constant<Dtype, Dtype::f16> {};
template <>
struct DtypeOf<int64_t> : std::integral_constant<Dtype, Dtype::i64> {};
template <>
struct DtypeOf<int32_t> : std::integral_constant<Dtype, Dtype::i32> {};
template <>
struct DtypeOf<bool> : std::integral_constant<Dtype, Dtype::boolean> {};

/// The types of elements: float, double, BFloat16, Float16, int64_t, int32_t and bool.
template <class T>
concept Element = requires {
  DtypeOf<T>::value;
};
template <class T>
inline constexpr Dtype dtype_of = DtypeOf<T>::value;

/// Calls f with a zero value of the element type: dispatch(dtype, [&](auto zero) { using T = decltype(zero);
/// … }).
template <class F>
auto dispatch(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f64:
      return f(double{});
    case Dtype::bf16:
      return f(BFloat16{});
    case Dtype::f16:
      return f(Float16{});
    case Dtype::i64:
      return f(int64_t{});
    case Dtype::i32:
      return f(int32_t{});
    case Dtype::boolean:
      return f(bool{});
    case Dtype::f32:
      break;
  }
  return f(float{});
}

}  // namespace multihead
