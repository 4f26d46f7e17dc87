#include "multihead/ops/attention/program/program-inl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/testing/everywhere.h"

namespace multihead::program {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// --- one operation on numbers ------------------------------------------------------------------------------

using Plain = std::function<double(double a, double b, double c)>;

struct NumberCase {
  Plain value;
  int operands = 1;
  double low = -3, high = 3;
  double number = 0;
  double ulp = 0;  // of f32 against the C library's
};

double signum(double x) { return static_cast<double>(x > 0) - static_cast<double>(x < 0); }
double floored(double a, double b) { return std::floor(a / b); }

const std::map<std::string, NumberCase>& number_cases() {
  static const std::map<std::string, NumberCase> cases = {
      {"copy_f", {[](double a, double, double) { return a; }}},
      {"detach_f", {[](double a, double, double) { return a; }}},
      {"neg_f", {[](double a, double, double) { return -a; }}},
      {"abs_f", {[](double a, double, double) { return std::abs(a); }}},
      {"sign_f", {[](double a, double, double) { return signum(a); }}},
      {"exp_f", {[](double a, double, double) { return std::exp(a); }, 1, -80, 80, 0, 2}},
      {"exp2_f", {[](double a, double, double) { return std::exp2(a); }, 1, -80, 80, 0, 1}},
      {"expm1_f", {[](double a, double, double) { return std::expm1(a); }, 1, -3, 3, 0, 1}},
      {"log_f", {[](double a, double, double) { return std::log(a); }, 1, 1e-3, 9, 0, 1}},
      {"log2_f", {[](double a, double, double) { return std::log2(a); }, 1, 1e-3, 9, 0, 1}},
      {"log1p_f", {[](double a, double, double) { return std::log1p(a); }, 1, -0.9, 9, 0, 1}},
      {"sqrt_f", {[](double a, double, double) { return std::sqrt(a); }, 1, 1e-3, 9}},
      {"rsqrt_f", {[](double a, double, double) { return 1 / std::sqrt(a); }, 1, 1e-3, 9, 0, 1.5}},
      {"tanh_f", {[](double a, double, double) { return std::tanh(a); }, 1, -12, 12, 0, 2}},
      {"sigmoid_f", {[](double a, double, double) { return 1 / (1 + std::exp(-a)); }, 1, -60, 60, 0, 3}},
      {"sin_f", {[](double a, double, double) { return std::sin(a); }, 1, -9, 9, 0, 1}},
      {"cos_f", {[](double a, double, double) { return std::cos(a); }, 1, -9, 9, 0, 1}},
      {"tan_f", {[](double a, double, double) { return std::tan(a); }, 1, -1.4, 1.4, 0, 1}},
      {"erf_f", {[](double a, double, double) { return std::erf(a); }, 1, -4, 4, 0, 1}},
      {"pow_f", {[](double a, double, double) { return std::pow(a, 2.5); }, 1, 1e-2, 9, 2.5, 1}},
      {"floor_f", {[](double a, double, double) { return std::floor(a); }}},
      {"ceil_f", {[](double a, double, double) { return std::ceil(a); }}},
      {"trunc_f", {[](double a, double, double) { return std::trunc(a); }}},
      {"round_f", {[](double a, double, double) { return std::nearbyint(a); }}},
      {"add_f", {[](double a, double b, double) { return a + b; }, 2}},
      {"sub_f", {[](double a, double b, double) { return a - b; }, 2}},
      {"mul_f", {[](double a, double b, double) { return a * b; }, 2}},
      {"div_f", {[](double a, double b, double) { return a / b; }, 2}},
      {"floordiv_f", {[](double a, double b, double) { return floored(a, b); }, 2}},
      {"mod_f", {[](double a, double b, double) { return a - floored(a, b) * b; }, 2, -3, 3, 0, 16}},
      {"fmod_f", {[](double a, double b, double) { return std::fmod(a, b); }, 2}},
      {"power_f", {[](double a, double b, double) { return std::pow(a, b); }, 2, 0.2, 3, 0, 1}},
      {"min_f", {[](double a, double b, double) { return std::min(a, b); }, 2}},
      {"max_f", {[](double a, double b, double) { return std::max(a, b); }, 2}},
      {"clamp_f",
       {[](double a, double b, double c) { return std::min(std::max(a, std::min(b, c)), c); }, 3, -3, 3, 1}},
  };
  return cases;
}

// Operand a is the score, b a table by the query, c one by the key.
struct Sizes {
  int64_t queries = 70, keys = 11;
};

std::vector<double> values_of(const NumberCase& x, int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> draw(x.low, x.high);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& v : values) v = static_cast<float>(draw(rng));  // the same number in f32
  return values;
}

