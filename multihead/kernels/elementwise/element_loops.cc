// Conversions are bound by memory, so what counts is a few instructions per vector. F16C and its like round
// as Float16 does, but for NaN, which keeps more of its bits here and fewer there: vectors with NaN go
// element by element.
//
// A transpose works on squares of 128-bit vectors (4 x 4 of f32, 16 x 16 of bytes), two or four of them side
// by side where vectors are wider. Zipping row i with row i + n/2 turns n rows into twice as long pairs;
// log2(n) rounds transpose. Rows a power of two apart share few sets of the cache, so a cache line is read
// once, into memory of our own, and written once (Zen 5, 8 MB of f32: 2.0x, November 2026).
#include "multihead/kernels/elementwise/element_loops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/element_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/tensor/copy-inl.h"
#include "multihead/core/tensor/element_loops-inl.h"
#include "multihead/kernels/cpu/float_environment-inl.h"
#include "multihead/kernels/simd/bf16-inl.h"
#include "multihead/kernels/simd/normal-inl.h"
#include "multihead/kernels/simd/philox-inl.h"

#ifndef MULTIHEAD_KERNELS_ELEMENT_LOOPS_ONCE
#define MULTIHEAD_KERNELS_ELEMENT_LOOPS_ONCE
namespace multihead::kernels {

using detail::TransposeArgs;

template <class From, class To>
void convert_each(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Emulated vectors gain nothing, and round f16 and f32 out of their range otherwise.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
namespace hn = hwy::HWY_NAMESPACE;

// Whole vectors by f(offset), which returns whether it could; the rest and those it refused element by
// element.
template <class From, class To, class F>
HWY_INLINE void ConvertVectors(const From* from, To* to, int64_t count, int64_t lanes, const F& f) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    if (HWY_UNLIKELY(!f(i))) convert_each(from + i, to + i, lanes);
  }
  convert_each(from + i, to + i, count - i);
}

using F32 = hn::ScalableTag<float>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using U16 = hn::Rebind<uint16_t, F32>;

template <class V>
HWY_INLINE bool HasNaN(V one, V two) {
  const hn::DFromV<V> d;
  return !hn::AllTrue(d, hn::And(hn::Eq(one, one), hn::Eq(two, two)));
}

void Convert(const float* from, Float16* to, int64_t count) {
  const FloatEnvironment environment;  // ARM's conversion rounds as the thread does; x86's is told how
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto store = [&](hn::Vec<F32> v, Float16* p) HWY_ATTR {
    hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(F16(), v)), U16(), &p->bits);
  };
  ConvertVectors(from, to, count, 2 * lanes, [&](int64_t i) HWY_ATTR {
    const auto one = hn::LoadU(d, from + i), two = hn::LoadU(d, from + i + lanes);
    if (HasNaN(one, two)) return false;
    store(one, to + i);
    store(two, to + i + lanes);
    return true;
  });
}

void Convert(const Float16* from, float* to, int64_t count) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto load = [&](const Float16* p)
                        HWY_ATTR { return hn::PromoteTo(d, hn::BitCast(F16(), hn::LoadU(U16(), &p->bits))); };
  ConvertVectors(from, to, count, 2 * lanes, [&](int64_t i) HWY_ATTR {
    const auto one = load(from + i), two = load(from + i + lanes);
    if (HasNaN(one, two)) return false;
    hn::StoreU(one, d, to + i);
    hn::StoreU(two, d, to + i + lanes);
    return true;
  });
}

void Convert(const float* from, BFloat16* to, int64_t count) {
  const F32 d;
  ConvertVectors(from, to, count, static_cast<int64_t>(hn::Lanes(d)), [&](int64_t i) HWY_ATTR {
    StoreVector(hn::LoadU(d, from + i), d, to + i);
    return true;
  });
}

void Convert(const BFloat16* from, float* to, int64_t count) {
  const F32 d;
  ConvertVectors(from, to, count, static_cast<int64_t>(hn::Lanes(d)), [&](int64_t i) HWY_ATTR {
    hn::StoreU(LoadVector(d, from + i), d, to + i);
    return true;
  });
}

using F64 = hn::ScalableTag<double>;
using HalfF32 = hn::Rebind<float, F64>;

