// Memory available to this process, checked before large allocations: Linux overcommits and kills.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "multihead/core/error.h"

namespace multihead {

/// Not enough memory, detected before allocation.
class MemoryError : public std::bad_alloc, public Error {
 public:
  explicit MemoryError(const std::string& message) : message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // copies without allocating
};

/// Bytes this process can still use without being killed: what the machine has left (including swap) or, if
/// less, what its control groups allow. The largest number if unknown. `root` prefixes /proc and /sys.
int64_t available_memory(const std::string& root = "");

/// Throws MemoryError "<who> needs 19.1 TB, but only 21.2 GB of memory are available; <advice>".
void check_memory(double bytes, std::string_view who, std::string_view advice = "");

}  // namespace multihead
