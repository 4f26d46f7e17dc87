// How much memory is left for this process, asked before much of it is taken: Linux grants more than there is
// and kills whoever uses it.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace multihead {

/// There is not enough memory, and that was seen before any was taken.
class MemoryError : public std::bad_alloc {
 public:
  explicit MemoryError(const std::string& message) : message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // copies without allocating
};

/// Bytes that this process can still take without being killed: what the machine has left (swap counted) or,
/// if less, what the control groups of the process leave it. The largest number where nothing is known.
/// `root` is where /proc and /sys are looked for.
int64_t available_memory(const std::string& root = "");

/// Throws MemoryError "<who> takes 19.1 TB, but 21.2 GB of memory are left; <advice>".
void check_memory(double bytes, std::string_view who, std::string_view advice = "");

}  // namespace multihead
