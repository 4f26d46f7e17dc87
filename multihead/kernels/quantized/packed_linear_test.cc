#include "multihead/kernels/quantized/packed_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "multihead/core/dtype.h"
#include "multihead/core/error.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/quantized/testing-inl.h"

namespace multihead::kernels {
namespace {

using testing::Line;
using testing::normal_floats;
using testing::Packed;
using testing::poisoned;

struct Layer {
  int64_t rows, out, in;
  std::vector<float> x = normal_floats(rows * in, 1), weight = normal_floats(out * in, 2);
  std::vector<float> bias = normal_floats(out, 3), residual = normal_floats(rows * out, 4);

  std::vector<float> run(Activation activation, WeightDtype dtype = WeightDtype::f32) const {
    const Packed packed(dtype, weight, in, out, in);
    std::vector<float> y = poisoned(rows * out);
    packed_linear({.x = x.data(),
                   .ldx = in,
                   .packed = packed.data(),
                   .dtype = dtype,
                   .y = y.data(),
                   .ldy = out,
                   .rows = rows,
                   .out = out,
                   .in = in,
                   .bias = bias.data(),
                   .activation = activation,
                   .residual = residual.data()});
    return y;
  }
  std::vector<float> expected(Activation activation, WeightDtype dtype = WeightDtype::f32) const {
    std::vector<float> y = poisoned(rows * out);
    const std::vector<BFloat16> rounded(weight.begin(), weight.end());
    const bool bf16 = dtype == WeightDtype::bf16;
    std::vector<float> values = weight;
    if (dtype == WeightDtype::f16) {
      for (float& x : values) x = static_cast<float>(Float16(x));
    }
    gemm_mixed({.a = x.data(),
                .lda = in,
                .b = bf16 ? GemmMatrix(rounded.data()) : GemmMatrix(values.data()),
                .ldb = in,
                .tb = Transpose::yes,
                .c = y.data(),
                .ldc = out,
                .m = rows,
                .n = out,
                .k = in,
                .bias = bias.data(),
                .activation = activation,
                .residual = residual.data()});
    return y;
  }
};

// Around the tiles' rows, the panels' columns, the longest pass over k (1024) and the size that starts
// threads.
TEST(PackedLinearTest, TheBitsOfGemmOnEveryTargetAndThreadCount) {
  const testing::EverywhereScope scope;
  for (const Isa isa : kernels::kIsas) {
    if (isa > best_isa()) continue;
    set_isa(isa);
    for (const Layer& layer :
         {Layer{1, 1, 1}, Layer{4, 129, 67}, Layer{6, 64, 31}, Layer{7, 63, 1025}, Layer{3, 389, 1021},
          Layer{13, 17, 2053}, Layer{61, 193, 127}, Layer{1, 1031, 257}}) {
      for (const int threads : {1, 3}) {
        set_num_threads(threads);
        for (const Activation activation : {Activation::none, Activation::gelu}) {
          for (const WeightDtype dtype : {WeightDtype::f32, WeightDtype::bf16, WeightDtype::f16}) {
            testing::expect_same({layer.run(activation, dtype)}, {layer.expected(activation, dtype)},
                                 concat(isa_name(isa), ' ', name(dtype), " rows ", layer.rows));
          }
        }
      }
    }
  }
}

TEST(PackedLinearTest, Bf16HasTheBitsOfGemmWhereItIsWidenedOnAvx512) {
  set_bf16_dots(false);
  for (const Layer& layer : {Layer{1, 1, 1}, Layer{4, 129, 67}, Layer{7, 63, 1025}, Layer{61, 193, 127}}) {
    testing::expect_same({layer.run(Activation::none, WeightDtype::bf16)},
                         {layer.expected(Activation::none, WeightDtype::bf16)}, concat("rows ", layer.rows));
  }
  set_bf16_dots(true);
}

TEST(PackedLinearTest, RowsOfPackedF32AreThoseOfTheWeight) {
  const testing::EverywhereScope scope;
  for (const Isa isa : {best_isa(), Isa::baseline}) {
    set_isa(isa);
    for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 1}, {64, 2}, {65, 7}, {131, 33}}) {
      const auto weight = normal_floats(out * in, 7);
      const Packed packed(WeightDtype::f32, weight, in, out, in);
      std::vector<float> row(static_cast<size_t>(in));
      for (int64_t i = 0; i < out; ++i) {
        unpack_weight_row(WeightDtype::f32, packed.data(), i, out, in, row.data());
        EXPECT_TRUE(std::equal(row.begin(), row.end(), weight.begin() + i * in)) << i << " of " << out;
      }
    }
  }
}

