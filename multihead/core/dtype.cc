#include "multihead/core/dtype.h"

#include <array>
#include <ostream>

#include "multihead/core/error.h"

namespace multihead {
namespace {

struct Entry {
  std::string_view name;
  size_t size;
};
constexpr std::array<Entry, 7> kEntries = {
    {{"f32", 4}, {"f64", 8}, {"bf16", 2}, {"f16", 2}, {"i64", 8}, {"i32", 4}, {"bool", 1}}};

const Entry& entry(Dtype dtype) { return kEntries[static_cast<size_t>(dtype)]; }

}  // namespace

size_t size_of(Dtype dtype) { return entry(dtype).size; }

std::string_view name(Dtype dtype) { return entry(dtype).name; }

Dtype parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == text) return static_cast<Dtype>(i);
  }
  throw ValueError(concat("dtype: expected f32, f64, bf16, f16, i64, i32 or bool, got \"", text, "\""));
}

bool is_floating(Dtype dtype) { return dtype <= Dtype::f16; }

std::ostream& operator<<(std::ostream& out, Dtype dtype) { return out << name(dtype); }

BFloat16::BFloat16(float value) {
  const uint32_t x = std::bit_cast<uint32_t>(value);
  if ((x & 0x7fffffffu) > 0x7f800000u) {
    bits = static_cast<uint16_t>((x >> 16) | 0x40u);  // keep NaN quiet: rounding could turn it into Inf
  } else {
    bits = static_cast<uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
  }
}

Float16::Float16(float value) {
  const uint32_t x = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (x >> 16) & 0x8000u;
  const uint32_t magnitude = x & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or above
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal: let one addition do the rounding
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  } else {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float value = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -value : value;
}

}  // namespace multihead
