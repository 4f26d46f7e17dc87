#include "multihead/text/corpus/table.h"

#include <algorithm>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/json.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::text {
namespace {

using Cells = std::vector<std::string>;

std::string folded(std::string_view text) { return in_lower_case(trimmed(text)); }

bool goes_by(const Column& column, std::string_view word) {
  return std::ranges::find(column.names, word) != column.names.end();
}

// Of a file whose every row has other columns the first are enough to say so.
void add_unused(Table& table, std::string_view name) {
  constexpr size_t kMost = 64;
  const bool is_new = std::ranges::find(table.unused, name) == table.unused.end();
  if (is_new && !name.empty() && table.unused.size() < kMost) table.unused.emplace_back(name);
}

// As csv writes a text with quotes: in quotes, with those within twice.
bool is_quoted(std::string_view cell) {
  if (cell.size() < 2 || cell.front() != '"' || cell.back() != '"') return false;
  cell = cell.substr(1, cell.size() - 2);
  for (size_t at = cell.find('"'); at != cell.npos; at = cell.find('"', at + 2)) {
    if (!cell.substr(at).starts_with("\"\"")) return false;
  }
  return true;
}

// Of a cell in quotes, whether there are some within; at both its ends three may be of the text, as of """a""".
bool has_doubled_quotes(std::string_view cell) {
  cell = cell.substr(1, cell.size() - 2);
  if (cell.starts_with("\"\"")) cell.remove_prefix(2);
  if (cell.ends_with("\"\"")) cell.remove_suffix(2);
  return cell.find("\"\"") != cell.npos;
}

std::string looks_quoted(const std::string& where, int64_t line) {
  return concat(where, ": line ", line, " looks quoted, and in TSV quotes belong to the text; write it with ",
                "quoting=csv.QUOTE_NONE, or as .csv");
}

Cells cells_between(std::string_view line, char separator) {
  Cells cells;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(separator, begin), line.size());
    cells.emplace_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return cells;
}

