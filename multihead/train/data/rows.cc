#include "multihead/train/data/rows.h"

#include <algorithm>

#include "multihead/core/checksum.h"
#include "multihead/train/data/windows.h"

namespace multihead::train {

std::vector<int64_t> batch_rows(int64_t index, int64_t size, int64_t count, uint64_t seed) {
  std::vector<int64_t> rows;
  for (int64_t at = index * size; at < (index + 1) * size; ++at) {
    rows.push_back(permuted(at % count, count, seed, static_cast<uint64_t>(at / count)));
  }
  return rows;
}

std::vector<int64_t> spread_rows(int64_t count, int64_t wanted) {
  if (wanted == 0 || wanted > count) wanted = count;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < wanted; ++i) rows.push_back(i * count / wanted);
  return rows;
}

std::vector<double> measure_rows(
    const Sharing& sharing, const std::vector<int64_t>& rows, int64_t size, int64_t width,
    FunctionRef<void(const std::vector<int64_t>& batch, std::span<double> numbers)> measure) {
  const int64_t count = std::ssize(rows);
  return measure_batches(
      sharing, (count + size - 1) / size, width, [&](int64_t i, std::span<double> numbers) {
        measure({rows.begin() + i * size, rows.begin() + std::min((i + 1) * size, count)}, numbers);
      });
}

uint64_t checksum_of_columns(const std::vector<std::vector<std::string>>& columns) {
  std::string joined;
  for (size_t row = 0; row < columns.at(0).size(); ++row) {
    const size_t begin = joined.size();
    for (const std::vector<std::string>& column : columns) {
      if (!column.empty()) joined += (joined.size() == begin ? "" : "\t") + column[row];
    }
    joined += "\n";
  }
  return checksum(joined);
}

}  // namespace multihead::train
