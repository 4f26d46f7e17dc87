// Transposes of matrices, scaled: queries (f32 or bf16) into lanes, biases and their gradients.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_TRANSPOSE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_TRANSPOSE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_TRANSPOSE_INL_H_
#endif

#include <bit>

#include "multihead/kernels/attention/block/micro_kernel-inl.h"
#include "multihead/kernels/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Numbers as f32: as they are, or from the bits of bf16.
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const float* x) {
  return hn::LoadU(d, x);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const uint16_t* x) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, x))));
}
HWY_INLINE float Wide(float x) { return x; }
HWY_INLINE float Wide(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// As TransposeTo for 4 rows and any number of columns, by 4x4 blocks.
template <class T>
HWY_INLINE void TransposeFour(const T* f0, int64_t from_stride, int64_t columns, float* to, int64_t to_stride,
                              float scale) {
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> dd;
  const auto s = hn::Set(d, scale);
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4) {
    const auto x0 = LoadWide(d, f0 + c), x1 = LoadWide(d, f0 + from_stride + c);
    const auto x2 = LoadWide(d, f0 + 2 * from_stride + c), x3 = LoadWide(d, f0 + 3 * from_stride + c);
    const auto a = hn::BitCast(dd, hn::InterleaveLower(d, x0, x1));
    const auto b = hn::BitCast(dd, hn::InterleaveLower(d, x2, x3));
    const auto e = hn::BitCast(dd, hn::InterleaveUpper(d, x0, x1));
    const auto g = hn::BitCast(dd, hn::InterleaveUpper(d, x2, x3));
    float* t0 = to + c * to_stride;
    hn::StoreU(hn::Mul(s, hn::BitCast(d, hn::InterleaveLower(dd, a, b))), d, t0);
    hn::StoreU(hn::Mul(s, hn::BitCast(d, hn::InterleaveUpper(dd, a, b))), d, t0 + to_stride);
    hn::StoreU(hn::Mul(s, hn::BitCast(d, hn::InterleaveLower(dd, e, g))), d, t0 + 2 * to_stride);
    hn::StoreU(hn::Mul(s, hn::BitCast(d, hn::InterleaveUpper(dd, e, g))), d, t0 + 3 * to_stride);
  }
  for (; c < columns; ++c) {
    for (int64_t i = 0; i < 4; ++i) to[c * to_stride + i] = Wide(f0[i * from_stride + c]) * scale;
  }
}

#if HWY_TARGET == HWY_AVX3
// Floats between the start of a cache line and `at`.
HWY_INLINE int64_t LineOffset(const float* at) {
  return reinterpret_cast<uintptr_t>(at) % 64 / sizeof(float);
}
HWY_INLINE int64_t LineOffset(const uint16_t*) { return 0; }

// A 16x16 block takes a quarter of the shuffles, loads and stores of sixteen 4x4 blocks, and every cache line
// of the source is read once, whatever its stride.
template <class T>
HWY_INLINE void TransposeSixteen(const T* from, int64_t from_stride, float* to, int64_t to_stride,
                                 float scale) {
  const F d;
  const Vec s = hn::Set(d, scale);
  Vec x[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = LoadWide(d, from + i * from_stride);
  TransposeRegisters(x);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) hn::StoreU(hn::Mul(s, x[i]), d, to + i * to_stride);
}
#endif

// to[c * to_stride + r] = scale · from[r * from_stride + c] for r < rows, c < columns.
template <class T>
HWY_INLINE void TransposeTo(const T* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                            int64_t to_stride, float scale) {
  int64_t r = 0;
#if HWY_TARGET == HWY_AVX3
  for (; r + 16 <= rows; r += 16) {
    const T* f = from + r * from_stride;
    int64_t c = 0;
    for (int64_t next; c + 16 <= columns; c = next) {
      TransposeSixteen(f + c, from_stride, to + c * to_stride + r, to_stride, scale);
      // The second block starts with a cache line and overlaps the first: a load that crosses lines needs
      // each of them twice, and of sixteen rows 4 KiB apart L1 keeps but twelve.
      next = c + 16 - (c == 0 && columns >= 64 ? LineOffset(f) : 0);
      if (next + 16 > columns && c + 16 < columns) next = columns - 16;
    }
    for (int64_t i = 0; c < columns && i < 16; i += 4) {
      TransposeFour(f + i * from_stride + c, from_stride, columns - c, to + c * to_stride + r + i, to_stride,
                    scale);
    }
  }
#endif
  for (; r + 4 <= rows; r += 4) {
    TransposeFour(from + r * from_stride, from_stride, columns, to + r, to_stride, scale);
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = Wide(from[r * from_stride + c]) * scale;
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
