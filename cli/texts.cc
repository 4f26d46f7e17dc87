#include "cli/texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/streams.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::cli {

void declare_format(Flags& flags, text::TableFormat& format) {
  flags.add({.name = "format",
             .value = "NAME",
             .help = "format of the data (auto: by the file's name)",
             .initial = std::string(word_of(format)),
             .choices = word_list<text::TableFormat>(),
             .set = [&format](std::string_view word) {
               const auto found = value_of<text::TableFormat>(word);
               if (!found) {
                 throw UsageError(fmt::format("--format must be one of {}; got {}",
                                              fmt::join(word_list<text::TableFormat>(), ", "), quote(word)));
               }
               format = *found;
             }});
}

text::LabelledTexts texts_of(const std::string& data, text::TableFormat format) {
  using enum text::TableFormat;
  return reading([&] {
    const std::string name = data == "-" ? "stdin" : data;
    if (data != "-" && text::format_of(name, format, lines) != lines) return text::read_texts(data, format);
    // Lines may hold any bytes that are not another format's.
    const std::string content = data == "-" ? text_or_stdin("-") : read_file(data);
    text::check_plain(content, name);
    text::check_lines(content, name);
    return text::parse_texts(without_byte_order_mark(content), name, format);
  });
}

text::LabelledTexts single_texts_of(const std::string& data, text::TableFormat format) {
  text::LabelledTexts all = texts_of(data, format);
  if (!all.seconds.empty())
    throw InputError(concat(data, ": it holds pairs of texts, expected single texts"));
  return all;
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
