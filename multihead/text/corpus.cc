#include "multihead/text/corpus.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

constexpr size_t kChunk = size_t{1} << 24;

/// "offset 17 (line 3)".
std::string place(std::string_view text, size_t offset) {
  return concat("offset ", offset, " (line ", 1 + std::count(text.begin(), text.begin() + offset, '\n'), ")");
}

size_t character_start(std::string_view text, size_t at) {
  for (size_t back = 0; back < 4 && back <= at && at < text.size(); ++back)
    if ((text[at - back] & 0xC0) != 0x80) return at - back;
  return at;  // not UTF-8 here: no character to keep whole
}

}  // namespace

std::string read_text(const std::filesystem::path& path, const ReadOptions& options) {
  std::string text = read_file(path.string(), UINT64_MAX);
  const std::string name = path.string();
  MH_CHECK(!text.empty(), FormatError, name, ": the file is empty");
  MH_CHECK(!text.starts_with("\xFF\xFE") && !text.starts_with("\xFE\xFF"), FormatError, name,
           ": this is UTF-16; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)");
  if (const size_t nul = text.find('\0'); nul != text.npos)
    throw FormatError(concat(name, ": this is not text: NUL byte at ", place(text, nul)));
  if (options.require_utf8) {
    if (const size_t bad = find_invalid_utf8(text); bad != text.npos)
      throw FormatError(concat(name, ": not valid UTF-8: byte ", quote(std::string_view(text).substr(bad, 1)),
                               " at ", place(text, bad)));
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.erase(0, 3);
    MH_CHECK(!text.empty(), FormatError, name, ": the file is empty except for a byte order mark");
  }
  return text;
}

ParallelText read_pairs(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  ParallelText pairs;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++line_number;
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    MH_CHECK(tabs == 1, FormatError, path.string(), ": line ", line_number,
             " must have two columns, source TAB target, got ", line.empty() ? 0 : tabs + 1);
    const size_t tab = line.find('\t');
    MH_CHECK(tab > 0 && tab + 1 < line.size(), FormatError, path.string(), ": line ", line_number,
             " has an empty column");
    pairs.source.emplace_back(line.substr(0, tab));
    pairs.target.emplace_back(line.substr(tab + 1));
    begin = end + 1;
  }
  return pairs;
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

int64_t write_tokens(const std::filesystem::path& path, std::string_view text, const Tokenizer& tokenizer) {
  MH_CHECK(!text.empty(), ValueError, "write_tokens: text must not be empty");
  TokenFileWriter writer(path, tokenizer.vocab_size(), tokenizer.fingerprint());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.size() - begin <= kChunk ? text.size() : tokenizer.safe_cut(text, begin + kChunk);
    writer.append(tokenizer.encode(text.substr(begin, end - begin), {.add_template = false}));
    begin = end;
  }
  return writer.finish();
}

}  // namespace multihead::text