// The rows of a CSV file, one after the other.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  int64_t line() const { return line_; }
  bool at_end() const { return at_ == text_.size(); }
  bool at_quote() const { return !at_end() && text_[at_] == '"'; }
  Cells row() {
    Cells cells;
    do cells.push_back(cell());
    while (take(','));
    take('\r');
    MH_CHECK(at_end() || take('\n'), FormatError, where_, ": line ", line_,
             " has text behind a closing quote; a quote within quotes is written twice");
    ++line_;
    return cells;
  }

 private:
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string cell() {
    if (take('"')) return quoted();
    const size_t begin = at_, end = std::min(text_.find_first_of(",\n", at_), text_.size());
    at_ = end;
    const bool has_return =
        end > begin && text_[end - 1] == '\r' && (end == text_.size() || text_[end] == '\n');
    return std::string(text_.substr(begin, end - begin - (has_return ? 1 : 0)));
  }
  std::string quoted() {
    std::string cell;
    const int64_t opened = line_;
    while (true) {
      const size_t quote = text_.find('"', at_);
      MH_CHECK(quote != text_.npos, FormatError, where_, ": line ", opened, " opens a quote that never ends");
      cell += text_.substr(at_, quote - at_);
      line_ +=
          std::count(text_.begin() + static_cast<long>(at_), text_.begin() + static_cast<long>(quote), '\n');
      at_ = quote + 1;
      if (!take('"')) return cell;
      cell += '"';
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

// Puts rows of cells, of tables with and without a header, into columns.
class Columns {
 public:
  Columns(const TableLayout& layout, const std::string& where, Table& table)
      : layout_(layout), where_(where), table_(table) {}

  void add(Cells cells, int64_t line) {
    if (places_.empty()) {
      if (take_header(cells, line)) return;
      choose_places(cells, line);
    }
    const bool fits = cells.size() == width_;
    MH_CHECK(fits || header_line_ > 0 || !is_layout(cells.size()), FormatError, where_, ": line ", line,
             " has ", cells.size(), " columns, the lines before have ", width_);
    MH_CHECK(fits, FormatError, where_, ": line ", line, " must have ",
             header_line_ > 0 ? concat(width_, " columns, as the header has") : std::string(layout_.expected),
             ", got ", cells.size());
    for (size_t place = 0; place < width_; ++place) {
      if (places_[place]) table_.cells[*places_[place]].push_back(std::move(cells[place]));
    }
    table_.lines.push_back(line);
  }

 private:
  bool is_layout(size_t count) const {
    return std::ranges::any_of(layout_.headerless, [&](auto& columns) { return columns.size() == count; });
  }
  std::optional<size_t> column_called(const std::string& word) const {
    const auto found =
        std::ranges::find_if(layout_.columns, [&](const Column& column) { return goes_by(column, word); });
    if (found == layout_.columns.end()) return std::nullopt;
    return static_cast<size_t>(found - layout_.columns.begin());
  }

  // Without quotes in TSV, so that a header in quotes is seen.
  std::string name_in(std::string_view cell) const {
    const std::string name = folded(cell);
    return table_.format == TableFormat::tsv && is_quoted(name) ? name.substr(1, name.size() - 2) : name;
  }

  bool take_header(const Cells& cells, int64_t line) {
    std::vector<std::optional<size_t>> places;
    for (const std::string& cell : cells) places.push_back(column_called(name_in(cell)));
    for (size_t c = 0; c < layout_.columns.size(); ++c) {
      const auto count = std::ranges::count(places, std::optional(c));
      if (count == 0 && layout_.columns[c].required) return false;
      MH_CHECK(count <= 1, FormatError, where_, ": line ", line, ": the header names ",
               quote(layout_.columns[c].names[0]), " twice");
    }
    MH_CHECK(std::ranges::all_of(cells, [&](auto& cell) { return name_in(cell) == folded(cell); }),
             FormatError, looks_quoted(where_, line));
    for (size_t place = 0; place < places.size(); ++place) {
      if (!places[place]) add_unused(table_, cells[place]);
    }
    places_ = std::move(places), width_ = cells.size(), header_line_ = line;
    table_.has_names = true;
    return true;
  }

  // A first row that names a column where it would be is a header that lacks others.
  void choose_places(const Cells& cells, int64_t line) {
    const auto found = std::ranges::find_if(layout_.headerless,
                                            [&](auto& columns) { return columns.size() == cells.size(); });
    MH_CHECK(found != layout_.headerless.end(), FormatError, where_, ": line ", line, " must have ",
             layout_.expected, ", got ", cells.size(), "; a table with others begins with a header that has ",
             required_names());
    for (size_t place = 0; place < cells.size(); ++place) {
      const size_t column = (*found)[place];
      MH_CHECK(!goes_by(layout_.columns[column], name_in(cells[place])) || layout_.columns.size() == 1,
               FormatError, where_, ": line ", line, " looks like a header, of which a column is called ",
               quote(cells[place], 40), "; it must have ", required_names());
      places_.emplace_back(column);
    }
    width_ = cells.size();
  }

  std::string required_names() const {
    std::string names;
    for (const Column& column : layout_.columns) {
      if (column.required) names += concat(names.empty() ? "" : " and ", quote(column.names[0]));
    }
    return names;
  }

  const TableLayout& layout_;
  const std::string& where_;
  Table& table_;
  std::vector<std::optional<size_t>> places_;  // the column of the layout that each of the table's is
  size_t width_ = 0;
  int64_t header_line_ = 0;
};

std::string cell_from(const Json& value, std::string_view name, const std::string& where) {
  if (value.is_string()) return value.as_string();
  if (value.is_array() && name.starts_with("label")) {
    for (const Json& label : value.items()) {
      MH_CHECK(label.is_string() || label.is_integer(), FormatError, where,
               ": a list of labels must hold strings or integers, got ", label.dump().substr(0, 40));
    }
    return value.dump();
  }
  const bool is_plain = value.is_number() || value.is_bool(),
             takes_numbers = name.starts_with("label") || name.ends_with("score");
  MH_CHECK(is_plain && takes_numbers, FormatError, where, ": ", quote(name), " must be a string",
           takes_numbers ? " or a number" : "", ", got ", value.dump().substr(0, 40));
  return value.dump();
}

std::optional<std::string> cell_of(const Json& object, const Column& column, const std::string& where) {
  std::optional<std::string> cell;
  for (const std::string_view name : column.names) {
    const Json* value = object.find(name);
    if (value == nullptr || value->is_null()) continue;
    MH_CHECK(!cell, FormatError, where, " has ", quote(column.names[0]), " twice, once as ", quote(name));
    cell = cell_from(*value, name, where);
  }
  return cell;
}

void add_object(std::string_view line, const std::string& where, const TableLayout& layout, Table& table) {
  const Json object = Json::parse(line, where);
  MH_CHECK(object.is_object(), FormatError, where, " must be an object, such as {\"",
           layout.columns[0].names[0], "\": …}");
  const bool is_first = table.lines.empty();
  table.has_names = true;
  for (size_t c = 0; c < layout.columns.size(); ++c) {
    const Column& column = layout.columns[c];
    std::optional<std::string> cell = cell_of(object, column, where);
    MH_CHECK(cell || !column.required, FormatError, where, " has no ", quote(column.names[0]));
    MH_CHECK(is_first || cell.has_value() == table.has(c), FormatError, where, " has ", cell ? "a " : "no ",
             quote(column.names[0]), ", the lines before have ", cell ? "none" : "one");
    if (cell) table.cells[c].push_back(std::move(*cell));
  }
  for (const JsonMember& member : object.members()) {
    const auto is_its = [&](const Column& column) { return goes_by(column, member.key.view()); };
    if (!member.value.is_null() && std::ranges::none_of(layout.columns, is_its))
      add_unused(table, member.key.view());
  }
}

void add_csv(std::string_view text, Columns& columns, const std::string& where) {
  CsvReader reader(text, where);
  while (!reader.at_end()) {
    const int64_t line = reader.line();
    const bool is_quoted = reader.at_quote();  // an empty text, no blank line
    Cells cells = reader.row();
    const bool is_blank = !is_quoted && cells.size() == 1 && folded(cells[0]).empty();
    if (!is_blank) columns.add(std::move(cells), line);
  }
}

// Where each cell that holds a quote is as csv writes it, and one holds some within, csv has written the file.
void add_tsv(std::string_view text, Columns& columns, const std::string& where) {
  int64_t quoted_line = 0;
  bool has_others = false;
  each_line(text, [&](std::string_view line, int64_t number) {
    Cells cells = cells_between(line, '\t');
    for (const std::string& cell : cells) {
      if (cell.find('"') == cell.npos) continue;
      if (!is_quoted(cell)) {
        has_others = true;
      } else if (quoted_line == 0 && has_doubled_quotes(cell)) {
        quoted_line = number;
      }
    }
    columns.add(std::move(cells), number);
  });
  MH_CHECK(quoted_line == 0 || has_others, FormatError, looks_quoted(where, quoted_line));
}

// Texts may all be quotations, labels are not.
void check_labels(const Table& table, const TableLayout& layout, const std::string& where) {
  for (size_t c = 0; c < layout.columns.size(); ++c) {
    MH_CHECK(!goes_by(layout.columns[c], "label") || !table.has(c) ||
                 !std::ranges::all_of(table.cells[c], is_quoted),
             FormatError, looks_quoted(where, table.lines[0]));
  }
}

// pandas writes the numbers of the rows unless told otherwise, below an empty name; they would be read as texts.
void check_index(const Table& table, const std::string& where) {
  const auto width = std::ranges::count_if(table.cells, [](const Cells& cells) { return !cells.empty(); });
  if (table.has_names || width != 3) return;
  const Cells& first = table.cells[0];
  const size_t names = first[0].empty() ? 1 : 0;
  size_t row = names;
  while (row < first.size() && first[row] == std::to_string(row - names)) ++row;
  MH_CHECK(
      row < first.size() || row < names + 2, FormatError, where,
      ": the first column counts the rows, as pandas' index does; write the file with index=False, or name "
      "the columns in a header");
}

// A TAB in a text was meant as something else unless the format was named.
void add_lines(std::string_view text, Table& table, const std::string& where, bool may_have_tabs) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    MH_CHECK(may_have_tabs || line.find('\t') == line.npos, FormatError, where, ": line ", number + 1,
             " has a TAB: give --format tsv if it is between columns, --format text if it belongs ",
             "to the text");
    table.cells[0].emplace_back(line);
    table.lines.push_back(++number);
  }
}

