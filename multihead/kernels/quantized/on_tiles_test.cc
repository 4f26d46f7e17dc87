// Packed bf16 on tiles has the bits of the product on tiles, packed integers those of the other ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/matmul/gemm_amx-inl.h"
#include "multihead/kernels/quantized/on_tiles-inl.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/stored_blocks.h"

namespace multihead::kernels {
namespace {

using testing::normal_floats;

struct LayerSizes {
  int64_t rows, out, in;
};

// Packs blocks of a format that `dtype` takes over.
void pack_blocks(WeightDtype dtype, const LayerSizes& s, void* packed) {
  const auto& formats = block_formats();
  const BlockFormat& format = *std::find_if(formats.begin(), formats.end(),
                                            [&](const BlockFormat& f) { return f.packed_as == name(dtype); });
  const int64_t row = (s.in + format.block - 1) / format.block;
  const std::vector<uint8_t> bytes = testing::stored_blocks(format, s.out * row);
  const auto read = [&](int64_t begin, int64_t count, uint8_t* to) {
    std::copy_n(bytes.data() + begin * row * format.bytes, count * row * format.bytes, to);
  };
  pack_stored({read, format}, s.out, s.in, packed);
}

// A product with operands of its own.
struct PackedProduct {
  std::vector<float> x, bias, residual, y;
  Scratch memory;
  PackedLinearArgs args;

  PackedProduct(WeightDtype dtype, const LayerSizes& s)
      : x(normal_floats(s.rows * s.in, 1)),
        bias(normal_floats(s.out, 2)),
        residual(normal_floats(s.rows * s.out, 3)) {
    y.resize(residual.size());
    auto* packed = memory.get<char>(static_cast<size_t>(packed_weight_bytes(dtype, s.out, s.in)));
    if (!format_of(dtype).of_floats()) {
      pack_blocks(dtype, s, packed);
    } else {
      pack_weight(dtype, normal_floats(s.out * s.in, 4).data(), s.in, s.out, s.in, packed);
    }
    args = {.x = x.data(), .ldx = s.in, .packed = packed, .dtype = dtype, .y = y.data()};
    args.ldy = s.out, args.rows = s.rows, args.out = s.out, args.in = s.in;
  }

  std::vector<float> run(const std::function<void(const PackedLinearArgs&)>& multiply) {
    std::fill(y.begin(), y.end(), std::nanf(""));
    multiply(args);
    return y;
  }
};

using OnTiles = void (*)(const PackedLinearArgs&, TileUnit);
void expect_bits_of_other_ways(WeightDtype dtype, const LayerSizes& s, OnTiles on_tiles,
                               bool equal_x = false) {
  SCOPED_TRACE(concat(name(dtype), ": ", s.rows, " x ", s.out, " x ", s.in));
  const int before = num_threads();
  PackedProduct p(dtype, s);
  if (equal_x) std::fill(p.x.begin(), p.x.end(), -0.7f);
  for (int kind = 0; kind < 3; ++kind) {
    if (kind > 0) p.args.bias = p.bias.data();
    if (kind > 1) p.args.activation = Activation::relu, p.args.residual = p.residual.data();
    set_int8_dots(false);
    const std::vector<float> expected = p.run(packed_linear);
    set_int8_dots(true);
    EXPECT_EQ(p.run(packed_linear), expected);  // by itself
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      for (const TileUnit unit : {TileUnit::emulated, TileUnit::amx}) {
        if (unit == TileUnit::amx && !int8_tiles()) continue;
        EXPECT_EQ(p.run([&](const PackedLinearArgs& a) { on_tiles(a, unit); }), expected) << kind;
      }
    }
  }
  set_num_threads(before);
}

// Few rows and many, every width of a panel, steps that are not whole, more k than a block has.
TEST(PackedTilesTest, Int8HasTheBitsOfPairsAndDots) {
  for (const LayerSizes& s :
       {LayerSizes{1, 1, 1}, {6, 64, 64}, {16, 67, 95}, {17, 80, 257}, {33, 111, 64}, {70, 176, 1001}})
    expect_bits_of_other_ways(WeightDtype::int8, s, packed_int8_on_tiles);
}

// Panels alone, in streams of two and four, and left over; rows of one register tile and of more.
TEST(PackedTilesTest, GroupsHaveTheBitsOfDots) {
  for (const WeightDtype dtype : {WeightDtype::q8, WeightDtype::q5, WeightDtype::q4, WeightDtype::q4_k,
                                  WeightDtype::q5_k, WeightDtype::q6_k}) {
    for (const LayerSizes& s : {LayerSizes{1, 1, 1},
                                {1, 150, 64},
                                {2, 16, 32},
                                {5, 50, 96},
                                {8, 160, 257},
                                {12, 90, 64},
                                {16, 16, 32},
                                {17, 50, 96},
                                {37, 67, 257},
                                {20, 33, 800}})
      expect_bits_of_other_ways(dtype, s, packed_groups_on_tiles);
  }
}

// A group's sum of 32 · -127 times a minimum is exact where that has 11 bits, not in blocks.
TEST(PackedTilesTest, MinimaTimesTheLargestSumsHaveTheBitsOfDots) {
  for (const WeightDtype dtype : {WeightDtype::q4, WeightDtype::q5, WeightDtype::q4_k, WeightDtype::q5_k})
    expect_bits_of_other_ways(dtype, {17, 64, 512}, packed_groups_on_tiles, true);
}

// Panels of every width, with and without a whole last step.
TEST(PackedTilesTest, Bf16HasTheBitsOfTheProduct) {
  const int before = num_threads();
  for (const LayerSizes& s :
       {LayerSizes{1, 1, 1}, {3, 64, 32}, {17, 67, 95}, {33, 160, 257}, {50, 111, 64}, {260, 199, 515}}) {
    PackedProduct p(WeightDtype::bf16, s);
    p.args.bias = p.bias.data(), p.args.activation = Activation::gelu, p.args.residual = p.residual.data();
    const std::vector<float> values = normal_floats(s.out * s.in, 4);
    const std::vector<BFloat16> weight(values.begin(), values.end());
    std::vector<float> expected(p.y.size(), std::nanf(""));
    EngineArgs g{GemmArgs<float>{.tb = Transpose::yes, .m = s.rows, .n = s.out, .k = s.in}};
    g.a = p.x.data(), g.lda = s.in, g.b16 = weight.data(), g.ldb = s.in, g.c = expected.data(), g.ldc = s.out;
    g.bias = p.args.bias, g.activation = p.args.activation, g.residual = p.args.residual;
    gemm_on_tiles(g, {}, TileUnit::emulated);
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      const auto on_tiles = [](const PackedLinearArgs& a) { packed_linear_on_tiles(a, TileUnit::emulated); };
      EXPECT_EQ(p.run(on_tiles), expected)
          << s.rows << " x " << s.out << " x " << s.in << ", threads " << threads;
    }
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace multihead::kernels
