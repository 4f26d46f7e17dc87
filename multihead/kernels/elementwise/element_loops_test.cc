// Core's copies and conversions with the loops of every instruction set, beside one element at a time.
#include "multihead/kernels/elementwise/element_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "multihead/core/tensor/convert-inl.h"
#include "multihead/core/tensor/element_loops-inl.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/sanitizers.h"

namespace multihead::kernels {
namespace {

template <class F>
void on_every_isa(F&& f) {
  const testing::EverywhereScope scope;
  install_element_loops();
  for (const Isa isa : kernels::kIsas) {
    if (isa > best_isa()) continue;
    set_isa(isa);
    SCOPED_TRACE(isa_name(isa));
    f();
  }
}

template <class To, class From>
void expect_same_bits(const std::vector<From>& values) {
  const Tensor from = Tensor::of<From>({static_cast<int64_t>(values.size())}, values);
  const Tensor to = from.to(dtype_of<To>);
  for (size_t i = 0; i < values.size(); ++i) {
    const To expected = detail::convert<To>(values[i]), got = to.data<To>()[i];
    ASSERT_EQ(std::memcmp(&expected, &got, sizeof(To)), 0)
        << from.dtype() << " to " << to.dtype() << ", element " << i << ": "
        << detail::convert<double>(values[i]);
  }
}

// All signs and exponents with the mantissas around each rounding of f16 and bf16, NaN only on request.
std::vector<float> float_grid(bool with_nan) {
  std::vector<uint32_t> mantissas = {0, 1, 0x3fffff, 0x400000, 0x400001, 0x7fffff};
  for (int bit = 0; bit < 23; ++bit) {
    for (const int offset : {-1, 0, 1}) {
      mantissas.push_back(((1u << bit) + static_cast<uint32_t>(offset)) & 0x7fffff);
      mantissas.push_back(((3u << bit) + static_cast<uint32_t>(offset)) & 0x7fffff);
      mantissas.push_back(((5u << bit) + static_cast<uint32_t>(offset)) & 0x7fffff);
    }
  }
  std::vector<float> values;
  for (uint32_t high = 0; high < 512; ++high) {
    for (const uint32_t mantissa : mantissas) {
      const float value = std::bit_cast<float>(high << 23 | mantissa);
      if (with_nan || value == value) values.push_back(value);
    }
  }
  return values;
}

template <class T>
std::vector<T> every_half() {
  std::vector<T> values(1 << 16);
  for (size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<uint16_t>(i);
  return values;
}

TEST(ElementLoopsTest, ConversionsRoundAsOneElementDoes) {
  on_every_isa([] {
    for (const bool with_nan : {false, true}) {
      const std::vector<float> grid = float_grid(with_nan);
      expect_same_bits<Float16>(grid);
      expect_same_bits<BFloat16>(grid);
      expect_same_bits<double>(grid);
      std::vector<double> wide(grid.begin(), grid.end());
      for (size_t i = 0; i < wide.size(); i += 3)
        wide[i] *= 1 + 0x1p-25;  // halfway between two f32, and beyond both
      for (size_t i = 1; i < wide.size(); i += 3) wide[i] *= 0x1p-20;
      expect_same_bits<float>(wide);
      expect_same_bits<Float16>(wide);
      expect_same_bits<BFloat16>(wide);
      expect_same_bits<int32_t>(std::vector<float>{1.9f, -2.9f, 3e5f});
    }
    expect_same_bits<float>(every_half<Float16>());
    expect_same_bits<double>(every_half<Float16>());
    expect_same_bits<BFloat16>(every_half<Float16>());
    expect_same_bits<float>(every_half<BFloat16>());
    expect_same_bits<Float16>(every_half<BFloat16>());
    auto finite = every_half<Float16>();  // NaN sends its whole vector another way
    std::erase_if(finite, [](Float16 h) { return (h.bits & 0x7fff) > 0x7c00; });
    expect_same_bits<float>(finite);
  });
}

// A view of new memory: axes stored in `order`, the innermost with gaps, the first element at `offset`.
Tensor view_of(const Shape& shape, const std::vector<int>& order, int64_t gap, int64_t offset, Dtype dtype) {
  Shape strides = Shape::filled(shape.rank(), 0);
  int64_t step = gap;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    strides[*axis] = step;
    step = step * shape[*axis] + 3;
  }
  const Tensor memory = Tensor::zeros({std::max<int64_t>(step, 1) + offset}, dtype);
  const Tensor view = memory.as_strided(shape, strides, offset);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < memory.numel(); ++i)
      memory.data<T>()[i] = detail::convert<T>((i * 7919 + 13) % 251 - 100);
  });
  return view;
}