std::string ending_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == path.npos || path.find('/', dot) != path.npos ? "" : folded(path.substr(dot + 1));
}

}  // namespace

TableFormat format_of(std::string_view path, TableFormat given, TableFormat otherwise) {
  if (given != TableFormat::by_name) return given;
  const std::string ending = ending_of(path);
  if (ending == "tsv" || ending == "tab") return TableFormat::tsv;
  if (ending == "csv") return TableFormat::csv;
  if (ending == "jsonl" || ending == "ndjson") return TableFormat::jsonl;
  MH_CHECK(
      ending != "json", FormatError, path,
      ": a table in JSON has an object per line; if this one has, call it .jsonl or give --format jsonl");
  return otherwise;
}

Table parse_table(std::string_view text, const std::string& where, const TableLayout& layout,
                  TableFormat format) {
  Table table;
  table.cells.resize(layout.columns.size());
  Columns columns(layout, where, table);
  const TableFormat known = table.format = format_of(where, format, layout.otherwise);
  if (known == TableFormat::lines) {
    const std::vector<size_t> alone = {0};
    MH_CHECK(std::ranges::find(layout.headerless, alone) != layout.headerless.end(), FormatError, where,
             ": with --format text a line is one text, and these data have ", layout.expected);
    add_lines(text, table, where, format == TableFormat::lines);
  } else if (known == TableFormat::csv) {
    add_csv(text, columns, where);
  } else if (known == TableFormat::tsv) {
    add_tsv(text, columns, where);
    check_labels(table, layout, where);
  } else {
    each_line(text, [&](std::string_view line, int64_t number) {
      add_object(line, concat(where, ": line ", number), layout, table);
      table.lines.push_back(number);
    });
  }
  MH_CHECK(known == TableFormat::lines || !table.lines.empty(), FormatError, where, ": the file has no rows");
  check_index(table, where);
  return table;
}

Table read_table(const std::string& path, const TableLayout& layout, TableFormat format) {
  format_of(path, format, layout.otherwise);  // refuses a name before its content
  return parse_table(read_text(path, {.in_lines = true}), path, layout, format);
}

std::string shared_rows(const std::vector<std::vector<std::string>>& training,
                        const std::vector<std::vector<std::string>>& validation) {
  const auto row_of = [](const std::vector<std::vector<std::string>>& columns, size_t row) {
    std::string joined;
    for (const std::vector<std::string>& column : columns) {
      if (!column.empty()) joined += column[row] + '\0';
    }
    return joined;
  };
  std::set<std::string> known;
  for (size_t row = 0; row < training.at(0).size(); ++row) known.insert(row_of(training, row));
  int64_t shared = 0;
  std::string first;
  for (size_t row = 0; row < validation.at(0).size(); ++row) {
    if (!known.contains(row_of(validation, row))) continue;
    if (shared++ == 0) first = validation[0][row];
  }
  if (shared == 0) return "";
  return concat(shared, " of ", validation.at(0).size(),
                " validation texts are training texts, too, so that scores are too good; the first is ",
                quote(first, 80));
}

}  // namespace multihead::text
