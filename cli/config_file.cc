#include "cli/config_file.h"

#include <algorithm>
#include <charconv>

#include "cli/verb.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::cli {
namespace {

constexpr std::string_view kBlank = " \t\r", kEndsValue = " \t\r,[]#\"'", kEndsName = " \t\r,[]#\"'=";

class LineReader {
 public:
  LineReader(std::string_view text, int64_t line) : text_(text), line_(line) {}

  bool at_end() {
    at_ = std::min(text_.find_first_not_of(kBlank, at_), text_.size());
    return at_ == text_.size() || text_[at_] == '#';
  }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string word(std::string_view ends = kEndsValue) {
    if (at_end()) refuse("expected a value");
    if (take('"')) return quoted();
    if (take('\'')) return literal();
    const size_t end = std::min(text_.find_first_of(ends, at_), text_.size());
    if (end == at_) refuse(concat("expected a word or a text in quotes, got ", quote(text_.substr(at_, 1))));
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end;
    return std::string(found);
  }
  std::vector<std::string> values() {
    if (!take('[')) return {word()};
    std::vector<std::string> all;
    while (!take(']')) {
      all.push_back(word());
      if (!take(',') && (at_end() || text_[at_] != ']')) refuse("expected , or ] behind a value of a list");
    }
    if (all.empty()) refuse("expected a value");
    return all;
  }
  void end() {
    if (!at_end()) refuse(concat("expected its end, got ", quote(text_.substr(at_), 32)));
  }
  [[noreturn]] void refuse(const std::string& why) const { refuse_setting(line_, text_, why); }

 private:
  std::string literal() {
    const size_t end = text_.find('\'', at_);
    if (end == text_.npos) refuse("a quote is never closed");
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end + 1;
    return std::string(found);
  }
  std::string quoted() {
    std::string found;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      found += c == '\\' ? escaped() : std::string(1, c);
    }
    if (at_ == text_.size()) refuse("a quote is never closed");
    ++at_;
    return found;
  }
  std::string escaped() {
    constexpr std::string_view kNames = "btnfr\"\\", kMeanings = "\b\t\n\f\r\"\\";
    const char name = at_ < text_.size() ? text_[at_++] : ' ';
    if (const size_t known = kNames.find(name); known != kNames.npos) return {kMeanings[known]};
    if (name != 'u' && name != 'U')
      refuse(concat("unknown escape ", quote(std::string{'\\', name}),
                    R"(; known are \b \t \n \f \r \" \\ \uXXXX \UXXXXXXXX, and texts in '' have none)"));
    const size_t digits = name == 'u' ? 4 : 8;
    const std::string_view hex = text_.substr(at_, digits);
    uint32_t code = 0;
    const auto [stop, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    if (hex.size() < digits || error != std::errc() || stop != hex.data() + digits || code > 0x10FFFF ||
        is_surrogate)
      refuse(concat("\\", std::string(1, name), " needs ", digits, " hexadecimal digits of a character, got ",
                    quote(hex)));
    at_ += digits;
    std::string character;
    text::append_utf8(static_cast<int32_t>(code), character);
    return character;
  }

  std::string_view text_;
  int64_t line_;
  size_t at_ = 0;
};

}  // namespace

void refuse_setting(int64_t line, std::string_view content, const std::string& why) {
  throw UsageError(concat("--config: line ", line, ": wrong setting ", quote(content, 32), ": ", why));
}

std::vector<Setting> parse_settings(std::string_view text) {
  text = without_byte_order_mark(text);
  std::vector<Setting> all;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    LineReader reader(line, ++number);
    if (reader.at_end() || reader.take(';')) continue;
    if (reader.take('[')) reader.refuse("sections are not read; write the settings without them");
    Setting setting = {.name = reader.word(kEndsName), .values = {"true"}, .line = number};
    if (reader.take('=')) setting.values = reader.values();
    reader.end();
    const auto before = std::ranges::find(all, setting.name, &Setting::name);
    if (before != all.end()) reader.refuse(concat("line ", before->line, " sets it too"));
    all.push_back(std::move(setting));
  }
  return all;
}

}  // namespace multihead::cli
