// CRC-64 (ECMA-182, as in xz): detects any single-bit error and any burst of up to 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace multihead {

class Checksum {
 public:
  void update(const void* data, size_t bytes);
  uint64_t value() const { return ~state_; }

 private:
  uint64_t state_ = ~uint64_t{0};
};

uint64_t checksum(std::string_view bytes);
/// Sixteen hexadecimal digits.
std::string checksum_text(uint64_t value);

}  // namespace multihead
