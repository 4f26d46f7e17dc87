#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/attention/program/program-inl.h"

namespace multihead::program {
namespace {

class RandomMask {
 public:
  explicit RandomMask(uint32_t seed) : rng_(seed) {}

  ScoreProgram draw() {
    code_ = {{.op = Op::query}, {.op = Op::key}, {.op = Op::head}, {.op = Op::row}};
    for (int i = 0; i < 3; ++i)
      code_.push_back({.op = Op::const_i, .number = static_cast<double>(below(41)) - 20});
    static const std::vector<std::string> names = {
        "add_i", "sub_i", "mul_i", "shl_i", "shr_i", "min_i", "max_i", "abs_i", "neg_i",    "and_i", "or_i",
        "xor_i", "not_b", "eq_i",  "ne_i",  "lt_i",  "le_i",  "div_i", "mod_i", "select_i", "table"};
    for (int i = 0; i < 7; ++i) {
      const std::string& name = names[below(names.size())];
      if (name == "table") {
        code_.push_back({.op = Op::bound_i, .a = any(), .number = 30});
        code_.push_back({.op = Op::gather_i, .a = last(), .table = 0});
      } else if (name == "div_i" || name == "mod_i") {
        code_.push_back({.op = Op::const_i, .number = static_cast<double>(1 + below(9))});
        code_.push_back({.op = parse_op(name), .a = any(), .b = last()});
      } else {
        const size_t operands = operands_of(parse_op(name)).size();
        code_.push_back({.op = parse_op(name),
                         .a = any(),
                         .b = operands > 1 ? any() : -1,
                         .c = operands > 2 ? any() : -1});
      }
    }
    const char* last_op[] = {"lt_i", "le_i", "eq_i", "ne_i", "and_i"};
    code_.push_back({.op = parse_op(last_op[below(5)]), .a = last(), .b = any()});
    std::vector<int32_t> table(30);
    for (int32_t& x : table) x = static_cast<int32_t>(below(25)) - 9;
    return {code_, {Tensor::of<int32_t>({30}, table)}};
  }
  size_t below(size_t n) { return rng_() % n; }

 private:
  int32_t last() const { return static_cast<int32_t>(code_.size()) - 1; }
  int32_t any() { return static_cast<int32_t>(below(code_.size())); }

  std::mt19937 rng_;
  std::vector<Instruction> code_;
};

TEST(IntervalsTest, RangesHoldWhateverAProgramComputes) {
  RandomMask random(9);
  int decided = 0;
  constexpr int kPrograms = 3000;
  for (int n = 0; n < kPrograms; ++n) {
    const ScoreProgram program = random.draw();
    const int64_t queries = 1 + static_cast<int64_t>(random.below(20)),
                  keys = 1 + static_cast<int64_t>(random.below(20)),
                  offset = static_cast<int64_t>(random.below(9));
    std::vector<uint8_t> keep(static_cast<size_t>(queries * keys), 9);
    const kernels::KeepTile tile{keep.data(),
                                 queries,
                                 0,
                                 static_cast<int64_t>(random.below(3)),
                                 static_cast<int64_t>(random.below(40)),
                                 queries,
                                 static_cast<int64_t>(random.below(40)),
                                 keys};
    program.fill(tile, offset);
    const auto kept = std::count(keep.begin(), keep.end(), uint8_t{1});
    ASSERT_EQ(kept + std::count(keep.begin(), keep.end(), uint8_t{0}), queries * keys);
    const BlockClass found = program.classify(tile, offset);
    ASSERT_TRUE(found != BlockClass::empty || kept == 0) << "program " << n;
    ASSERT_TRUE(found != BlockClass::full || kept == queries * keys) << "program " << n;
    decided += found != BlockClass::partial ? 1 : 0;
  }
  EXPECT_GT(decided, kPrograms / 4);
}

TEST(IntervalsTest, BlocksOfAMaskAreClassifiedExactly) {
  // key <= query, and neither of them at 100
  const ScoreProgram program({{.op = Op::query}, {.op = Op::key}, {.op = Op::le_i, .a = 1, .b = 0}}, {});
  const Tensor classes = program.block_classes({.batch = 2, .head = 3, .queries = 8, .keys = 8}, 4, 4);
  EXPECT_EQ(classes.shape(), Shape({1, 1, 2, 2}));
  EXPECT_EQ(classes.to_vector<int32_t>(), (std::vector<int32_t>{2, 0, 1, 2}));
}

// A block whose table says the same for every index within it is still looked at where there are others: those are errors.
TEST(IntervalsTest, IndicesOutsideATableAreLookedAt) {
  const ScoreProgram program(
      {{.op = Op::key}, {.op = Op::bound_i, .a = 0, .number = 3}, {.op = Op::gather_i, .a = 1, .table = 0}},
      {Tensor::zeros({3}, Dtype::i32)});
  const auto classify = [&](int64_t key, int64_t keys) {
    return program.classify({nullptr, 0, 0, 0, 0, 4, key, keys}, 0);
  };
  EXPECT_EQ(classify(0, 3), BlockClass::empty);
  EXPECT_EQ(classify(0, 4), BlockClass::partial);
}

TEST(IntervalsTest, PlacesAreThoseOfTheTile) {
  for (const char* name : {"batch", "head", "query", "row", "key"}) {
    std::vector<double> tile(70 * 9);
    const ScoreProgram program({{.op = parse_op(name)}, {.op = Op::to_f, .a = 0}}, {});
    program.apply<double>({tile.data(), 70, 2, 3, 64, 70, 16, 9}, 5, nullptr);
    for (int k = 0; k < 9; ++k) {
      for (int q = 0; q < 70; ++q) {
        const std::map<std::string, int> expected = {
            {"batch", 2}, {"head", 3}, {"query", 69 + q}, {"row", 64 + q}, {"key", 16 + k}};
        ASSERT_EQ(tile[static_cast<size_t>(k * 70 + q)], expected.at(name)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace multihead::program
