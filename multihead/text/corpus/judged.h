// Pairs of texts that belong together, or that are judged, for embedders and rerankers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/text/corpus/table.h"

namespace multihead::text {

/// queries[i] and documents[i] belong together, and negatives[i] does not belong to the query; or scores[i] says how
/// well they do.
struct JudgedPairs {
  std::vector<std::string> queries, documents;
  std::vector<std::string> negatives = {};  ///< empty: none
  std::vector<double> scores = {};          ///< empty: none
  std::vector<int64_t> lines = {};          ///< of the file
  std::vector<std::string> unused = {};     ///< columns of the file that are not read
};

/// A table with the columns "query" and "document", and "negative" or "score" (table.h); without a header a third
/// column holds scores if its first row is a number, else negatives. Throws what read_table throws; FormatError
/// naming the line with an empty cell or a score that is no finite number, or further negatives ("negative_1").
JudgedPairs read_judged(const std::string& path, TableFormat format = TableFormat::by_name);

}  // namespace multihead::text
