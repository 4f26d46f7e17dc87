#include "multihead/kernels/elementwise/embedding.h"

#include <gtest/gtest.h>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::normal_floats;
using testing::Outputs;
using testing::poisoned;
using testing::poisoned64;
using testing::widened;

TEST(EmbeddingTest, GathersBytes) {
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{12}, size_t{64}, size_t{1000}}) {
    std::vector<uint8_t> table(7 * bytes), out(5 * bytes, 0xEE);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(i * 31 + i / bytes);
    const std::vector<int64_t> ids = {3, 0, 6, 6, 2};
    gather_rows(table.data(), ids.data(), out.data(), 5, bytes);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i], table[static_cast<size_t>(ids[i / bytes]) * bytes + i % bytes]);
    }
  }
}

TEST(EmbeddingTest, ScatterAddsInOrder) {
  for (const auto& [count, rows, size] :
       {std::array<int64_t, 3>{0, 3, 5}, {7, 1, 1}, {31, 5, 16}, {1009, 65, 37}, {503, 11, 131}}) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(i * i * 7919 % rows);
    const std::vector<float> dy = normal_floats(count * size, 1);
    auto d64 = poisoned64(rows * size);
    const ScatterArgs args{ids.data(), count, rows, size};
    scatter_add_rows(widened(dy).data(), d64.data(), args);
    // The same sums as a plain loop over ids, to the bit.
    std::vector<float> plain(static_cast<size_t>(rows * size), 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < size; ++j) {
        plain[static_cast<size_t>(ids[static_cast<size_t>(i)] * size + j)] +=
            dy[static_cast<size_t>(i * size + j)];
      }
    }
    check_everywhere(
        [&, rows = rows, size = size] {
          auto d = poisoned(rows * size);
          scatter_add_rows(dy.data(), d.data(), args);
          EXPECT_EQ(d, plain);
          return Outputs{d};
        },
        {d64}, {1e-4, 1e-5});
  }
}

}  // namespace
}  // namespace multihead::kernels
