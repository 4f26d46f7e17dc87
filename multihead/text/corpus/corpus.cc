#include "multihead/text/corpus/corpus.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/files.h"

namespace multihead::text {
namespace {

/// "offset 17 (line 3)".
std::string place(std::string_view text, size_t offset) {
  return concat("offset ", offset, " (line ", 1 + std::count(text.begin(), text.begin() + offset, '\n'), ")");
}

// What a file that is not text begins with, and how it becomes text.
struct Packed {
  std::string_view magic, name, command;
};
constexpr auto kPacked =
    std::to_array<Packed>({{"\xFF\xFE", "UTF-16", "iconv -f UTF-16 -t UTF-8"},
                           {"\xFE\xFF", "UTF-16", "iconv -f UTF-16 -t UTF-8"},
                           {"\x1F\x8B", "compressed (gzip)", "gunzip"},
                           {"PK\x03\x04", "a ZIP archive", "unzip"},
                           {"\xFD"
                            "7zXZ",
                            "compressed (xz)", "unxz"},
                           {"\x28\xB5\x2F\xFD", "compressed (Zstandard)", "unzstd"},
                           {"BZh91AY&SY", "compressed (bzip2)", "bunzip2"},
                           {"PAR1\x15", "a Parquet file", "pandas.read_parquet(...).to_csv(...)"}});

size_t character_start(std::string_view text, size_t at) {
  for (size_t back = 0; back < 4 && back <= at && at < text.size(); ++back)
    if ((text[at - back] & 0xC0) != 0x80) return at - back;
  return at;  // not UTF-8 here: no character to keep whole
}

}  // namespace

void check_plain(std::string_view text, const std::string& where) {
  for (const Packed& kind : kPacked) {
    MH_CHECK(!text.starts_with(kind.magic), FormatError, where, ": this is ", kind.name,
             "; make it plain text in UTF-8 first (", kind.command, ")");
  }
}

void check_lines(std::string_view text, const std::string& where) {
  MH_CHECK(text.find('\n') != text.npos || text.empty() || text.find('\r') >= text.size() - 1, FormatError,
           where, ": its lines end in CR alone; make that LF first (tr '\\r' '\\n')");
}

std::string read_text(const std::string& path, const ReadOptions& options) {
  std::string text = read_file(path, UINT64_MAX);
  MH_CHECK(!text.empty(), FormatError, path, ": the file is empty");
  check_plain(text, path);
  if (const size_t nul = text.find('\0'); nul != text.npos)
    throw FormatError(concat(path, ": this is not text: NUL byte at ", place(text, nul)));
  if (options.require_utf8) {
    if (const size_t bad = find_invalid_utf8(text); bad != text.npos)
      throw FormatError(concat(path, ": not valid UTF-8: byte ", quote(std::string_view(text).substr(bad, 1)),
                               " at ", place(text, bad)));
  }
  if (options.in_lines) check_lines(text, path);
  text.erase(0, text.size() - without_byte_order_mark(text).size());
  MH_CHECK(!text.empty(), FormatError, path, ": the file is empty except for a byte order mark");
  return text;
}

std::string read_corpus(const std::string& path) {
  const TableFormat format = format_of(path, TableFormat::by_name, TableFormat::lines);
  MH_CHECK(format != TableFormat::csv && format != TableFormat::jsonl, FormatError, path,
           ": this is a table by its name (", word_of(format),
           "), expected plain text; rename it to .txt to read it as it stands");
  return read_text(path);
}

void each_line(std::string_view text, FunctionRef<void(std::string_view line, int64_t number)> row) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1, ++number;
    if (line.find_first_not_of(' ') != line.npos) row(line, number);
  }
}

ParallelText read_pairs(const std::string& path, TableFormat format) {
  static const TableLayout layout = {.columns = {{{"source", "query", "anchor", "sentence1"}},
                                                 {{"target", "document", "positive", "sentence2"}}},
                                     .headerless = {{0, 1}},
                                     .expected = "two columns, source and target"};
  Table table = read_table(path, layout, format);
  for (size_t row = 0; row < table.lines.size(); ++row) {
    MH_CHECK(!table.cells[0][row].empty() && !table.cells[1][row].empty(), FormatError, path, ": line ",
             table.lines[row], " has an empty column");
  }
  return {std::move(table.cells[0]), std::move(table.cells[1]), std::move(table.unused)};
}

