#include "multihead/kernels/quantized/groups.h"

#include <gtest/gtest.h>

#include "multihead/core/dtype.h"
#include "multihead/core/error.h"
#include "multihead/kernels/quantized/testing-inl.h"

namespace multihead::kernels {
namespace {

using testing::everywhere;
using testing::kInf;
using testing::kNan;
using testing::Line;
using testing::normal_floats;
using testing::poisoned;
using testing::same_bits;

// A group of a weight's row, and what it stands for.
struct Group {
  std::vector<int> values;
  float scale = 0, min = 0;
};

float as_half(float x) { return static_cast<float>(Float16(x)); }

// Steps between the least and the largest value of a group with a minimum; 0: it has none.
int steps(WeightDtype dtype) { return dtype == WeightDtype::q4 ? 15 : dtype == WeightDtype::q5 ? 31 : 0; }

// The definitions, written plainly.
Group quantized_weight(WeightDtype dtype, std::vector<float> w) {
  Group g{std::vector<int>(w.size()), 0, 0};
  float low = w[0], high = w[0];
  for (const float x : w) {
    if (!std::isfinite(x)) return {g.values, kNan, 0};
    low = std::min(low, x), high = std::max(high, x);
  }
  const auto last = static_cast<float>(steps(dtype));
  g.scale = as_half(last > 0 ? high / last - low / last : std::max(-low, high) / 127);
  g.min = last > 0 ? as_half(low) : 0;
  if (g.scale == 0) return g;
  for (size_t i = 0; i < w.size(); ++i) {
    const float value = std::nearbyint((w[i] - g.min) / g.scale);
    g.values[i] =
        static_cast<int>(last > 0 ? std::clamp(value, 0.0f, last) : std::clamp(value, -127.0f, 127.0f));
  }
  return g;
}

Group quantized_input(std::vector<float> x) {
  Group g{std::vector<int>(x.size()), 0, 0};
  float max = 0;
  for (const float v : x) {
    if (!std::isfinite(v)) return {g.values, kNan, 0};
    max = std::max(max, std::abs(v));
  }
  if (max < 0x1p-119f) return g;
  g.scale = max / 127;
  const float inverse = 127 / max;
  for (size_t i = 0; i < x.size(); ++i) g.values[i] = static_cast<int>(std::nearbyint(x[i] * inverse));
  return g;
}

struct GroupedLayer {
  WeightDtype dtype;
  int64_t rows, out, in;
  Activation activation = Activation::none;
  int64_t ldx = in + 3, ldy = out + 19;
  std::vector<float> x = normal_floats(rows * ldx, 1), weight = normal_floats(out * in, 2);
  std::vector<float> bias = normal_floats(out, 3), residual = normal_floats(rows * ldy, 4);
  bool extras = true;

  std::vector<Line> packed() const {
    std::vector<Line> lines(static_cast<size_t>(packed_weight_bytes(dtype, out, in) / 64));
    for (Line& line : lines) std::memset(&line, 0xff, sizeof(line));
    pack_weight(dtype, weight.data(), in, out, in, lines.data());
    return lines;
  }
  std::vector<float> run(const std::vector<Line>& lines, int64_t first = 0, int64_t count = -1) const {
    std::vector<float> y = poisoned(rows * ldy);
    packed_linear({.x = x.data() + first * ldx,
                   .ldx = ldx,
                   .packed = lines.data(),
                   .dtype = dtype,
                   .y = y.data() + first * ldy,
                   .ldy = ldy,
                   .rows = count < 0 ? rows : count,
                   .out = out,
                   .in = in,
                   .bias = extras ? bias.data() : nullptr,
                   .activation = activation,
                   .residual = extras ? residual.data() + first * ldy : nullptr});
    return y;
  }
  template <class Quantize>
  std::vector<std::vector<Group>> groups_of(const std::vector<float>& m, int64_t count, int64_t stride,
                                            const Quantize& quantize) const {
    std::vector<std::vector<Group>> all;
    for (int64_t i = 0; i < count; ++i) {
      std::vector<Group>& row = all.emplace_back();
      for (int64_t k = 0; k < in; k += kWeightGroup) {
        const auto begin = m.begin() + i * stride + k;
        row.push_back(quantize(std::vector<float>(begin, begin + std::min(kWeightGroup, in - k))));
      }
    }
    return all;
  }
  std::vector<float> expected() const {
    std::vector<float> y = poisoned(rows * ldy);
    const auto gx = groups_of(x, rows, ldx, quantized_input);
    const auto gw =
        groups_of(weight, out, in, [&](const std::vector<float>& w) { return quantized_weight(dtype, w); });
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < out; ++j) {
        float value = 0;
        for (size_t g = 0; g < gx[static_cast<size_t>(i)].size(); ++g) {
          const Group &a = gx[static_cast<size_t>(i)][g], &b = gw[static_cast<size_t>(j)][g];
          int sum = 0, total = 0;
          for (size_t k = 0; k < a.values.size(); ++k) sum += a.values[k] * b.values[k], total += a.values[k];
          float part = static_cast<float>(sum) * b.scale;
          if (steps(dtype) > 0) part += b.min * static_cast<float>(total);
          value += part * a.scale;
        }
        if (extras) value += bias[static_cast<size_t>(j)];
        if (activation == Activation::relu && value < 0) value = 0;
        if (extras) value += residual[static_cast<size_t>(i * ldy + j)];
        y[static_cast<size_t>(i * ldy + j)] = value;
      }
    }
    return y;
  }
};

