// Rows of a data set: which of them a batch has, which an evaluation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/train/parallel/sharing.h"

namespace multihead::train {

/// The `size` rows of the index-th batch of a run over `count`. Every epoch visits all of them in an order of
/// its own; a function of the arguments only.
std::vector<int64_t> batch_rows(int64_t index, int64_t size, int64_t count, uint64_t seed);
/// `wanted` of `count` rows, evenly spread; 0: all.
std::vector<int64_t> spread_rows(int64_t count, int64_t wanted);
/// measure_batches() over `rows`, `size` at a time.
std::vector<double> measure_rows(
    const Sharing& sharing, const std::vector<int64_t>& rows, int64_t size, int64_t width,
    FunctionRef<void(const std::vector<int64_t>& batch, std::span<double> numbers)> measure);
/// The checksum of a file with these columns, TAB between them; empty columns are left out.
uint64_t checksum_of_columns(const std::vector<std::vector<std::string>>& columns);

/// Of the data of a run, which is resumed with the same. 0: none.
struct DataSums {
  uint64_t training = 0, validation = 0;
};
/// Numbers as a column of texts.
template <class T>
std::vector<std::string> column_of(const std::vector<T>& numbers) {
  std::vector<std::string> texts;
  for (const T number : numbers) texts.push_back(concat(number));
  return texts;
}
/// Of the texts in columns.
inline DataSums sums_of_columns(const std::vector<std::vector<std::string>>& training,
                                const std::vector<std::vector<std::string>>& validation) {
  return {checksum_of_columns(training), validation[0].empty() ? 0 : checksum_of_columns(validation)};
}

}  // namespace multihead::train
