// GGUF's K formats as products compute them: the numbers that io decodes, the same bits on every instruction
// set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/gguf.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/nn/packed_linear.h"

namespace multihead::models {
namespace {

using nn::WeightDtype;

struct Kind {
  const char* name;
  WeightDtype dtype;
  std::vector<int64_t> scales;  // offsets of a block's scales in f16
};

class BlocksTest : public ::testing::TestWithParam<Kind> {
 protected:
  ~BlocksTest() override {
    kernels::set_isa(kernels::best_isa());
    set_num_threads(threads_);
  }

  const io::GgufType& type() const {
    for (const io::GgufType& t : io::gguf_types()) {
      if (std::string(t.name) == GetParam().name) return t;
    }
    throw std::logic_error("no such type");
  }

  // Random bytes, but for the scales.
  std::vector<uint8_t> blocks(int64_t count, bool extreme) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(count * type().bytes), 0xff);
    const RandomStream random{11, 0};
    for (size_t i = 0; i < bytes.size() && !extreme; ++i) bytes[i] = static_cast<uint8_t>(random.bits(i));
    for (int64_t b = 0; b < count; ++b) {
      for (const int64_t at : GetParam().scales) {
        const Float16 scale(
            static_cast<float>(random.uniform(1000000 + static_cast<uint64_t>(b + at)) - 0.5));
        std::memcpy(bytes.data() + b * type().bytes + at, &scale.bits, 2);
      }
    }
    return bytes;
  }

  nn::PackedLinear packed(const std::vector<uint8_t>& bytes, int64_t out, int64_t in) const {
    const int64_t row = in / 256 * type().bytes;
    const auto read = [&](int64_t begin, int64_t count, uint8_t* to) {
      std::copy_n(bytes.data() + begin * row, count * row, to);
    };
    return {{.read = read, .dtype = GetParam().dtype}, out, in};
  }

  int threads_ = num_threads();
};

INSTANTIATE_TEST_SUITE_P(Kinds, BlocksTest,
                         ::testing::Values(Kind{"Q4_K", WeightDtype::q4_k, {0, 2}},
                                           Kind{"Q5_K", WeightDtype::q5_k, {0, 2}},
                                           Kind{"Q6_K", WeightDtype::q6_k, {208}}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(BlocksTest, RowsAreWhatTheFileHoldsBitForBit) {
  constexpr int64_t kOut = 37, kIn = 768;
  const std::vector<uint8_t> bytes = blocks(kOut * kIn / 256, false);
  std::vector<float> numbers(kOut * kIn);
  type().decode(bytes.data(), kOut * kIn / 256, numbers.data());
  const Tensor rows = packed(bytes, kOut, kIn).rows(Tensor::arange(kOut));
  EXPECT_EQ(std::memcmp(rows.data<float>(), numbers.data(), numbers.size() * sizeof(float)), 0);
}

TEST_P(BlocksTest, ProductsHaveTheSameBitsEverywhereAndAloneAndAreNear) {
  for (const bool extreme : {false, true}) {
    for (const int64_t rows : {1, 2, 3, 7, 33}) {
      constexpr int64_t kOut = 149, kIn = 512;
      const std::vector<uint8_t> bytes = blocks(kOut * kIn / 256, extreme);
      const nn::PackedLinear weight = packed(bytes, kOut, kIn);
      Tensor x = Tensor::full({rows, kIn}, 127);
      if (!extreme) fill_normal(x, 0, 1, RandomStream{5, 0});
      const std::vector<float> w = weight.rows(Tensor::arange(kOut)).to_vector<float>();
      std::vector<float> first;
      for (const kernels::Isa isa : {kernels::Isa::baseline, kernels::Isa::avx2, kernels::Isa::avx512}) {
        if (isa > kernels::best_isa()) continue;
        kernels::set_isa(isa);
        for (const int threads : {1, 3}) {
          set_num_threads(threads);
          const std::vector<float> y = weight(x, Tensor()).to_vector<float>();
          if (first.empty()) first = y;
          ASSERT_EQ(y, first) << kernels::isa_name(isa) << ' ' << rows;
        }
      }
      const Tensor last = x.as_strided({1, kIn}, {kIn, 1}, (rows - 1) * kIn).contiguous();
      EXPECT_EQ(weight(last, Tensor()).to_vector<float>(),
                std::vector<float>(first.end() - kOut, first.end()));
      for (int64_t j = 0; j < kOut; ++j) {
        double exact = 0, size = 0;
        for (int64_t k = 0; k < kIn; ++k) {
          const double term = static_cast<double>(x.data<float>()[k]) * w[static_cast<size_t>(j * kIn + k)];
          exact += term, size += term * term;
        }
        EXPECT_NEAR(first[static_cast<size_t>(j)], exact, 0.03 * std::sqrt(size)) << j;
      }
    }
  }
}

TEST_P(BlocksTest, ItTakesItsBitsAndCannotBeMadeOfFloats) {
  const std::vector<uint8_t> bytes = blocks(160, false);
  const double bits = 8.0 * static_cast<double>(packed(bytes, 32, 1280).bytes()) / (32 * 1280);
  EXPECT_NEAR(bits, 8.0 * static_cast<double>(type().bytes) / 256, 0.13);
  EXPECT_THROW(nn::PackedLinear(Tensor::zeros({4, 256}), GetParam().dtype), ValueError);
}

}  // namespace
}  // namespace multihead::models
