#include "cli/streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "cli/verb.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::cli {
namespace {

// Did the last read hit the end or an error? Uses C's stream, because std::cin keeps no error.
void check_stdin() {
  const int error = errno != 0 ? errno : EIO;
  if (!std::ferror(stdin)) return;
  throw InputError(concat("stdin cannot be read: ", std::generic_category().message(error)));
}

}  // namespace

bool read_line(std::string& line) {
  static bool is_first = true;
  line.clear();
  errno = 0;
  int c = EOF;
  while ((c = std::getc(stdin)) != EOF && c != '\n') line += static_cast<char>(c);
  if (c == EOF) check_stdin();
  if (std::exchange(is_first, false)) {
    reading([&] {
      text::check_plain(line, "stdin");
      if (c == EOF) text::check_lines(line, "stdin");
    });
    line = std::string(without_byte_order_mark(line));
  }
  if (c == EOF && line.empty()) return false;
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

std::string text_or_stdin(const std::string& text) {
  if (text != "-") return text;
  std::string all;
  std::array<char, 1 << 14> buffer;
  errno = 0;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), stdin))
    all.append(buffer.data(), got);
  check_stdin();
  reading([&] { text::check_plain(all, "stdin"); });
  return std::string(without_byte_order_mark(all));
}

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

void put_json(const Json& json, int indent) { fmt::print("{}\n", json.dump(indent)); }

std::string shell_word(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+,:@%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string one_line(std::string_view text) {
  std::string line = valid_utf8(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

}  // namespace multihead::cli
