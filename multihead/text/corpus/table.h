// Tables of texts: lines, TSV, CSV and JSON Lines. One reader for everything that takes texts in columns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/text/enum_words.h"

namespace multihead::text {

/// `lines`: a text per line. `tsv`: columns between TABs; quotes belong to the text, and a file that csv has quoted is
/// refused. `csv`: RFC 4180; texts in quotes may
/// hold line breaks. `jsonl`: an object per line. `by_name`: as the file's name ends.
enum class TableFormat { by_name, lines, tsv, csv, jsonl };
constexpr auto enum_words(TableFormat) {
  return std::to_array<std::string_view>({"auto", "text", "tsv", "csv", "jsonl"});
}

/// A column that a table can have: its name, with other names that it goes by.
struct Column {
  std::vector<std::string_view> names;
  bool required = true;
};

/// The columns of a kind of data.
struct TableLayout {
  std::vector<Column> columns;
  /// Which columns a table without a header has, by their number: {{0, 2}, {0, 1, 2}}.
  std::vector<std::vector<size_t>> headerless;
  const char* expected;  ///< "two columns, text TAB label, or …", for messages
  /// The format of files whose name does not tell.
  TableFormat otherwise = TableFormat::tsv;
};

struct Table {
  /// cells[c][row] is of column c of the layout; empty if the table lacks that column.
  std::vector<std::vector<std::string>> cells;
  std::vector<int64_t> lines;  ///< where each row begins, from 1
  TableFormat format = TableFormat::tsv;
  bool has_names = false;                ///< of its columns: a header, or JSON
  std::vector<std::string> unused = {};  ///< columns with names that the layout does not have; the first 64
  bool has(size_t column) const { return !cells[column].empty(); }
  int64_t rows() const { return static_cast<int64_t>(lines.size()); }
};

/// The format of a file of this name, `otherwise` if the name does not tell. Throws FormatError for .json,
/// which may be either.
TableFormat format_of(std::string_view path, TableFormat given, TableFormat otherwise);

/// Reads a table. Its first row is a header if it names all required columns; other columns are listed as unused.
/// Rows that are blank, not in quotes, are skipped, but in `lines`, where they are texts. JSON's null is an absent cell, and
/// numbers, booleans and lists of labels (strings or integers) are read as they are written. All rows have the same columns, of three
/// without a header the first does not count the rows. Throws what read_text
/// throws; FormatError naming the line.
Table read_table(const std::string& path, const TableLayout& layout,
                 TableFormat format = TableFormat::by_name);
/// The same from a text that comes from `where`.
Table parse_table(std::string_view text, const std::string& where, const TableLayout& layout,
                  TableFormat format);

/// How many texts of `validation` stand in `training`, too, and a sentence that says so; empty if none does.
std::string shared_rows(const std::vector<std::vector<std::string>>& training,
                        const std::vector<std::vector<std::string>>& validation);

}  // namespace multihead::text
