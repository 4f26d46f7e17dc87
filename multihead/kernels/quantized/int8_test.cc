#include "multihead/kernels/quantized/int8.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/kernels/quantized/testing-inl.h"

namespace multihead::kernels {
namespace {

using testing::everywhere;
using testing::kInf;
using testing::kNan;
using testing::normal_floats;
using testing::Packed;
using testing::poisoned;
using testing::same_bits;

struct Quantized {
  std::vector<int32_t> values;
  float scale = 0;
};

// The definition, written plainly.
Quantized quantize(const float* x, int64_t count) {
  Quantized q{std::vector<int32_t>(static_cast<size_t>(count)), 0};
  float max = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) return {q.values, kNan};
    max = std::max(max, std::abs(x[i]));
  }
  if (max < 0x1p-119f) return q;
  const float inverse = 127 / max;
  for (int64_t i = 0; i < count; ++i) {
    q.values[static_cast<size_t>(i)] = static_cast<int32_t>(std::nearbyint(x[i] * inverse));
  }
  q.scale = max / 127;
  return q;
}

struct Int8Layer {
  int64_t rows, out, in;
  Activation activation = Activation::none;
  int64_t ldx = in + 3, ldy = out + 2;
  std::vector<float> x = normal_floats(rows * ldx, 1), weight = normal_floats(out * in, 2);
  std::vector<float> bias = normal_floats(out, 3), residual = normal_floats(rows * ldy, 4);
  bool extras = true;

  std::vector<float> run() const {
    const Packed packed(WeightDtype::int8, weight, in, out, in);
    std::vector<float> y = poisoned(rows * ldy);
    packed_linear({.x = x.data(),
                   .ldx = ldx,
                   .packed = packed.data(),
                   .dtype = WeightDtype::int8,
                   .y = y.data(),
                   .ldy = ldy,
                   .rows = rows,
                   .out = out,
                   .in = in,
                   .bias = extras ? bias.data() : nullptr,
                   .activation = activation,
                   .residual = extras ? residual.data() : nullptr});
    return y;
  }
  std::vector<float> expected() const {
    std::vector<float> y = poisoned(rows * ldy);
    for (int64_t i = 0; i < rows; ++i) {
      const Quantized qx = quantize(x.data() + i * ldx, in);
      for (int64_t j = 0; j < out; ++j) {
        const Quantized qw = quantize(weight.data() + j * in, in);
        int64_t sum = 0;
        for (size_t k = 0; k < qx.values.size(); ++k) sum += int64_t{qx.values[k]} * qw.values[k];
        float value = static_cast<float>(sum) * qx.scale;
        value *= qw.scale;
        if (extras) value += bias[static_cast<size_t>(j)];
        if (activation == Activation::relu && value < 0) value = 0;
        if (extras) value += residual[static_cast<size_t>(i * ldy + j)];
        y[static_cast<size_t>(i * ldy + j)] = value;
      }
    }
    return y;
  }
};

// Around the tiles' rows, the panels' columns, groups of k, and the size that starts threads.
TEST(PackedLinearInt8Test, HasTheBitsOfTheDefinitionEverywhere) {
  for (const Int8Layer& layer :
       {Int8Layer{1, 1, 1}, Int8Layer{4, 129, 67}, Int8Layer{6, 64, 31, Activation::relu},
        Int8Layer{7, 63, 1025}, Int8Layer{3, 389, 1021, Activation::relu}, Int8Layer{13, 17, 2053},
        Int8Layer{61, 193, 127}, Int8Layer{1, 1031, 257}, Int8Layer{12, 79, 4}, Int8Layer{11, 48, 16},
        Int8Layer{5, 2053, 509}}) {
    const std::vector<float> expected = layer.expected();
    everywhere([&](const std::string& where) {
      EXPECT_TRUE(same_bits(layer.run(), expected))
          << where << ": " << layer.rows << " x " << layer.out << " x " << layer.in;
    });
  }
}

TEST(PackedLinearInt8Test, OtherActivationsFollowTheSums) {
  Int8Layer layer{7, 71, 37}, plain = layer;
  plain.extras = false;
  const std::vector<float> sums = plain.expected();
  layer.activation = Activation::gelu;
  everywhere([&](const std::string& where) {
    const std::vector<float> got = layer.run();
    for (int64_t i = 0; i < layer.rows; ++i) {
      for (int64_t j = 0; j < layer.out; ++j) {
        const auto at = static_cast<size_t>(i * layer.ldy + j);
        const double x = static_cast<double>(sums[at]) + layer.bias[static_cast<size_t>(j)];
        EXPECT_NEAR(got[at], x * 0.5 * (1 + std::erf(x * std::sqrt(0.5))) + layer.residual[at],
                    1e-5 * (1 + std::abs(x)))
            << where;
      }
      for (int64_t j = layer.out; j < layer.ldy; ++j) {
        EXPECT_TRUE(std::isnan(got[static_cast<size_t>(i * layer.ldy + j)])) << where;
      }
    }
  });
}

