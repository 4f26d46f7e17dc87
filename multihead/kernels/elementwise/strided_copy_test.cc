#include "multihead/kernels/elementwise/strided_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace multihead::kernels {
namespace {

template <class T>
void check_copy() {
  const int64_t rows = 131, columns = 67;
  std::vector<T> from(static_cast<size_t>(rows * columns)), to(from.size(), T{0});
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i * 2654435761u);
  strided_copy(from.data(), to.data(), {{columns, rows}, {1, columns}, {rows, 1}, sizeof(T)});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      ASSERT_EQ(to[static_cast<size_t>(j * rows + i)], from[static_cast<size_t>(i * columns + j)]);
    }
  }
}

TEST(StridedCopyTest, EveryWidth) {
  check_copy<uint8_t>();
  check_copy<uint16_t>();
  check_copy<uint32_t>();
  check_copy<uint64_t>();
}

}  // namespace
}  // namespace multihead::kernels