Tensor table_of(const std::vector<double>& values) {
  return Tensor::of({static_cast<int64_t>(values.size())}, values);
}

ScoreProgram program_of_case(const std::string& name, const NumberCase& x, const Sizes& sizes,
                             const std::vector<Tensor>& tables, bool learns = false) {
  std::vector<Instruction> code = {
      {.op = Op::score},
      {.op = Op::query},
      {.op = Op::key},
      {.op = Op::bound_i, .a = 1, .number = static_cast<double>(sizes.queries)},
      {.op = Op::bound_i, .a = 2, .number = static_cast<double>(sizes.keys)},
      {.op = Op::gather_f, .a = 3, .table = 0},
      {.op = Op::gather_f, .a = 4, .table = 1},
  };
  code.push_back({.op = parse_op(name),
                  .a = 0,
                  .b = x.operands > 1 ? 5 : -1,
                  .c = x.operands > 2 ? 6 : -1,
                  .number = x.number});
  std::vector<ScoreProgram::Learnt> learnt;
  if (learns) learnt = {{0, tables[0]}, {1, tables[1]}};
  return {std::move(code), tables, std::move(learnt)};
}

template <class T>
std::vector<T> apply(const ScoreProgram& program, const std::vector<double>& scores, const Sizes& sizes) {
  const int64_t stride = sizes.queries + 3;
  std::vector<T> tile(static_cast<size_t>(stride * sizes.keys), T(777));
  for (int64_t k = 0; k < sizes.keys; ++k) {
    for (int64_t q = 0; q < sizes.queries; ++q) {
      tile[static_cast<size_t>(k * stride + q)] =
          static_cast<T>(scores[static_cast<size_t>(k * sizes.queries + q)]);
    }
  }
  program.apply<T>({tile.data(), stride, 0, 0, 0, sizes.queries, 0, sizes.keys}, 0, nullptr);
  std::vector<T> results;
  for (int64_t k = 0; k < sizes.keys; ++k) {
    const auto row = tile.begin() + k * stride;
    results.insert(results.end(), row, row + sizes.queries);
    for (int64_t q = sizes.queries; q < stride; ++q) EXPECT_EQ(row[q], T(777)) << "written beyond the tile";
  }
  return results;
}

template <class T>
void expect_values(const std::string& name, const NumberCase& x) {
  const Sizes sizes;
  const auto a = values_of(x, sizes.queries * sizes.keys, 1), b = values_of(x, sizes.queries, 2),
             c = values_of(x, sizes.keys, 3);
  const std::vector<T> got = apply<T>(program_of_case(name, x, sizes, {table_of(b), table_of(c)}), a, sizes);
  for (size_t i = 0; i < got.size(); ++i) {
    const auto queries = static_cast<size_t>(sizes.queries);
    const auto expected = static_cast<T>(x.value(a[i], b[i % queries], c[i / queries]));
    const T ulp = std::numeric_limits<T>::epsilon() * std::max(std::abs(expected), T(1e-30));
    ASSERT_LE(std::abs(got[i] - expected), (std::is_same_v<T, float> ? x.ulp
                                            : x.ulp > 2              ? x.ulp
                                                                     : 1) *
                                               ulp)
        << name << "(" << a[i] << ", " << b[i % queries] << ", " << c[i / queries] << ")";
  }
}

TEST(ProgramTest, OperationsOnNumbersEqualPlainLoops) {
  const testing::EverywhereScope scope;
  for (const kernels::Isa isa : kernels::kIsas) {
    if (isa > kernels::best_isa()) continue;
    kernels::set_isa(isa);
    for (const auto& [name, x] : number_cases()) {
      expect_values<float>(name, x);
      expect_values<double>(name, x);
    }
  }
}