class PackedLinearGroupsTest : public ::testing::TestWithParam<WeightDtype> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, PackedLinearGroupsTest,
                         ::testing::Values(WeightDtype::q8, WeightDtype::q5, WeightDtype::q4),
                         [](const auto& test) { return std::string(name(test.param)); });

// Around the tiles' rows, the panels' columns, groups of k, the blocks of rows and the size that starts
// threads.
TEST_P(PackedLinearGroupsTest, HasTheBitsOfTheDefinitionEverywhere) {
  for (const GroupedLayer& layer :
       {GroupedLayer{GetParam(), 1, 1, 1}, GroupedLayer{GetParam(), 4, 129, 67},
        GroupedLayer{GetParam(), 6, 64, 31}, GroupedLayer{GetParam(), 7, 63, 1025, Activation::relu},
        GroupedLayer{GetParam(), 3, 389, 1021}, GroupedLayer{GetParam(), 13, 17, 2053},
        GroupedLayer{GetParam(), 61, 193, 127, Activation::relu}, GroupedLayer{GetParam(), 1, 4999, 257},
        GroupedLayer{GetParam(), 2, 16, 32}, GroupedLayer{GetParam(), 5, 9, 64},
        GroupedLayer{GetParam(), 41, 23, 8219}}) {
    const std::vector<float> expected = layer.expected();
    const std::vector<Line> lines = layer.packed();
    everywhere([&](const std::string& where) {
      EXPECT_TRUE(same_bits(layer.run(lines), expected))
          << where << ": " << layer.rows << " x " << layer.out << " x " << layer.in;
    });
  }
}

// Every count of panels around those that one row reads side by side; nothing is written past the last.
TEST_P(PackedLinearGroupsTest, OneRowOfAnyWidth) {
  for (int64_t out = 1; out < 200; out += 5) {
    const GroupedLayer layer{GetParam(), 1, out, 70, Activation::relu};
    const std::vector<float> expected = layer.expected();
    const std::vector<Line> lines = layer.packed();
    everywhere([&](const std::string& where) {
      EXPECT_TRUE(same_bits(layer.run(lines), expected)) << where << ": " << out;
    });
  }
}

TEST_P(PackedLinearGroupsTest, ARowHasTheSameBitsAloneAndAmongOthers) {
  const GroupedLayer layer{GetParam(), 37, 83, 321, Activation::gelu};
  const std::vector<Line> lines = layer.packed();
  everywhere([&](const std::string& where) {
    const std::vector<float> all = layer.run(lines);
    for (int64_t i = 0; i < layer.rows; ++i) {
      const std::vector<float> one = layer.run(lines, i, 1);
      EXPECT_EQ(std::memcmp(one.data() + i * layer.ldy, all.data() + i * layer.ldy,
                            static_cast<size_t>(layer.out) * sizeof(float)),
                0)
          << where << ", row " << i;
    }
  });
}