// The largest sums, of both signs: what a 16-bit sum of two products cannot hold.
TEST(PackedLinearInt8Test, NothingSaturates) {
  Int8Layer layer{4, 67, 4099};
  layer.extras = false;
  for (int64_t i = 0; i < layer.rows; ++i) {
    for (int64_t k = 0; k < layer.in; ++k)
      layer.x[static_cast<size_t>(i * layer.ldx + k)] = i % 2 == 0 ? 127.0f : -127.0f;
  }
  for (size_t w = 0; w < layer.weight.size(); ++w) {
    layer.weight[w] = w / static_cast<size_t>(layer.in) % 3 == 0 ? -127.0f : 127.0f;
  }
  everywhere([&](const std::string& where) {
    const std::vector<float> got = layer.run();
    for (int64_t i = 0; i < layer.rows; ++i) {
      for (int64_t j = 0; j < layer.out; ++j) {
        const float sign = (i % 2 == 0) == (j % 3 == 0) ? -1.0f : 1.0f;
        ASSERT_EQ(got[static_cast<size_t>(i * layer.ldy + j)], sign * 127 * 127 * 4099) << where;
      }
    }
  });
}

TEST(PackedLinearInt8Test, TiesRoundToEven) {
  Int8Layer layer{1, 5, 6};
  layer.extras = false;
  layer.x = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 9, 9, 9};
  std::fill(layer.weight.begin(), layer.weight.end(), 0.0f);
  for (size_t j = 0; j < 5; ++j) layer.weight[j * 6 + j + 1] = 127;
  const float rounded[] = {0, 2, 2, 0, -2};
  everywhere([&](const std::string& where) {
    const std::vector<float> got = layer.run();
    for (size_t j = 0; j < 5; ++j) EXPECT_EQ(got[j], rounded[j] * 127) << where << ' ' << j;
  });
}

TEST(PackedLinearInt8Test, NanAndInfinityMakeTheirRowOrColumnNan) {
  Int8Layer layer{9, 83, 53, Activation::relu};
  layer.x[static_cast<size_t>(2 * layer.ldx + 52)] = kNan;
  layer.x[static_cast<size_t>(5 * layer.ldx)] = -kInf;
  layer.weight[static_cast<size_t>(17 * layer.in + 3)] = kInf;
  layer.weight[static_cast<size_t>(82 * layer.in + 52)] = -kNan;
  Int8Layer clean{9, 83, 53, Activation::relu};
  const std::vector<float> expected = clean.expected();
  everywhere([&](const std::string& where) {
    const std::vector<float> got = layer.run();
    for (int64_t i = 0; i < layer.rows; ++i) {
      for (int64_t j = 0; j < layer.out; ++j) {
        const auto at = static_cast<size_t>(i * layer.ldy + j);
        if (i == 2 || i == 5 || j == 17 || j == 82) {
          EXPECT_TRUE(std::isnan(got[at])) << where << ' ' << i << ' ' << j;
        } else {
          EXPECT_EQ(got[at], expected[at]) << where << ' ' << i << ' ' << j;
        }
      }
    }
  });
}

TEST(PackedLinearInt8Test, RowsOfZerosAndTooSmallToScale) {
  Int8Layer layer{3, 7, 5};
  std::fill(layer.x.begin(), layer.x.end(), 0.0f);
  layer.x[static_cast<size_t>(layer.ldx)] = 0x1p-120f;      // counts as zero
  layer.x[static_cast<size_t>(2 * layer.ldx)] = 0x1p-119f;  // does not
  everywhere(
      [&](const std::string& where) { EXPECT_TRUE(same_bits(layer.run(), layer.expected())) << where; });
  layer.extras = false;
  const std::vector<float> got = layer.run();
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[static_cast<size_t>(layer.ldy)], 0);
  EXPECT_NE(got[static_cast<size_t>(2 * layer.ldy)], 0);
}

// Half a step of both operands' scales per product.
TEST(PackedLinearInt8Test, IsAsNearAsItsSteps) {
  Int8Layer layer{11, 131, 257};
  layer.extras = false;
  const std::vector<float> got = layer.run();
  double error = 0, power = 0;
  for (int64_t i = 0; i < layer.rows; ++i) {
    for (int64_t j = 0; j < layer.out; ++j) {
      double exact = 0;
      for (int64_t k = 0; k < layer.in; ++k) {
        exact += static_cast<double>(layer.x[static_cast<size_t>(i * layer.ldx + k)]) *
                 layer.weight[static_cast<size_t>(j * layer.in + k)];
      }
      error += std::pow(got[static_cast<size_t>(i * layer.ldy + j)] - exact, 2);
      power += exact * exact;
    }
  }
  // Uniform errors of steps of 3/127 (the largest of 257 normal numbers is about 3) in both operands.
  EXPECT_LT(std::sqrt(error / power), 0.0117);
  EXPECT_GT(std::sqrt(error / power), 0.005);
}

TEST(PackedLinearInt8Test, TakesAQuarterOfTheMemoryAndKnowsItsName) {
  const int64_t f32 = packed_weight_bytes(WeightDtype::f32, 8000, 256);
  EXPECT_EQ(packed_weight_bytes(WeightDtype::int8, 8000, 256), f32 / 4 + 8 * 8000);
  EXPECT_EQ(packed_weight_bytes(WeightDtype::int8, 0, 256), 0);
  for (const WeightDtype dtype : {WeightDtype::f32, WeightDtype::int8, WeightDtype::q8, WeightDtype::q4}) {
    EXPECT_EQ(parse_weight_dtype(name(dtype)), dtype);
  }
  for (const char* word : {"", "INT8", "fp16", "int8 ", "f32x"}) {
    EXPECT_THROW(parse_weight_dtype(word), ValueError) << word;
  }
}

}  // namespace
}  // namespace multihead::kernels