TEST(ProgramTest, GradientsOfOperationsEqualDifferences) {
  const Sizes sizes{9, 5};
  for (const auto& [name, wide] : number_cases()) {
    NumberCase x = wide;
    x.low = std::max(x.low, -4.0);
    x.high = std::min(x.high, 4.0);
    const int64_t count = sizes.queries * sizes.keys;
    const std::vector<double> a = values_of(x, count, 4);
    std::vector<double> b = values_of(x, sizes.queries, 5), c = values_of(x, sizes.keys, 6);
    const NumberCase unit{nullptr, 1, 0.5, 2};
    const std::vector<double> seed = values_of(unit, count, 7);
    const bool is_constant = name == "detach_f" || name == "floordiv_f";
    const auto value = [&](size_t i, double da, double db, double dc) {
      if (is_constant) return 0.0;
      const auto queries = static_cast<size_t>(sizes.queries);
      return seed[i] * x.value(a[i] + da, b[i % queries] + db, c[i / queries] + dc);
    };
    const Tensor scores = Tensor::of({1, 1, sizes.keys, sizes.queries}, a),
                 gradients = Tensor::of({1, 1, sizes.keys, sizes.queries}, seed);
    const std::vector<double> sums = program_of_case(name, x, sizes, {table_of(b), table_of(c)}, true)
                                         .differentiate<double>(scores, gradients);
    std::vector<double> expected(sums.size(), 0.0);
    constexpr double kStep = 1e-6;
    for (size_t i = 0; i < a.size(); ++i) {
      const double slope = (value(i, kStep, 0, 0) - value(i, -kStep, 0, 0)) / (2 * kStep);
      ASSERT_NEAR(gradients.data<double>()[i], slope, 1e-7 * (1 + std::abs(slope)))
          << name << " at " << a[i] << ", " << i;
      const auto queries = static_cast<size_t>(sizes.queries);
      expected[i % queries] += (value(i, 0, kStep, 0) - value(i, 0, -kStep, 0)) / (2 * kStep);
      expected[queries + i / queries] += (value(i, 0, 0, kStep) - value(i, 0, 0, -kStep)) / (2 * kStep);
    }
    for (size_t n = 0; n < sums.size(); ++n) {
      ASSERT_NEAR(sums[n], expected[n], 1e-7 * (1 + std::abs(expected[n])))
          << name << ", table element " << n;
    }
  }
}

// One value of a program of the score and of b, and its derivatives by both.
std::vector<double> at_corner(const std::string& name, double a, double b, double number = 0) {
  const bool one = operands_of(parse_op(name)) == "f";
  const Tensor table = Tensor::of<double>({1}, {b});
  const ScoreProgram program({{.op = Op::score},
                              {.op = Op::const_i},
                              {.op = Op::gather_f, .a = 1, .table = 0},
                              {.op = parse_op(name), .a = 0, .b = one ? -1 : 2, .number = number}},
                             {table}, {{0, table}});
  const Tensor score = Tensor::of<double>({1, 1, 1, 1}, {a}), d = Tensor::of<double>({1, 1, 1, 1}, {1});
  const std::vector<double> sums = program.differentiate<double>(score, d);
  return {score.data<double>()[0], d.data<double>()[0], sums[0]};
}