void Convert(const double* from, float* to, int64_t count) {
  ConvertVectors(from, to, count, static_cast<int64_t>(hn::Lanes(F64())), [&](int64_t i) HWY_ATTR {
    hn::StoreU(hn::DemoteTo(HalfF32(), hn::LoadU(F64(), from + i)), HalfF32(), to + i);
    return true;
  });
}

void Convert(const float* from, double* to, int64_t count) {
  ConvertVectors(from, to, count, static_cast<int64_t>(hn::Lanes(F64())), [&](int64_t i) HWY_ATTR {
    hn::StoreU(hn::PromoteTo(F64(), hn::LoadU(HalfF32(), from + i)), F64(), to + i);
    return true;
  });
}

// The rows of one square, n apart, side by side.
template <class D>
HWY_INLINE hn::Vec<D> LoadRows(D d, const hn::TFromD<D>* from, int64_t step) {
  constexpr int64_t kBytes = hn::MaxLanes(D()) * sizeof(hn::TFromD<D>);
  if constexpr (kBytes > 16) {
    const hn::Half<D> half;
    const int64_t middle = kBytes / 32 * (16 / sizeof(hn::TFromD<D>)) * step;
    return hn::Combine(d, LoadRows(half, from + middle, step), LoadRows(half, from, step));
  } else {
    return hn::LoadU(d, from);
  }
}

// n columns of as many rows as a vector holds.
template <class D, class T>
HWY_INLINE void TransposeSquares(D d, const T* from, int64_t from_step, T* to, int64_t to_step) {
  constexpr int64_t n = 16 / sizeof(T);
  hn::Vec<D> v[n], w[n];
#pragma GCC unroll 16
  for (int64_t k = 0; k < n; ++k) v[k] = LoadRows(d, from + k * from_step, from_step);
#pragma GCC unroll 4
  for (int64_t width = 1; width < n; width *= 2) {
#pragma GCC unroll 16
    for (int64_t k = 0; k < n / 2; ++k) {
      w[2 * k] = hn::InterleaveLower(d, v[k], v[k + n / 2]);
      w[2 * k + 1] = hn::InterleaveUpper(d, v[k], v[k + n / 2]);
    }
#pragma GCC unroll 16
    for (int64_t k = 0; k < n; ++k) v[k] = w[k];
  }
#pragma GCC unroll 16
  for (int64_t k = 0; k < n; ++k) hn::StoreU(v[k], d, to + k * to_step);
}

template <class T>
void TransposeOf(const TransposeArgs& t) {
  constexpr int64_t kLine = 64 / sizeof(T), n = 16 / sizeof(T), kWidth = 64;
  const hn::CappedTag<T, kLine> wide;
  const hn::CappedTag<T, n> narrow;
  constexpr int64_t kWide = hn::MaxLanes(hn::CappedTag<T, kLine>());
  const T* from = static_cast<const T*>(t.from);
  T* to = static_cast<T*>(t.to);
  const int64_t whole_rows = t.rows / n * n, whole_columns = t.columns / n * n;
  for (int64_t line = 0; line < whole_rows; line += kLine) {
    const int64_t end = HWY_MIN(line + kLine, whole_rows);
    for (int64_t left = 0; left < whole_columns; left += kWidth) {
      alignas(64) T rows[kLine * kWidth];
      const int64_t columns = HWY_MIN(kWidth, whole_columns - left);
      for (int64_t i = line; i < end; ++i) {
        detail::copy_bytes(rows + (i - line) * kWidth, from + i * t.from_step + left, columns * sizeof(T));
      }
      for (int64_t j = 0; j < columns; j += n) {
        T* const column = to + (left + j) * t.to_step;
        int64_t i = line;
        for (; i + kWide <= end; i += kWide) {
          TransposeSquares(wide, rows + (i - line) * kWidth + j, kWidth, column + i, t.to_step);
        }
        for (; i < end; i += n) {
          TransposeSquares(narrow, rows + (i - line) * kWidth + j, kWidth, column + i, t.to_step);
        }
      }
    }
  }
  const auto rest = [&](int64_t row, int64_t column, int64_t row_end) {
    detail::transpose_plain(sizeof(T), {from + row * t.from_step + column, to + column * t.to_step + row,
                                        t.from_step, t.to_step, row_end - row, t.columns - column});
  };
  rest(0, whole_columns, whole_rows);
  rest(whole_rows, 0, t.rows);
}

