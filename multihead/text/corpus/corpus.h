// Training text: reading, splitting, encoding into a token file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/text/corpus/table.h"
#include "multihead/text/corpus/token_file.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {

struct ReadOptions {
  /// Byte-level BPE accepts any bytes, so the file need not be UTF-8.
  bool require_utf8 = true;
  /// Its lines have a meaning: they may not end in CR alone, which each_line() would read as one.
  bool in_lines = false;
};

/// Throws FormatError for what begins as UTF-16, an archive or a compressed file does, with the command that makes it
/// text.
void check_plain(std::string_view text, const std::string& where);
/// Throws FormatError for a text of several lines that end in CR alone.
void check_lines(std::string_view text, const std::string& where);

/// The text of a file, without a UTF-8 byte order mark.
/// Throws: IoError (missing, a directory, unreadable); FormatError (empty, compressed, NUL bytes, UTF-16, not
/// UTF-8: with the offset and line).
std::string read_text(const std::string& path, const ReadOptions& options = {});

/// read_text() of a file that is not a table by its name. Throws FormatError for one that is: its quotes,
/// braces and names would be taken for text.
std::string read_corpus(const std::string& path);

/// Sentence pairs, source[i] with target[i].
struct ParallelText {
  std::vector<std::string> source, target;
  std::vector<std::string> unused = {};  ///< columns of the file that are not read
};

/// Calls row(line, number) for every line of a text but blank ones, which editors leave behind; without the
/// line's end, LF or CR LF. Numbers count from 1, blank lines too.
void each_line(std::string_view text, FunctionRef<void(std::string_view line, int64_t number)> row);

/// A table of two columns, neither empty: "source" and "target", which are also called "query" and "document"
/// (or "anchor" and "positive"). Throws what read_table throws; FormatError naming the line with an empty cell.
ParallelText read_pairs(const std::string& path, TableFormat format = TableFormat::by_name);

struct SplitOptions {
  double validation = 0.1;  // share of the text, in (0, 1)
  /// 1: the last part of the text. n: the text is cut into n equal blocks and the last part of each is held
  /// out, for corpora whose end differs from their beginning.
  int64_t blocks = 1;
};

struct TextSplit {
  std::vector<std::string_view> train, validation;  // views of the text, in its order
};

/// Splits into contiguous blocks, never by line: neighbouring lines leak into each other. Cuts fall between
/// characters. Throws ValueError if the options are out of range or a side would be empty.
TextSplit split_corpus(std::string_view text, const SplitOptions& options = {});

/// encode() of several pieces, concatenated.
std::vector<int32_t> encode_all(const Tokenizer& tokenizer, std::span<const std::string_view> texts);

/// A text file in pieces of about `size` bytes that can be encoded one by one: their ids, one behind the
/// other, are those of the whole without template (Tokenizer::safe_cut). For texts larger than memory.
class TextPieces {
 public:
  struct Range {
    uint64_t begin = 0, end = 0;
  };
  /// `tokenizer` outlives the pieces. Throws as read_text(), but for the content of the text.
  TextPieces(const std::string& path, const Tokenizer& tokenizer, uint64_t size = uint64_t{1} << 22);

  int64_t count() const;
  /// Where a piece lies in the file; it may be empty. Ask in ascending order.
  Range range(int64_t piece);
  /// The text there, from any thread. Throws as read_text().
  std::string read(const Range& range) const;

 private:
  uint64_t cut(uint64_t at);

  FileReader file_;
  const Tokenizer& tokenizer_;
  uint64_t size_, first_ = 0;
  Range searched_;  // nothing can be cut in there before its end
};

/// Marks a padded target; ignored by cross-entropy.
inline constexpr int32_t kIgnoreTarget = -100;

}  // namespace multihead::text