TEST(ProgramTest, CornersFollowPyTorch) {
  EXPECT_EQ(at_corner("max_f", 2, 2), (std::vector<double>{2, 0.5, 0.5}));
  EXPECT_EQ(at_corner("min_f", 2, 2), (std::vector<double>{2, 0.5, 0.5}));
  EXPECT_TRUE(std::isnan(at_corner("max_f", kNaN, 1)[0]));
  EXPECT_TRUE(std::isnan(at_corner("min_f", 1, kNaN)[0]));
  EXPECT_EQ(at_corner("abs_f", 0, 0), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(at_corner("clamp_f", 1, 1), (std::vector<double>{1, 0, 0}));         // a plain bound
  EXPECT_EQ(at_corner("clamp_f", 1, 1, 1), (std::vector<double>{1, 0.5, 0.5}));  // a tensor's
  EXPECT_EQ(at_corner("clamp_f", 0, 1, 1), (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(at_corner("power_f", 0, 2), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(at_corner("power_f", 3, 0)[1], 0);
  EXPECT_EQ(at_corner("pow_f", 0, 0, 0), (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(at_corner("exp_f", -kInfinity, 0), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(at_corner("exp_f", 1000, 0)[0], kInfinity);
  EXPECT_EQ(at_corner("tanh_f", kInfinity, 0), (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(at_corner("sigmoid_f", -1000, 0), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(at_corner("floordiv_f", -7, 2)[0], -4);
  EXPECT_EQ(at_corner("mod_f", -7, 2)[0], 1);
  EXPECT_EQ(at_corner("fmod_f", -7, 2)[0], -1);
  EXPECT_EQ(at_corner("floordiv_f", 1, 0)[0], kInfinity);
  EXPECT_EQ(at_corner("round_f", 2.5, 0)[0], 2);
}

TEST(ProgramTest, ABranchThatIsNotChosenGetsZeros) {
  const ScoreProgram program({{.op = Op::score},
                              {.op = Op::const_f, .number = 0},
                              {.op = Op::lt_f, .a = 1, .b = 0},
                              {.op = Op::mul_f, .a = 0, .b = 0},
                              {.op = Op::neg_f, .a = 0},
                              {.op = Op::select_f, .a = 2, .b = 3, .c = 4}},
                             {});
  const Tensor scores = Tensor::of<double>({1, 1, 1, 4}, {-2, -1, 1, 3});
  const Tensor d = Tensor::of<double>({1, 1, 1, 4}, {1, 1, 1, 1});
  program.differentiate<double>(scores, d);
  EXPECT_EQ(scores.to_vector<double>(), (std::vector<double>{2, 1, 1, 9}));
  EXPECT_EQ(d.to_vector<double>(), (std::vector<double>{-1, -1, 2, 6}));
}

// sqrt(score) has an infinite slope at 0, and none beyond; nothing flows through a comparison or an integer.
TEST(ProgramTest, WhatOnlyConditionsReadHasNoGradient) {
  const ScoreProgram program({{.op = Op::score},
                              {.op = Op::sqrt_f, .a = 0},
                              {.op = Op::const_f, .number = 0.5},
                              {.op = Op::lt_f, .a = 2, .b = 1},
                              {.op = Op::to_i, .a = 1},
                              {.op = Op::to_f, .a = 4},
                              {.op = Op::const_f, .number = 3},
                              {.op = Op::mul_f, .a = 0, .b = 6},
                              {.op = Op::select_f, .a = 3, .b = 7, .c = 0},
                              {.op = Op::add_f, .a = 8, .b = 5}},
                             {});
  const Tensor scores = Tensor::of<double>({1, 1, 1, 3}, {0, 0.01, 4});
  const Tensor d = Tensor::of<double>({1, 1, 1, 3}, {1, 1, 1});
  program.differentiate<double>(scores, d);
  EXPECT_EQ(scores.to_vector<double>(), (std::vector<double>{0, 0.01, 14}));
  EXPECT_EQ(d.to_vector<double>(), (std::vector<double>{1, 1, 3}));
}

TEST(ProgramTest, NumbersAreRoundedToTheirKind) {
  const NumberCase x{nullptr, 1, -7e4, 7e4};
  const Sizes sizes{64, 16};
  std::vector<double> scores = values_of(x, sizes.queries * sizes.keys, 8);
  for (size_t i = 0; i < 500; ++i) scores[i] *= 1e-9;  // subnormal in f16
  scores[0] = kInfinity;
  scores[1] = 65519;
  scores[2] = 65520;
  for (const auto& [kind, dtype] : {std::pair{Kind::f16, Dtype::f16}, {Kind::bf16, Dtype::bf16}}) {
    const ScoreProgram program({{.op = Op::score}, {.op = Op::copy_f, .a = 0, .kind = kind}}, {});
    const std::vector<float> got = apply<float>(program, scores, sizes);
    const Tensor all = table_of(scores).to(Dtype::f32).to(dtype).to(Dtype::f32);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], all.data<float>()[i]) << scores[i];
  }
  const ScoreProgram wide({{.op = Op::score}, {.op = Op::copy_f, .a = 0, .kind = Kind::f64}}, {});
  EXPECT_TRUE(wide.is_wide());
  EXPECT_FALSE(wide.is_uniform(Dtype::f32));
}

// --- one operation on integers -----------------------------------------------------------------------------

using PlainInteger = std::function<int64_t(int64_t a, int64_t b, int64_t c)>;

int64_t floor_of(int64_t a, int64_t b) {
  if (b == 0) return 0;
  return static_cast<int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
}

const std::map<std::string, PlainInteger>& integer_cases() {
  using I = int64_t;
  static const std::map<std::string, PlainInteger> cases = {
      {"add_i", [](I a, I b, I) { return a + b; }},
      {"sub_i", [](I a, I b, I) { return a - b; }},
      {"mul_i", [](I a, I b, I) { return a * b; }},
      {"div_i", [](I a, I b, I) { return floor_of(a, b); }},
      {"mod_i", [](I a, I b, I) { return a - floor_of(a, b) * b; }},
      {"nonzero_i", [](I a, I, I) { return a; }},
      {"shl_i", [](I a, I b, I) { return b < 0 ? 0 : a * (I{1} << b); }},
      {"shr_i", [](I a, I b, I) { return b < 0 ? (a < 0 ? I{-1} : I{0}) : a >> b; }},
      {"min_i", [](I a, I b, I) { return std::min(a, b); }},
      {"max_i", [](I a, I b, I) { return std::max(a, b); }},
      {"abs_i", [](I a, I, I) { return std::abs(a); }},
      {"neg_i", [](I a, I, I) { return -a; }},
      {"and_i", [](I a, I b, I) { return a & b; }},
      {"or_i", [](I a, I b, I) { return a | b; }},
      {"xor_i", [](I a, I b, I) { return a ^ b; }},
      {"not_b", [](I a, I, I) { return I{a == 0}; }},
      {"eq_i", [](I a, I b, I) { return I{a == b}; }},
      {"ne_i", [](I a, I b, I) { return I{a != b}; }},
      {"lt_i", [](I a, I b, I) { return I{a < b}; }},
      {"le_i", [](I a, I b, I) { return I{a <= b}; }},
      {"select_i", [](I a, I b, I c) { return a != 0 ? b : c; }},
  };
  return cases;
}

// a = query - 30, b = key - 5, c = 3 · a, from query offset 4 on; the result as a number.
ScoreProgram program_of_integers(const std::string& name) {
  const auto operands = static_cast<int>(operands_of(parse_op(name)).size());
  return {{{.op = Op::query},
           {.op = Op::const_i, .number = 30},
           {.op = Op::sub_i, .a = 0, .b = 1},
           {.op = Op::key},
           {.op = Op::const_i, .number = 5},
           {.op = Op::sub_i, .a = 3, .b = 4},
           {.op = Op::const_i, .number = 3},
           {.op = Op::mul_i, .a = 2, .b = 6},
           {.op = parse_op(name), .a = 2, .b = operands > 1 ? 5 : -1, .c = operands > 2 ? 7 : -1},
           {.op = Op::to_f, .a = 8}},
          {}};
}

TEST(ProgramTest, OperationsOnIntegersEqualPlainLoops) {
  const testing::EverywhereScope scope;
  const int64_t queries = 75, keys = 13, offset = 4;
  for (const kernels::Isa isa : kernels::kIsas) {
    if (isa > kernels::best_isa()) continue;
    kernels::set_isa(isa);
    for (const auto& [name, plain] : integer_cases()) {
      std::vector<double> tile(static_cast<size_t>(queries * keys));
      const ScoreProgram program = program_of_integers(name);
      program.apply<double>({tile.data(), queries, 0, 0, 0, queries, 0, keys}, offset, nullptr);
      for (int64_t k = 0; k < keys; ++k) {
        for (int64_t q = 0; q < queries; ++q) {
          const int64_t a = q + offset - 30, b = k - 5;
          ASSERT_EQ(tile[static_cast<size_t>(k * queries + q)], static_cast<double>(plain(a, b, 3 * a)))
              << name << "(" << a << ", " << b << ")";
        }
      }
      EXPECT_EQ(program.take_faults(), name == "nonzero_i" ? kDivisionByZero : 0) << name;
    }
  }
}

int fault_of(std::vector<Instruction> code, std::vector<Tensor> tables = {}) {
  code.push_back({.op = Op::to_f, .a = static_cast<int32_t>(code.size()) - 1});
  const ScoreProgram program(std::move(code), std::move(tables));
  std::vector<float> tile(9 * 5);
  program.apply<float>({tile.data(), 9, 0, 0, 0, 9, 0, 5}, 0, nullptr);
  const int faults = program.take_faults();
  EXPECT_EQ(program.take_faults(), 0);
  return faults;
}

TEST(ProgramTest, FaultsAreThoseOfPairsThatExist) {
  const auto with = [](double number) { return Instruction{.op = Op::const_i, .number = number}; };
  EXPECT_EQ(fault_of({{.op = Op::query}, {.op = Op::bound_i, .a = 0, .number = 9}}), 0);
  EXPECT_EQ(fault_of({{.op = Op::query}, {.op = Op::bound_i, .a = 0, .number = 8}}), kOutOfRange);
  EXPECT_EQ(fault_of({{.op = Op::key}, {.op = Op::bound_i, .a = 0, .number = 5}}), 0);
  EXPECT_EQ(fault_of({{.op = Op::key}, {.op = Op::bound_i, .a = 0, .number = 4}}), kOutOfRange);
  EXPECT_EQ(fault_of({{.op = Op::key}, {.op = Op::nonzero_i, .a = 0}}), kDivisionByZero);
  EXPECT_EQ(fault_of({with(2147483647), {.op = Op::query}, {.op = Op::add_i, .a = 0, .b = 1}}), kWideInteger);
  EXPECT_EQ(fault_of({with(2147483639), {.op = Op::query}, {.op = Op::add_i, .a = 0, .b = 1}}), 0);
  EXPECT_EQ(fault_of({with(1 << 28), {.op = Op::query}, {.op = Op::mul_i, .a = 0, .b = 1}}), kWideInteger);
  EXPECT_EQ(fault_of({with(1), with(31), {.op = Op::shl_i, .a = 0, .b = 1}}), kWideInteger);
  EXPECT_EQ(fault_of({with(-2147483648.0), {.op = Op::neg_i, .a = 0}}), kWideInteger);
  EXPECT_EQ(fault_of({with(-2147483648.0), {.op = Op::abs_i, .a = 0}}), kWideInteger);
  EXPECT_EQ(fault_of({{.op = Op::const_f, .number = 3e9}, {.op = Op::to_i, .a = 0}}), kWideInteger);
  EXPECT_EQ(fault_of({{.op = Op::const_f, .number = -2.7}, {.op = Op::to_i, .a = 0}}), 0);
}

TEST(ProgramTest, TablesAreReadByRowsAndElementByElement) {
  std::vector<double> values(400);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) + 0.5;
  // query + key + 3 (neighbours), query - key + 50, key - query + 100, 3 · query (no neighbours), key alone
  struct Case {
    int64_t query, key, constant;
  };
  for (const auto& [by_query, by_key, constant] :
       {Case{1, 1, 3}, {1, -1, 50}, {-1, 1, 100}, {3, 0, 0}, {0, 1, 7}}) {
    const ScoreProgram program({{.op = Op::query},
                                {.op = Op::const_i, .number = static_cast<double>(by_query)},
                                {.op = Op::mul_i, .a = 0, .b = 1},
                                {.op = Op::key},
                                {.op = Op::const_i, .number = static_cast<double>(by_key)},
                                {.op = Op::mul_i, .a = 3, .b = 4},
                                {.op = Op::add_i, .a = 2, .b = 5},
                                {.op = Op::const_i, .number = static_cast<double>(constant)},
                                {.op = Op::add_i, .a = 6, .b = 7},
                                {.op = Op::bound_i, .a = 8, .number = 400},
                                {.op = Op::gather_f, .a = 9, .table = 0}},
                               {table_of(values)});
    for (const int64_t queries : {64, 70, 5}) {
      std::vector<double> tile(static_cast<size_t>(queries * 13));
      program.apply<double>({tile.data(), queries, 0, 0, 0, queries, 0, 13}, 0, nullptr);
      for (int64_t k = 0; k < 13; ++k) {
        for (int64_t q = 0; q < queries; ++q) {
          const int64_t at = by_query * q + by_key * k + constant;
          ASSERT_EQ(tile[static_cast<size_t>(k * queries + q)], static_cast<double>(at) + 0.5)
              << q << ", " << k;
        }
      }
      EXPECT_EQ(program.take_faults(), 0);
    }
  }
}

// --- the list, and errors ----------------------------------------------------------------------------------

TEST(ProgramTest, EveryOperationIsTested) {
  std::set<std::string> others = {
      "batch",  "head",    "query", "row",      "key",      "const_i", "to_i",
      "wrap_i", "eq_f",    "ne_f",  "lt_f",     "le_f",     "bound_i", "gather_i",
      "score",  "const_f", "to_f",  "select_f", "gather_f", "random_f"};  // in tests of their own
  for (const auto& [name, x] : number_cases()) others.insert(name);
  for (const auto& [name, plain] : integer_cases()) others.insert(name);
  std::set<std::string> all;
#define MH_INTEGER(name, ...) all.insert(#name);
#define MH_NUMBER(name, ...) all.insert(#name);
#include "multihead/ops/attention/program/operations.inc"
  EXPECT_EQ(others, all);
  for (const std::string& name : all) EXPECT_EQ(name_of(parse_op(name)), name);
}

TEST(ProgramTest, ComparisonsOfNumbersAndNarrowIntegers) {
  const auto compare = [](const char* name, float score) {
    const ScoreProgram program({{.op = Op::score},
                                {.op = Op::const_f, .number = 1},
                                {.op = parse_op(name), .a = 0, .b = 1},
                                {.op = Op::to_f, .a = 2}},
                               {});
    return apply<float>(program, {score}, {1, 1})[0];
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::map<std::string, std::vector<float>> expected = {
      {"lt_f", {1, 0, 0, 0}}, {"le_f", {1, 1, 0, 0}}, {"eq_f", {0, 1, 0, 0}}, {"ne_f", {1, 0, 1, 1}}};
  for (const auto& [name, results] : expected) {
    size_t i = 0;
    for (const float x : {0.0f, 1.0f, 2.0f, nan})
      EXPECT_EQ(compare(name.c_str(), x), results[i++]) << name << x;
  }
  const auto wrap = [](double type, double number) {
    const ScoreProgram program({{.op = Op::const_i, .number = number},
                                {.op = Op::wrap_i, .a = 0, .number = type},
                                {.op = Op::to_f, .a = 1}},
                               {});
    return apply<float>(program, {0}, {1, 1})[0];
  };
  EXPECT_EQ(wrap(0, 130), -126);
  EXPECT_EQ(wrap(1, -1), 255);
  EXPECT_EQ(wrap(2, 40000), -25536);
}

std::string error_of(std::vector<Instruction> code, std::vector<Tensor> tables = {},
                     std::vector<ScoreProgram::Learnt> learnt = {}) {
  try {
    const ScoreProgram program(std::move(code), std::move(tables), std::move(learnt));
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

TEST(ProgramTest, WhatIsNoProgramIsRefused) {
  const Tensor numbers = Tensor::of<float>({2}, {1, 2}), integers = Tensor::of<int32_t>({2}, {1, 2});
  EXPECT_EQ(error_of({}), "score expression: empty");
  EXPECT_EQ(error_of({{.op = Op::neg_f, .a = 0}}), "score expression: instruction 0 reads ahead");
  EXPECT_EQ(error_of({{.op = Op::score}, {.op = Op::add_f, .a = 0}}),
            "score expression: instruction 1 (add_f) lacks operand 1");
  EXPECT_EQ(error_of({{.op = Op::query}, {.op = Op::neg_f, .a = 0}}),
            "score expression: instruction 1 (neg_f) cannot take register 0 as operand 0");
  EXPECT_EQ(error_of({{.op = Op::score}, {.op = Op::neg_f, .a = 0, .b = 0}}),
            "score expression: instruction 1 (neg_f) cannot take register 0 as operand 1");
  EXPECT_EQ(error_of({{.op = Op::score}, {.op = Op::clamp_f, .a = 0, .c = 0}}), "");
  const std::vector<Instruction> gather = {{.op = Op::const_i}, {.op = Op::gather_f, .a = 0, .table = 0}};
  EXPECT_EQ(error_of(gather), "score expression: no table 0");
  EXPECT_EQ(error_of(gather, {Tensor::empty({0}, Dtype::f32)}),
            "score expression: a captured tensor is empty");
  EXPECT_EQ(error_of(gather, {integers}), "score expression: gather_f cannot read a table of i32");
  EXPECT_EQ(error_of({{.op = Op::const_i}, {.op = Op::gather_i, .a = 0, .table = 0}}, {numbers}),
            "score expression: gather_i cannot read a table of f32");
  EXPECT_EQ(error_of(gather, {numbers}, {{1, numbers}}), "score expression: no table 1");
  EXPECT_THROW(parse_op("add"), ValueError);
  EXPECT_THROW(to_table(Tensor::of<int64_t>({1}, {int64_t{1} << 40})), ValueError);
}

}  // namespace
}  // namespace multihead::program