TextSplit split_corpus(std::string_view text, const SplitOptions& options) {
  MH_CHECK(options.validation > 0 && options.validation < 1, ValueError,
           "split_corpus: validation must be a share in (0, 1), got ", options.validation);
  MH_CHECK(options.blocks >= 1, ValueError, "split_corpus: blocks must be >= 1, got ", options.blocks);
  TextSplit split;
  const auto size = static_cast<double>(text.size()), blocks = static_cast<double>(options.blocks);
  const auto cut = [&](double position) {
    return character_start(text, std::min(text.size(), static_cast<size_t>(std::llround(position))));
  };
  for (int64_t i = 0; i < options.blocks; ++i) {
    const auto block = static_cast<double>(i);
    const size_t begin = cut(size * block / blocks);
    const size_t middle = cut(size * (block + 1 - options.validation) / blocks);
    const size_t end = cut(size * (block + 1) / blocks);
    MH_CHECK(begin < middle && middle < end, ValueError, "split_corpus: a text of ", text.size(),
             " bytes is too short for ", options.blocks, " blocks with a validation share of ",
             options.validation);
    split.train.push_back(text.substr(begin, middle - begin));
    split.validation.push_back(text.substr(middle, end - middle));
  }
  return split;
}

std::vector<int32_t> encode_all(const Tokenizer& tokenizer, std::span<const std::string_view> texts) {
  std::vector<int32_t> all;
  for (std::string_view text : texts) {
    std::vector<int32_t> ids = tokenizer.encode(text, {.add_template = false});
    if (all.empty()) {
      all = std::move(ids);
    } else {
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  return all;
}

TextPieces::TextPieces(const std::string& path, const Tokenizer& tokenizer, uint64_t size)
    : file_(path), tokenizer_(tokenizer), size_(size) {
  std::string first(std::min<uint64_t>(3, file_.size()), '\0');
  file_.read(0, first.data(), first.size());
  first_ = first.size() - without_byte_order_mark(first).size();
  if (file_.size() == first_ || first.starts_with("\xFF\xFE") || first.starts_with("\xFE\xFF"))
    read_text(path);  // says what is wrong
}

int64_t TextPieces::count() const { return static_cast<int64_t>((file_.size() + size_ - 1) / size_); }

// The first place from `at` on where the text can be cut; its end if there is none.
uint64_t TextPieces::cut(uint64_t at) {
  if (at <= first_) return first_;
  if (at >= searched_.begin && at <= searched_.end) return searched_.end;
  const auto found_in = [&](uint64_t from, uint64_t end) {
    std::string text(end - from + 1, '\0');  // and the byte before
    file_.read(from - 1, text.data(), text.size());
    const size_t place = tokenizer_.safe_cut(text, 1);
    return place < text.size() ? from - 1 + place : end;
  };
  uint64_t place = std::min(at, file_.size());
  for (uint64_t step = 1 << 12; place < file_.size(); step *= 8) {
    const uint64_t end = std::min(place + step, file_.size()), found = found_in(place, end);
    place = found;
    if (found < end) break;
  }
  searched_ = {at, place};
  return place;
}

TextPieces::Range TextPieces::range(int64_t piece) {
  const auto at = static_cast<uint64_t>(piece) * size_;
  const uint64_t begin = cut(at);
  return {begin, cut(std::min(at + size_, file_.size()))};
}

std::string TextPieces::read(const Range& range) const {
  std::string text(range.end - range.begin, '\0');
  file_.read(range.begin, text.data(), text.size());
  if (text.find('\0') != text.npos || find_invalid_utf8(text) != text.npos) {
    read_text(file_.path());  // says where
    throw FormatError(concat(file_.path(), ": the file is being modified"));
  }
  return text;
}

}  // namespace multihead::text