// In row-major order.
template <class F>
void for_each_index(const Shape& shape, F&& f) {
  Shape index = Shape::filled(shape.rank(), 0);
  for (int64_t left = shape.numel(); left > 0; --left) {
    f(index);
    for (int axis = shape.rank() - 1; axis >= 0 && ++index[axis] == shape[axis]; --axis) index[axis] = 0;
  }
}

int64_t offset_of(const Tensor& x, const Shape& index) {
  int64_t offset = 0;
  for (int axis = 0; axis < index.rank(); ++axis) offset += index[axis] * x.strides()[axis];
  return offset;
}

void expect_copied(const Tensor& to, const Tensor& from) {
  to.fill(77);
  to.copy_from(from);
  dispatch(to.dtype(), [&](auto to_zero) {
    using To = decltype(to_zero);
    dispatch(from.dtype(), [&](auto from_zero) {
      using From = decltype(from_zero);
      int64_t wrong = 0;
      for_each_index(to.shape(), [&](const Shape& index) {
        const To expected = detail::convert<To>(from.data<From>()[offset_of(from, index)]);
        wrong += std::memcmp(&expected, &to.data<To>()[offset_of(to, index)], sizeof(To)) != 0;
      });
      EXPECT_EQ(wrong, 0) << from.dtype() << from.shape() << from.strides() << " to " << to.dtype()
                          << to.strides();
    });
  });
}

TEST(ElementLoopsTest, CopiesBetweenAnyLayouts) {
  const std::vector<Shape> shapes = {{},        {1},    {67},     {0, 5},         {5, 0},
                                     {67, 131}, {2, 3}, {64, 16}, {3, 33, 1, 70}, {130, 65, 2}};
  const std::pair<Dtype, Dtype> types[] = {{Dtype::f32, Dtype::f32},   {Dtype::f64, Dtype::f64},
                                           {Dtype::bf16, Dtype::bf16}, {Dtype::boolean, Dtype::boolean},
                                           {Dtype::f32, Dtype::bf16},  {Dtype::f16, Dtype::f32},
                                           {Dtype::f64, Dtype::f32},   {Dtype::i32, Dtype::f16}};
  on_every_isa([&] {
    for (const Shape& shape : shapes) {
      std::vector<int> plain;
      for (int i = 0; i < shape.rank(); ++i) plain.push_back(i);
      std::vector<int> order = plain;
      do {
        for (const auto& [from, to] : types) {
          expect_copied(view_of(shape, plain, 1, 0, to), view_of(shape, order, 1, 1, from));
          expect_copied(view_of(shape, order, 1, 3, to), view_of(shape, plain, 1, 0, from));
          expect_copied(view_of(shape, plain, 2, 0, to), view_of(shape, order, 1, 0, from));
          expect_copied(view_of(shape, plain, 1, 0, to), view_of(shape, order, 3, 0, from));
        }
      } while (shape.rank() < 4 && std::next_permutation(order.begin(), order.end()));
    }
  });
}

TEST(ElementLoopsTest, LargeCopiesOnAnyThreads) {
  const std::vector<int> counts = testing::kSanitized ? std::vector{3} : std::vector{1, 2, 3, 8};
  on_every_isa([&] {
    for (const int threads : counts) {
      set_num_threads(threads);
      const Shape shape{3, 257, 521};
      expect_copied(view_of(shape, {0, 1, 2}, 1, 0, Dtype::f32), view_of(shape, {0, 2, 1}, 1, 1, Dtype::f32));
      expect_copied(view_of(shape, {0, 1, 2}, 1, 0, Dtype::bf16),
                    view_of(shape, {2, 1, 0}, 1, 0, Dtype::f32));
      expect_copied(view_of(shape, {1, 0, 2}, 1, 0, Dtype::f64), view_of(shape, {0, 1, 2}, 1, 0, Dtype::f64));
      const Tensor one = Tensor::of<float>({1, 257, 1}, std::vector<float>(257, 1.5f));
      expect_copied(view_of(shape, {0, 1, 2}, 1, 0, Dtype::f32), one.as_strided(shape, {0, 1, 0}));
      expect_copied(view_of(shape, {2, 0, 1}, 1, 0, Dtype::f16), one.as_strided(shape, {0, 1, 0}));
    }
  });
}

