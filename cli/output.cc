#include "cli/output.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "multihead/core/utf8.h"

namespace multihead::cli {

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  throw std::system_error(errno != 0 ? errno : EIO, std::generic_category(), "stdout cannot be written");
}

void put_output(std::string_view text) {
  const size_t put = std::fwrite(text.data(), 1, text.size(), stdout);
  if (put != text.size()) throw std::system_error(errno, std::generic_category(), "stdout cannot be written");
  flush_output();
}

std::string one_line(std::string_view text) {
  std::string line = valid_utf8(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

}  // namespace multihead::cli