// The largest sums of both signs: what 16 bits must hold.
TEST_P(PackedLinearGroupsTest, NothingSaturates) {
  GroupedLayer layer{GetParam(), 4, 67, 4096};
  layer.extras = false;
  for (int64_t i = 0; i < layer.rows; ++i) {
    for (int64_t k = 0; k < layer.in; ++k) {
      layer.x[static_cast<size_t>(i * layer.ldx + k)] = i % 2 == 0 ? 127.0f : -127.0f;
    }
  }
  // All values are the largest (15, 31 or 127) but one of each group.
  for (size_t w = 0; w < layer.weight.size(); ++w) {
    layer.weight[w] = w % 32 == 5 ? 0.0f : steps(GetParam()) > 0 ? 31.0f : w % 2 == 0 ? 127 : -127;
  }
  const std::vector<Line> lines = layer.packed();
  everywhere(
      [&](const std::string& where) { EXPECT_TRUE(same_bits(layer.run(lines), layer.expected())) << where; });
}

TEST_P(PackedLinearGroupsTest, NanAndInfinityMakeTheirRowOrColumnNan) {
  GroupedLayer layer{GetParam(), 9, 83, 565}, clean = layer;  // sixteen groups side by side, and two
  layer.x[static_cast<size_t>(2 * layer.ldx + 52)] = kNan;
  layer.x[static_cast<size_t>(5 * layer.ldx)] = -kInf;
  layer.weight[static_cast<size_t>(17 * layer.in + 3)] = kInf;
  layer.weight[static_cast<size_t>(82 * layer.in + 52)] = -kNan;
  const std::vector<float> expected = clean.expected();
  const std::vector<Line> lines = layer.packed();
  everywhere([&](const std::string& where) {
    const std::vector<float> got = layer.run(lines);
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

TEST_P(PackedLinearGroupsTest, GroupsOfZerosOrOfOneValue) {
  GroupedLayer layer{GetParam(), 3, 7, 1120};  // twice sixteen groups side by side, and three
  std::fill(layer.x.begin(), layer.x.begin() + 32, 0.0f);
  layer.x[static_cast<size_t>(layer.ldx)] = 0x1p-120f;
  std::fill(layer.weight.begin(), layer.weight.begin() + 32, 0.0f);
  std::fill(layer.weight.begin() + 32, layer.weight.begin() + 64, -0.75f);
  const std::vector<Line> lines = layer.packed();
  everywhere(
      [&](const std::string& where) { EXPECT_TRUE(same_bits(layer.run(lines), layer.expected())) << where; });
  std::vector<float> row(static_cast<size_t>(layer.in));
  unpack_weight_row(GetParam(), lines.data(), 0, layer.out, layer.in, row.data());
  for (size_t k = 0; k < 64; ++k) EXPECT_NEAR(row[k], k < 32 ? 0 : -0.75, 4e-4) << k;
}

// Half a step of each, and of the rounded scale and minimum.
TEST_P(PackedLinearGroupsTest, IsAsNearAsItsSteps) {
  GroupedLayer layer{GetParam(), 11, 131, 257};
  layer.extras = false;
  const std::vector<Line> lines = layer.packed();
  std::vector<float> row(257);
  for (int64_t j = 0; j < layer.out; ++j) {
    unpack_weight_row(GetParam(), lines.data(), j, layer.out, layer.in, row.data());
    for (int64_t k = 0; k < layer.in; ++k) {
      const int64_t begin = k / 32 * 32, end = std::min(begin + 32, layer.in);
      const auto* w = layer.weight.data() + j * layer.in;
      const auto [low, high] = std::minmax_element(w + begin, w + end);
      const auto count = static_cast<float>(steps(GetParam()));
      const float step = count > 0 ? (*high - *low) / count : std::max(-*low, *high) / 127;
      EXPECT_NEAR(row[static_cast<size_t>(k)], w[k], 0.51 * step + 1e-3) << j << ' ' << k;
    }
  }
  const std::vector<float> got = layer.run(lines);
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
  const double relative = std::sqrt(error / power);
  const double least = GetParam() == WeightDtype::q4 ? 0.06 : GetParam() == WeightDtype::q5 ? 0.03 : 0.005;
  EXPECT_GT(relative, least);
  EXPECT_LT(relative, GetParam() == WeightDtype::q8 ? 0.009 : least * 1.42);
}

TEST(PackedLinearGroupsMemoryTest, TakesNineAndFiveBits) {
  EXPECT_EQ(packed_weight_bytes(WeightDtype::q8, 1600, 320), 1600 * 320 * 17 / 16);
  EXPECT_EQ(packed_weight_bytes(WeightDtype::q4, 1600, 320), 1600 * 320 * 5 / 8);
  EXPECT_EQ(packed_weight_bytes(WeightDtype::q4, 0, 320), 0);
}

}  // namespace
}  // namespace multihead::kernels
