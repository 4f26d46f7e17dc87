// Texts, one per line, and how far the work on them or others is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace multihead::cli {

/// The lines of a file, or of stdin for "-". Throws InputError.
std::vector<std::string> lines_of(const std::string& data);

/// A line twice a second with what is done, the rate and the time that is left.
class TextMeter {
 public:
  explicit TextMeter(bool is_quiet, const char* what = "texts") : is_quiet_(is_quiet), what_(what) {}
  ~TextMeter();
  void operator()(int64_t done, int64_t total);
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  bool is_quiet_, shown_ = false;
  const char* what_;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

}  // namespace multihead::cli
