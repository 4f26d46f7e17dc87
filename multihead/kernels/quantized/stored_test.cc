// Blocks of files as products compute them: every format of the table that says what takes it over.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/kernels/quantized/testing-inl.h"
#include "multihead/testing/stored_blocks.h"

namespace multihead::kernels {
namespace {

using testing::normal_floats;
using testing::same_bits;

std::vector<BlockFormat> taken_over() {
  std::vector<BlockFormat> formats;
  for (const BlockFormat& format : block_formats()) {
    if (*format.packed_as != '\0') formats.push_back(format);
  }
  return formats;
}

// A weight whose rows end within a block where the packed format allows it.
struct StoredLayer {
  StoredLayer(const BlockFormat& format, int64_t out, int64_t in, bool extreme = false)
      : dtype(*packed_dtype_of(format)), out(out), in(in), weight(static_cast<size_t>(out * in)) {
    const int64_t blocks = (in + format.block - 1) / format.block, row = blocks * format.bytes;
    const std::vector<uint8_t> bytes = testing::stored_blocks(format, out * blocks, extreme);
    std::vector<float> whole(static_cast<size_t>(blocks * format.block));
    for (int64_t i = 0; i < out; ++i) {
      format.decode(bytes.data() + i * row, blocks, whole.data());
      std::copy_n(whole.begin(), in, weight.begin() + i * in);
    }
    lines.resize(static_cast<size_t>(packed_weight_bytes(dtype, out, in) / 64));
    const auto read = [&](int64_t begin, int64_t count, uint8_t* to) {
      std::copy_n(bytes.data() + begin * row, count * row, to);
    };
    pack_stored({read, format}, out, in, lines.data());
  }
  std::vector<float> times(const float* x, int64_t rows) const {
    std::vector<float> y(static_cast<size_t>(rows * out));
    packed_linear({.x = x,
                   .ldx = in,
                   .packed = lines.data(),
                   .dtype = dtype,
                   .y = y.data(),
                   .ldy = out,
                   .rows = rows,
                   .out = out,
                   .in = in});
    return y;
  }
  WeightDtype dtype;
  int64_t out, in;
  std::vector<float> weight;
  std::vector<testing::Line> lines;
};

class StoredTest : public ::testing::TestWithParam<BlockFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, StoredTest, ::testing::ValuesIn(taken_over()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(StoredTest, RowsAreTheNumbersOfTheFile) {
  for (const int64_t in : {768, 90}) {
    const StoredLayer layer(GetParam(), 37, in);
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t i = 0; i < layer.out; ++i) {
      unpack_weight_row(layer.dtype, layer.lines.data(), i, layer.out, in, row.data());
      const auto expected = layer.weight.begin() + i * in;
      EXPECT_EQ(row, std::vector<float>(expected, expected + in)) << i;
    }
  }
}

TEST_P(StoredTest, ProductsHaveTheSameBitsEverywhereAndAloneAndAreNear) {
  constexpr int64_t kOut = 149, kIn = 512;
  const bool in_groups = format_of(*packed_dtype_of(GetParam())).groups.bits > 0;
  for (const bool extreme : {false, true}) {
    const StoredLayer layer(GetParam(), kOut, kIn, extreme);
    for (const int64_t rows : {1, 2, 3, 7, 33}) {
      const std::vector<float> x =
          extreme ? std::vector<float>(static_cast<size_t>(rows * kIn), 127) : normal_floats(rows * kIn, 5);
      std::vector<float> first;
      testing::everywhere([&](const std::string& where) {
        const std::vector<float> y = layer.times(x.data(), rows);
        if (first.empty()) first = y;
        EXPECT_TRUE(!in_groups || same_bits(y, first)) << where << ' ' << rows;
        EXPECT_TRUE(same_bits(layer.times(x.data() + (rows - 1) * kIn, 1), {y.end() - kOut, y.end()}));
      });
      for (int64_t j = 0; j < kOut; ++j) {
        double exact = 0, size = 0;
        for (int64_t k = 0; k < kIn; ++k) {
          const double term =
              static_cast<double>(x[static_cast<size_t>(k)]) * layer.weight[static_cast<size_t>(j * kIn + k)];
          exact += term, size += term * term;
        }
        EXPECT_NEAR(first[static_cast<size_t>(j)], exact, 0.03 * std::sqrt(size)) << j;
      }
    }
  }
}

TEST_P(StoredTest, ItTakesItsBits) {
  const double bits =
      8.0 * static_cast<double>(packed_weight_bytes(*packed_dtype_of(GetParam()), 32, 1280)) / (32 * 1280);
  EXPECT_GE(bits, GetParam().bits());
  EXPECT_LE(bits, std::max(GetParam().bits() + 0.6, 8.5));
}

TEST(FormatTest, RowsOfTheTableAreInOrderAndHaveNames) {
  for (size_t i = 0; i < std::size(kWeightFormats); ++i) {
    EXPECT_EQ(static_cast<size_t>(kWeightFormats[i].dtype), i);
    if (!kWeightFormats[i].of_floats()) continue;
    EXPECT_EQ(parse_weight_dtype(kWeightFormats[i].name), kWeightFormats[i].dtype);
  }
  for (const BlockFormat& format : taken_over()) EXPECT_TRUE(packed_dtype_of(format)) << format.packed_as;
}

}  // namespace
}  // namespace multihead::kernels