void Transpose(size_t element_bytes, const TransposeArgs& args) {
  switch (element_bytes) {
    case 1:
      return TransposeOf<uint8_t>(args);
    case 2:
      return TransposeOf<uint16_t>(args);
    case 4:
      return TransposeOf<uint32_t>(args);
    default:
      return TransposeOf<uint64_t>(args);
  }
}

void RandomWords(const RandomStream& stream, int64_t first_group, int64_t groups, uint32_t* words) {
  const Words d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < 16 * groups; i += lanes) {
    const PhiloxBlocks b = Philox(stream, static_cast<uint64_t>(16 * first_group + i));
    uint32_t* to = words + i / 16 * 64 + i % 16;
    hn::StoreU(b.w0, d, to);
    hn::StoreU(b.w1, d, to + 16);
    hn::StoreU(b.w2, d, to + 32);
    hn::StoreU(b.w3, d, to + 48);
  }
}

#else

void RandomWords(const RandomStream& stream, int64_t first_group, int64_t groups, uint32_t* words) {
  detail::random_words_plain(stream, first_group, groups, words);
}

template <class From, class To>
void Convert(const From* from, To* to, int64_t count) {
  convert_each(from, to, count);
}
void Transpose(size_t element_bytes, const TransposeArgs& args) {
  detail::transpose_plain(element_bytes, args);
}

#endif

bool UniformGroup(const uint32_t* words, double low, double high, float* numbers) {
  return UniformFloats(words, low, high, numbers);
}

bool NormalGroup(const uint32_t* words, double mean, double std, float* numbers) {
  return NormalFloats(words, mean, std, numbers);
}

// To or from f32.
template <class T>
bool ConvertOne(bool to_f32, const void* from, void* to, int64_t count) {
  to_f32 ? Convert(static_cast<const T*>(from), static_cast<float*>(to), count)
         : Convert(static_cast<const float*>(from), static_cast<T*>(to), count);
  return true;
}

bool ConvertFloats(Dtype from_type, const void* from, Dtype to_type, void* to, int64_t count) {
  if (from_type != Dtype::f32 && to_type != Dtype::f32) {
    if (!is_floating(from_type) || !is_floating(to_type)) return false;
    float middle[256];
    for (int64_t i = 0; i < count; i += 256) {
      const int64_t n = std::min<int64_t>(256, count - i);
      const auto at = [&](const void* p, Dtype type) {
        return static_cast<const std::byte*>(p) + i * static_cast<int64_t>(size_of(type));
      };
      ConvertFloats(from_type, at(from, from_type), Dtype::f32, middle, n);
      ConvertFloats(Dtype::f32, middle, to_type, const_cast<std::byte*>(at(to, to_type)), n);
    }
    return true;
  }
  const bool to_f32 = to_type == Dtype::f32;
  switch (to_f32 ? from_type : to_type) {
    case Dtype::f16:
      return ConvertOne<Float16>(to_f32, from, to, count);
    case Dtype::bf16:
      return ConvertOne<BFloat16>(to_f32, from, to, count);
    case Dtype::f64:
      return ConvertOne<double>(to_f32, from, to, count);
    default:
      return false;
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(ConvertFloats);
HWY_EXPORT(Transpose);
HWY_EXPORT(RandomWords);
HWY_EXPORT(UniformGroup);
HWY_EXPORT(NormalGroup);

bool install_element_loops() {
  detail::element_loops.convert = [](Dtype from_type, const void* from, Dtype to_type, void* to,
                                     int64_t count) {
    return HWY_DYNAMIC_DISPATCH(ConvertFloats)(from_type, from, to_type, to, count);
  };
  detail::element_loops.transpose = [](size_t element_bytes, const TransposeArgs& args) {
    HWY_DYNAMIC_DISPATCH(Transpose)(element_bytes, args);
  };
  detail::element_loops.random_words = [](const RandomStream& stream, int64_t first_group, int64_t groups,
                                          uint32_t* words) {
    HWY_DYNAMIC_DISPATCH(RandomWords)(stream, first_group, groups, words);
  };
  detail::element_loops.uniform_floats = [](const uint32_t* words, double low, double high, float* numbers) {
    return HWY_DYNAMIC_DISPATCH(UniformGroup)(words, low, high, numbers);
  };
  detail::element_loops.normal_floats = [](const uint32_t* words, double mean, double std, float* numbers) {
    return HWY_DYNAMIC_DISPATCH(NormalGroup)(words, mean, std, numbers);
  };
  return true;
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
