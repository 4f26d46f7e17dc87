#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/attention/program/program-inl.h"
#include "multihead/testing/everywhere.h"

namespace multihead::program {
namespace {

constexpr uint64_t kKey = (uint64_t{5} << 40) + 12345;

TEST(RandomTest, NumbersAreWordsOfPhilox) {
  const std::array<uint32_t, 2> key = {12345, 5 << 8};
  const auto word = [](uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; };
  EXPECT_EQ(random(kKey, 7), word(philox({1, ~0u, ~0u, ~0u}, key)[3]));
  EXPECT_EQ(random(kKey, 3, 8), word(philox({3, 2, ~0u, ~0u}, key)[0]));
  EXPECT_EQ(random(kKey, 3, 4, 9), word(philox({3, 4, 2, ~0u}, key)[1]));
  EXPECT_EQ(random(kKey, int64_t{3}, 4, 5, -2), word(philox({3, 4, 5, ~0u}, key)[2]));  // -2 = 4 · -1 + 2
  std::set<float> numbers;
  double sum = 0;
  for (int j = 0; j < 4096; ++j) {
    const float x = random(1, 0, 0, 2, j);
    ASSERT_TRUE(x >= 0 && x < 1);
    numbers.insert(x);
    sum += x;
  }
  EXPECT_GT(numbers.size(), 4090U);
  EXPECT_NEAR(sum / 4096, 0.5, 0.02);
}

// Registers: 0 batch, 1 head, 2 query, 3 key, 4 query + key.
ScoreProgram program_of_indices(const std::vector<int32_t>& at) {
  const auto operand = [&](size_t n) { return n < at.size() ? at[n] : -1; };
  return {{{.op = Op::batch},
           {.op = Op::head},
           {.op = Op::query},
           {.op = Op::key},
           {.op = Op::add_i, .a = 2, .b = 3},
           {.op = Op::random_f,
            .a = operand(0),
            .b = operand(1),
            .c = operand(2),
            .d = operand(3),
            .number = kKey}},
          {}};
}

float plain_random(const std::vector<int64_t>& at) {
  switch (at.size()) {
    case 1:
      return random(kKey, at[0]);
    case 2:
      return random(kKey, at[0], at[1]);
    case 3:
      return random(kKey, at[0], at[1], at[2]);
    default:
      return random(kKey, at[0], at[1], at[2], at[3]);
  }
}

template <class T>
void expect_random(const std::vector<int32_t>& registers, int64_t first_key) {
  const int64_t queries = 70, keys = 13, offset = 3;
  const ScoreProgram program = program_of_indices(registers);
  std::vector<T> tile(static_cast<size_t>(queries * keys));
  program.apply<T>({tile.data(), queries, 2, 1, 64, queries, first_key, keys}, offset, nullptr);
  for (int64_t k = 0; k < keys; ++k) {
    for (int64_t q = 0; q < queries; ++q) {
      const int64_t places[] = {2, 1, 64 + q + offset, first_key + k, 64 + q + offset + first_key + k};
      std::vector<int64_t> at;
      for (const int32_t r : registers) at.push_back(places[r]);
      ASSERT_EQ(tile[static_cast<size_t>(k * queries + q)], static_cast<T>(plain_random(at)))
          << registers.size() << " indices, " << q << ", " << k;
    }
  }
}

TEST(RandomTest, TracedFunctionsGiveTheSameNumbers) {
  const testing::EverywhereScope scope;
  for (const kernels::Isa isa : kernels::kIsas) {
    if (isa > kernels::best_isa()) continue;
    kernels::set_isa(isa);
    const std::vector<std::vector<int32_t>> indices = {{3},    {1},       {0, 1},       {3, 2},       {2, 3},
                                                       {4, 3}, {1, 2, 3}, {0, 1, 2, 3}, {0, 1, 3, 2}, {3, 3}};
    for (const auto& registers : indices) {
      for (const int64_t first_key : {0, 6, 8}) {
        expect_random<float>(registers, first_key);
        expect_random<double>(registers, first_key);
      }
    }
  }
}

TEST(RandomTest, ItIsAConstantToGradients) {
  const ScoreProgram program({{.op = Op::score},
                              {.op = Op::key},
                              {.op = Op::random_f, .a = 1, .number = 9},
                              {.op = Op::mul_f, .a = 0, .b = 2}},
                             {});
  const Tensor scores = Tensor::of<double>({1, 1, 2, 1}, {2, 3}),
               d = Tensor::of<double>({1, 1, 2, 1}, {1, 1});
  program.differentiate<double>(scores, d);
  EXPECT_EQ(d.to_vector<double>(), (std::vector<double>{random(9, 0), random(9, 1)}));
  EXPECT_THROW(ScoreProgram({{.op = Op::score}, {.op = Op::random_f, .a = 0}}, {}), ValueError);
  EXPECT_THROW(ScoreProgram({{.op = Op::random_f}}, {}), ValueError);
}

TEST(RandomTest, MasksInCppAndTracedOnesDropTheSameKeys) {
  Rng rng(1);
  const Tensor q = rand({2, 4, 70, 8}, rng), k = rand({2, 2, 300, 8}, rng), v = rand({2, 2, 300, 8}, rng);
  const auto drop = [](ScoreIndex at) { return random(kKey, at.batch, at.head, at.query, at.key) >= 0.25f; };
  const auto traced = std::make_shared<const ScoreProgram>(
      ScoreProgram({{.op = Op::batch},
                    {.op = Op::head},
                    {.op = Op::query},
                    {.op = Op::key},
                    {.op = Op::random_f, .a = 0, .b = 1, .c = 2, .d = 3, .number = kKey},
                    {.op = Op::const_f, .number = 0.25},
                    {.op = Op::le_f, .a = 5, .b = 4}},
                   {}));
  const Tensor out = attention(q, k, v, {.mask = mask_mod(drop)});
  EXPECT_EQ(attention(q, k, v, {.mask = to_mask(traced, Align::end)}).to_vector<float>(),
            out.to_vector<float>());
  EXPECT_NE(attention(q, k, v).to_vector<float>(), out.to_vector<float>());
}

}  // namespace
}  // namespace multihead::program
