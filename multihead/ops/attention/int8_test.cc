#include "multihead/ops/attention/int8.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/testing/matchers.h"
#include "multihead/testing/tensors.h"

namespace multihead {
namespace {

using testing::normal;

TEST(AttentionInt8Test, ItIsAttentionToTheNumbersBitForBit) {
  for (const auto layout : {Layout::bhtd, Layout::bthd}) {
    const bool swapped = layout == Layout::bthd;
    const auto shape = [&](int64_t heads, int64_t tokens, int64_t dim) {
      return swapped ? Shape{2, tokens, heads, dim} : Shape{2, heads, tokens, dim};
    };
    const Tensor q = normal(shape(6, 5, 16), 1), k = to_int8_rows(normal(shape(2, 300, 16), 2)),
                 v = to_int8_rows(normal(shape(2, 300, 28), 3));
    AttentionCapture a, b;
    AttentionOptions options = {.mask = causal(), .softcap = 20, .layout = layout, .capture = &a};
    const Tensor got = attention_int8(q, k, v, options);
    options.capture = &b;
    const Tensor want = attention(q, from_int8_rows(k), from_int8_rows(v), options);
    EXPECT_EQ(got.to_vector<float>(), want.to_vector<float>());
    EXPECT_EQ(a.weights.to_vector<float>(), b.weights.to_vector<float>());
  }
}

TEST(AttentionInt8Test, RowsAreWithinHalfAStepAndErrorsAreNamed) {
  const Tensor x = normal({3, 7, 12}, 4), back = from_int8_rows(to_int8_rows(x));
  const auto a = x.to_vector<float>(), b = back.to_vector<float>();
  for (size_t r = 0; r < 21; ++r) {
    float largest = 0;
    for (size_t i = 12 * r; i < 12 * r + 12; ++i) largest = std::max(largest, std::abs(a[i]));
    for (size_t i = 12 * r; i < 12 * r + 12; ++i) EXPECT_LE(std::abs(a[i] - b[i]), largest / 254 * 1.0001f);
  }
  const Tensor q = normal({1, 2, 3, 12}, 5), rows = to_int8_rows(normal({1, 2, 9, 12}, 6));
  EXPECT_THROW(to_int8_rows(normal({3, 6}, 1)), ShapeError);
  EXPECT_THROW(attention_int8(q, q, q), DtypeError);
  EXPECT_THROW(attention_int8(q, rows, to_int8_rows(normal({1, 2, 8, 12}, 6))), ShapeError);
  EXPECT_THROW(attention(q, rows, rows), DtypeError);
}

}  // namespace
}  // namespace multihead
