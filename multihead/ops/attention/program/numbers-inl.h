// The instructions that give numbers: loops that compilers turn into vectors. Their derivatives are in
// reverse-inl.h.
#pragma once

#include <bit>
#include <cmath>

#include "multihead/ops/attention/program/integers-inl.h"
#include "multihead/ops/attention/program/program-inl.h"
#include "multihead/ops/attention/program/registers-inl.h"
#include "multihead/ops/attention/program/rounding-inl.h"

namespace multihead::program {

// e^x within 2 ulp: x = n·ln 2 + r, |r| <= ln 2 / 2, minimax polynomial (coefficients here and in tanh:
// Moshier, "Methods and programs for mathematical functions", 1989). fast::exp of score_math.h errs by 1.2 ulp
// only, but traced functions keep their bits from one version to the next.
MH_INLINE float vector_exp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float n = (clamped * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, so that subnormal results are reached.
  const int32_t whole = static_cast<int32_t>(n), half = whole >> 1;
  const float low = std::bit_cast<float>((half + 127) << 23);
  const float high = std::bit_cast<float>((whole - half + 127) << 23);
  return x != x ? x : p * low * high;
}
MH_INLINE double vector_exp(double x) { return std::exp(x); }

MH_INLINE float vector_tanh(float x) {
  const float a = std::fabs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = x + x * z * p;
  const float large = 1.0f - 2.0f / (vector_exp(2.0f * a) + 1.0f);
  return a < 0.625f ? small : (x < 0 ? -large : large);
}
MH_INLINE double vector_tanh(double x) { return std::tanh(x); }

MH_INLINE uint32_t u32(int32_t x) { return static_cast<uint32_t>(x); }

struct PhiloxWords {
  uint32_t a, b, c, d;
};
// philox() of core/tensor/rng.h, whose loop compilers would not unroll here.
MH_INLINE PhiloxWords philox_words(PhiloxWords x, uint64_t key) {
  auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
    const uint64_t p = uint64_t{0xD2511F53u} * x.a, q = uint64_t{0xCD9E8D57u} * x.c;
    x = {static_cast<uint32_t>(q >> 32) ^ x.b ^ low, static_cast<uint32_t>(q),
         static_cast<uint32_t>(p >> 32) ^ x.d ^ high, static_cast<uint32_t>(p)};
  }
  return x;
}
template <class T>
MH_INLINE T unit_number(uint32_t bits) {
  return static_cast<T>(static_cast<int32_t>(bits >> 8)) * T(0x1p-24);
}

template <class T>
inline constexpr T kLn2 = T(0.69314718055994531);

template <class T>
MH_INLINE T sign(T x) {
  return static_cast<T>((x > 0) - (x < 0));
}

// x^n with PyTorch's short cuts, which differ from the C library's at infinities.
template <class T>
MH_INLINE T power(T x, T n) {
  if (n == T(1)) return x;
  if (n == T(2)) return x * x;
  if (n == T(3)) return x * x * x;
  if (n == T(0.5)) return std::sqrt(x);
  if (n == T(-0.5)) return 1 / std::sqrt(x);
  if (n == T(-1)) return 1 / x;
  if (n == T(-2)) return 1 / (x * x);
  return std::pow(x, n);
}

