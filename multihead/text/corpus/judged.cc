#include "multihead/text/corpus/judged.h"

#include <cmath>
#include <optional>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/core/text/utf8.h"

namespace multihead::text {

JudgedPairs read_judged(const std::string& path, TableFormat format) {
  static const TableLayout layout = {
      .columns = {{{"query", "source", "anchor", "sentence1", "text"}},
                  {{"document", "target", "positive", "sentence2", "text_pair"}},
                  {{"score", "similarity_score", "label"}, false},
                  {{"negative"}, false}},
      .headerless = {{0, 1}, {0, 1, 2}},
      .expected = "two columns, query and document, or three, with a score or a negative document"};
  Table table = read_table(path, layout, format);
  if (!table.has_names && table.has(2) && !spelled_number<double>(table.cells[2][0]))
    std::swap(table.cells[2], table.cells[3]);
  MH_CHECK(!table.has(2) || !table.has(3), FormatError, path,
           ": the rows have a score and a negative document; a score is of one document");
  for (const std::string& name : table.unused) {
    const std::string folded = in_lower_case(trimmed(name));
    const bool is_negative =
        folded.starts_with("negative") && folded.find_first_not_of("_0123456789", 8) == folded.npos;
    MH_CHECK(!is_negative, FormatError, path, ": column ", quote(name, 40),
             ": a row has one negative document, which is called \"negative\"; give a row for each");
  }
  JudgedPairs pairs;
  for (size_t row = 0; row < table.lines.size(); ++row) {
    const std::string where = concat(path, ": line ", table.lines[row]);
    for (const size_t column : {0, 1, 3}) {
      MH_CHECK(!table.has(column) || !table.cells[column][row].empty(), FormatError, where,
               " has an empty column");
    }
    if (!table.has(2)) continue;
    const std::optional<double> score = spelled_number<double>(table.cells[2][row]);
    MH_CHECK(score && std::isfinite(*score), FormatError, where, ": the score must be a number, got ",
             quote(table.cells[2][row], 40));
    pairs.scores.push_back(*score);
  }
  pairs.queries = std::move(table.cells[0]), pairs.documents = std::move(table.cells[1]);
  pairs.negatives = std::move(table.cells[3]), pairs.lines = std::move(table.lines);
  pairs.unused = std::move(table.unused);
  return pairs;
}

}  // namespace multihead::text