template <class Half>
void expect_same_bytes_everywhere(WeightDtype dtype) {
  const testing::EverywhereScope scope;
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 1}, {64, 2}, {65, 7}, {131, 33}}) {
    const auto weight = normal_floats(out * in, 7);
    set_isa(best_isa());
    const Packed here(dtype, weight, in, out, in);
    set_isa(Isa::baseline);
    const Packed there(dtype, weight, in, out, in);
    const auto bytes = static_cast<size_t>((out + 15) / 16 * 16 * ((in + 1) / 2) * 4);
    EXPECT_EQ(std::memcmp(here.data(), there.data(), bytes), 0) << out << " x " << in;
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t i = 0; i < out; ++i) {
      unpack_weight_row(dtype, here.data(), i, out, in, row.data());
      for (int64_t k = 0; k < in; ++k) EXPECT_EQ(row[k], static_cast<float>(Half(weight[i * in + k])));
    }
  }
}

TEST(PackedLinearTest, SixteenBitsAreTheSameBytesEverywhereAndGiveTheirRowsBack) {
  expect_same_bytes_everywhere<BFloat16>(WeightDtype::bf16);
  expect_same_bytes_everywhere<Float16>(WeightDtype::f16);
}

void pack_f16(const std::vector<Float16>& weight, int64_t out, int64_t in, std::vector<Line>& packed) {
  const auto read = [&](int64_t begin, int64_t count, uint8_t* to) {
    std::memcpy(to, weight.data() + begin * in, static_cast<size_t>(count * in) * sizeof(Float16));
  };
  const auto is_f16 = [](const BlockFormat& format) { return format.packed_as == std::string("f16"); };
  const BlockFormat& f16 = *std::find_if(block_formats().begin(), block_formats().end(), is_f16);
  pack_stored({read, f16}, out, in, packed.data());
}

TEST(PackedLinearTest, StoredF16LiesAsPackedF32Does) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{64, 8}, {131, 11}, {80, 7}, {3, 4}}) {
    std::vector<Float16> halves(static_cast<size_t>(out * in));
    std::vector<float> wide;
    for (size_t i = 0; i < halves.size(); ++i) {
      halves[i] = Float16(static_cast<float>(i) / 8);
      wide.push_back(static_cast<float>(halves[i]));
    }
    const auto size = static_cast<size_t>(packed_weight_bytes(WeightDtype::f16, out, in));
    std::vector<Line> stored(size / 64), expected(size / 64);
    pack_f16(halves, out, in, stored);
    pack_weight(WeightDtype::f16, wide.data(), in, out, in, expected.data());
    EXPECT_EQ(std::memcmp(stored.data(), expected.data(), size), 0) << out << " x " << in;
  }
}

// All finite numbers, subnormal ones among them.
TEST(PackedLinearTest, F16IsWidenedExactlyAndTakenOverAsItLies) {
  const testing::EverywhereScope scope;
  constexpr int64_t kAll = 1 << 16;
  std::vector<Float16> all(kAll);
  std::vector<float> wide(kAll);
  for (int64_t i = 0; i < kAll; ++i) {
    all[i].bits = static_cast<uint16_t>(i);
    wide[i] = static_cast<float>(all[i]);
  }
  std::vector<Line> lines(packed_weight_bytes(WeightDtype::f16, kAll, 1) / 64);
  pack_f16(all, kAll, 1, lines);
  const float one = 1;
  for (const Isa isa : kernels::kIsas) {
    if (isa > best_isa()) continue;
    set_isa(isa);
    std::vector<float> y(kAll);
    packed_linear({.x = &one,
                   .ldx = 1,
                   .packed = lines.data(),
                   .dtype = WeightDtype::f16,
                   .y = y.data(),
                   .ldy = kAll,
                   .rows = 1,
                   .out = kAll,
                   .in = 1});
    for (int64_t i = 0; i < kAll; ++i) {
      if (std::isfinite(wide[i])) {
        ASSERT_EQ(y[i], wide[i]) << isa_name(isa) << ' ' << i;
      }
    }
  }
}

TEST(PackedLinearTest, WritesItsColumnsAloneAndReadsRowsWhereTheyLie) {
  const int64_t rows = 5, out = 37, in = 11, ldx = 13, ldy = 41;
  const auto x = normal_floats(rows * ldx, 5), weight = normal_floats(out * 17, 6);
  const Packed packed(WeightDtype::f32, weight, 17, out, in);
  std::vector<float> y = poisoned(rows * ldy);
  packed_linear({.x = x.data(),
                 .ldx = ldx,
                 .packed = packed.data(),
                 .y = y.data(),
                 .ldy = ldy,
                 .rows = rows,
                 .out = out,
                 .in = in});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < ldy; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < in && j < out; ++k)
        sum += static_cast<double>(x[i * ldx + k]) * weight[j * 17 + k];
      if (j < out) {
        EXPECT_NEAR(y[i * ldy + j], sum, 1e-5);
      } else {
        EXPECT_TRUE(std::isnan(y[i * ldy + j]));
      }
    }
  }
  packed_linear({.packed = packed.data(), .rows = 0, .out = out, .in = in});  // nothing to do
}

}  // namespace
}  // namespace multihead::kernels
