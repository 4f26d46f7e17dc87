#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

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

}  // namespace multihead::cli