// The remainder with the sign of the divisor, and the quotient that goes with it.
template <class T>
MH_INLINE T floor_mod(T a, T b) {
  const T rest = std::fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
template <class T>
MH_INLINE T floor_quotient(T a, T b) {
  if (b == 0) return a / b;
  const T rest = std::fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(T(0), a / b);
  const T whole = std::floor(quotient);
  return quotient - whole > T(0.5) ? whole + 1 : whole;
}

// Bounds b and c, where there are any; the upper one wins, and NaN.
template <class T>
MH_INLINE void run_clamp(const T* a, const T* b, const T* c, T* y) {
  each([&](int i) { y[i] = a[i]; });
  if (b) each([&](int i) { y[i] = ((y[i] < b[i]) | (b[i] != b[i])) ? b[i] : y[i]; });
  if (c) each([&](int i) { y[i] = ((y[i] > c[i]) | (c[i] != c[i])) ? c[i] : y[i]; });
}

template <class T>
MH_INLINE void run_sigmoid(Kind kind, const T* a, T* y) {
  if (kind == Kind::any || kind == Kind::f64) return each([&](int i) { y[i] = 1 / (1 + vector_exp(-a[i])); });
  // As in f32, whose exponential overflows.
  each([&](int i) { y[i] = 1 / (1 + static_cast<T>(static_cast<float>(vector_exp(-a[i])))); });
}

// Four elements of random numbers from one Philox block, as random() of score_math.h has them. Where the last index is
// the key and the others do not depend on it, the four are neighbours among the keys; else each takes its own word.
template <class T>
MH_INLINE void run_random(const ScoreProgram& program, const Instruction& in, Registers<T>& r,
                          const Place& at, T* y) {
  alignas(64) int32_t absent[kBlock], quarter[kBlock];
  each([&](int i) { absent[i] = -1; });
  const int32_t* index[4] = {absent, absent, absent, absent};
  const auto operands = in.operands();
  size_t last = 0;
  bool by_key = at.key % 4 == 0;
  for (size_t n = 0; n < operands.size() && operands[n] >= 0; ++n) {
    by_key = by_key && (n == 0 || !program.depends_on_key(operands[last]));
    index[n] = r.integer(operands[n]);
    last = n;
  }
  by_key = by_key && program.code()[static_cast<size_t>(operands[last])].op == Op::key;
  const int32_t* word = index[last];
  each([&](int i) { quarter[i] = word[i] >> 2; });
  index[last] = quarter;
  const auto seed = static_cast<uint64_t>(in.number);
  const auto block = [&](int i) __attribute__((always_inline)) {
    return philox_words({u32(index[0][i]), u32(index[1][i]), u32(index[2][i]), u32(index[3][i])}, seed);
  };
  if (!by_key) {
    return each([&](int i) {
      const PhiloxWords x = block(i);
      const uint32_t low = (word[i] & 1) != 0 ? x.b : x.a, high = (word[i] & 1) != 0 ? x.d : x.c;
      y[i] = unit_number<T>((word[i] & 2) != 0 ? high : low);
    });
  }
  for (int first = 0; first < kBlock; first += 4 * kQueries) {
    each_query([&](int q) {
      const int i = first + q;
      const PhiloxWords x = block(i);
      y[i] = unit_number<T>(x.a);
      y[i + kQueries] = unit_number<T>(x.b);
      y[i + 2 * kQueries] = unit_number<T>(x.c);
      y[i + 3 * kQueries] = unit_number<T>(x.d);
    });
  }
}

template <class T>
MH_INLINE void run_gather(const ScoreProgram& program, const Instruction& in, const int32_t* index,
                          const Place& at, T* y) {
  if (program.tables()[static_cast<size_t>(in.table)].dtype() == Dtype::f64) {
    gather_table<double>(program, in, index, at, y);
  } else {
    gather_table<float>(program, in, index, at, y);
  }
}

// One switch, however long: with the functions of one number in a second one GCC 12 makes all of it 7 %
// slower.
template <class T>
MH_INLINE void run_number(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  T* y = r.value(index);
  const T* a = in.a >= 0 ? r.value(in.a) : nullptr;
  const T* b = in.b >= 0 ? r.value(in.b) : nullptr;
  const T* c = in.c >= 0 ? r.value(in.c) : nullptr;
  const int32_t* ia = in.a >= 0 ? r.integer(in.a) : nullptr;
  const auto number = static_cast<T>(in.number);
#define MH_EACH(value) each([&](int i) { y[i] = (value); })
#define MH_NUMBER(name, operands, code, ...) \
  case Op::name:                             \
    code;                                    \
    break;
#define MH_INTEGER(...)
  switch (in.op) {
#include "multihead/ops/attention/program/operations.inc"
    default:
      break;
  }
#undef MH_EACH
  round_to(in.kind, y);
}

}  // namespace multihead::program
