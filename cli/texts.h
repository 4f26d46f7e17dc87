// Texts, one per line, and how far the work on them or others is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/verb.h"
#include "multihead/text/corpus/labelled.h"

namespace multihead::cli {

/// --format, of verbs that read tables.
void declare_format(Flags& flags, text::TableFormat& format);

/// The texts of --data (text::read_texts), "-": of stdin. Their labels, if any, are not read. Throws
/// InputError.
text::LabelledTexts texts_of(const std::string& data, text::TableFormat format);
/// The same where each text is by itself. Throws InputError for pairs.
text::LabelledTexts single_texts_of(const std::string& data, text::TableFormat format);

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