TEST(ElementLoopsTest, ARunMovesOverItself) {
  const Tensor x = Tensor::arange(100000, Dtype::i32);
  x.as_strided({99000}, {1}, 1000).copy_from(x.as_strided({99000}, {1}));
  for (const int64_t i : {0, 999, 1000, 50000, 99999}) EXPECT_EQ(x.at({i}), i < 1000 ? i : i - 1000);
}

// 53 bits of a block, in (0, 1).
double open_uniform(uint32_t high, uint32_t low) {
  return (static_cast<double>((uint64_t{high} << 32 | low) >> 11) + 0.5) * 0x1p-53;
}

template <class T>
void expect_random_numbers(int64_t count) {
  const RandomStream stream{0x123456789abcdef, 0xfedcba987654321};
  const Tensor uniform = Tensor::empty({count}, dtype_of<T>), normal = Tensor::empty({count}, dtype_of<T>);
  fill_uniform(uniform, -1.5, 0.25, stream);
  fill_normal(normal, 0.5, 3, stream);
  for (int64_t i = 0; i < count; ++i) {
    const auto block = stream.block(static_cast<uint64_t>(i / 2));
    const size_t at = i % 2 * 2;
    ASSERT_EQ(uniform.data<T>()[i], static_cast<T>(-1.5 + 1.75 * open_uniform(block[at], block[at + 1])))
        << i;
    const double radius = std::sqrt(-2 * std::log(open_uniform(block[0], block[1])));
    const double angle = 2 * 3.14159265358979323846 * open_uniform(block[2], block[3]);
    const double wave = i % 2 == 0 ? std::cos(angle) : std::sin(angle);
    ASSERT_EQ(normal.data<T>()[i], static_cast<T>(0.5 + 3 * radius * wave)) << i;
  }
}

// Words at the ends of their range, where radius and quarters change.
TEST(ElementLoopsTest, NormalNumbersOfExtremeWords) {
  std::vector<uint32_t> edges = {0, 1, 0x7ff, 0x800, 0x1fffffff, 0xb504f333};
  for (uint32_t eighth = 0; eighth < 8; ++eighth)
    edges.insert(edges.end(), {eighth << 29, (eighth << 29) - 1});
  on_every_isa([&] {
    int64_t sure = 0, asked = 0;
    for (size_t i = 0; i < edges.size() * edges.size() * edges.size(); ++i) {
      uint32_t words[64];
      for (size_t w = 0; w < 64; ++w) {
        words[w] = edges[(w < 16   ? i
                          : w < 32 ? i / edges.size()
                          : w < 48 ? i / edges.size() + w
                                   : i + w) %
                         edges.size()];
      }
      float numbers[32];
      ++asked;
      if (!detail::element_loops.normal_floats(words, 0.25, 2, numbers)) continue;
      ++sure;
      for (size_t b = 0; b < 16; ++b) {
        const double radius = 2 * std::sqrt(-2 * std::log(open_uniform(words[b], words[16 + b])));
        const double angle = 2 * 3.14159265358979323846 * open_uniform(words[32 + b], words[48 + b]);
        ASSERT_EQ(numbers[2 * b], static_cast<float>(0.25 + radius * std::cos(angle)));
        ASSERT_EQ(numbers[2 * b + 1], static_cast<float>(0.25 + radius * std::sin(angle)));
      }
    }
    EXPECT_GT(sure, current_isa() == Isa::baseline ? -1 : asked / 2);
  });
}

TEST(ElementLoopsTest, RandomNumbersAreThoseOfTheirElement) {
  on_every_isa([] {
    for (const int threads : {1, 2, 3, 8}) {
      set_num_threads(threads);
      for (const int64_t count : {0, 1, 2, 31, 32, 33, 40009}) {
        expect_random_numbers<float>(count);
        expect_random_numbers<double>(count);
      }
    }
  });
}

}  // namespace
}  // namespace multihead::kernels
