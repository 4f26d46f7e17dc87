#include "cli/texts.h"

#include <fmt/format.h>

#include "cli/streams.h"
#include "cli/verb.h"
#include "multihead/core/files.h"

namespace multihead::cli {

std::vector<std::string> lines_of(const std::string& data) {
  std::vector<std::string> lines;
  if (data == "-") {
    for (std::string line; read_line(line);) lines.push_back(line);
    return lines;
  }
  const std::string text = reading([&] { return read_file(data); });
  for (size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; at < text.size();) {  // no byte order mark
    const size_t end = std::min(text.find('\n', at), text.size());
    const bool has_return = end > at && text[end - 1] == '\r';
    lines.push_back(text.substr(at, end - at - (has_return ? 1 : 0)));
    at = end + 1;
  }
  return lines;
}

TextMeter::~TextMeter() {
  if (shown_) fmt::print(stderr, "\n");
}

void TextMeter::operator()(int64_t done, int64_t total) {
  const auto now = Clock::now();
  if (is_quiet_ || (now - last_ < std::chrono::milliseconds(500) && done < total)) return;
  if (done == total && !shown_) return;
  last_ = now, shown_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = static_cast<double>(done) / seconds;
  fmt::print(stderr, "\r{} of {} {}, {:.0f}/s, {:.0f} s left ", done, total, what_, rate,
             static_cast<double>(total - done) / rate);
}

}  // namespace multihead::cli
