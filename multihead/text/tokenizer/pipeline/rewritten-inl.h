// The text after a step, and where each part of it comes from. Private to text/.
#pragma once

#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace multihead::text {

/// The output of a step that changes a text, character by character. On request it keeps the byte of the
/// step's input that each byte of the output stands for, so that tokens find their way back.
class Rewritten {
 public:
  explicit Rewritten(bool is_aligned) : is_aligned_(is_aligned) {}

  /// Bytes of the input as they are.
  void copy(std::string_view input, size_t begin, size_t end) {
    text.append(input, begin, end - begin);
    if (!is_aligned_) return;
    from.resize(text.size());
    std::iota(from.end() - static_cast<std::ptrdiff_t>(end - begin), from.end(), begin);
  }
  /// Others, for the input's byte `at`.
  void put(std::string_view bytes, size_t at) {
    text += bytes;
    if (is_aligned_) from.resize(text.size(), at);
  }
  /// Makes this the output of both steps, where `before` is what this step was given.
  void follow(const Rewritten& before) {
    for (size_t& at : from) at = before.from[at];
  }
  bool is_aligned() const { return is_aligned_; }

  std::string text;
  std::vector<size_t> from;  ///< of each byte of `text`, on request

 private:
  bool is_aligned_;
};

}  // namespace multihead::text
