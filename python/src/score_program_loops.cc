// The loops that run a program on blocks of scores, compiled once per instruction set.
#include <algorithm>
#include <bit>
#include <cmath>

#include "python/src/score_program.h"

namespace multihead::python {
namespace {

// A block is 4 keys of 64 queries: long enough to hide the dispatch, short enough that registers stay in L1
constexpr int kQueries = 64, kKeys = 4, kBlock = kQueries * kKeys;

#define MH_INLINE [[gnu::always_inline]] inline

// --- functions that compilers turn into vectors: no branches, no calls ------------------------------------

// e^x within 2 ulp: x = n·ln 2 + r, |r| <= ln 2 / 2, minimax polynomial (coefficients here and in tanh:
// Moshier, "Methods and programs for mathematical functions", 1989).
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

// --- one block --------------------------------------------------------------------------------------------

template <class T>
struct Registers {
  std::vector<T> values, slopes;
  std::vector<int32_t> integers;
  T* value(int32_t i) { return values.data() + static_cast<size_t>(i) * kBlock; }
  T* slope(int32_t i) { return slopes.data() + static_cast<size_t>(i) * kBlock; }
  int32_t* integer(int32_t i) { return integers.data() + static_cast<size_t>(i) * kBlock; }
  void fit(size_t count) {
    if (integers.size() < count * kBlock) {
      values.resize(count * kBlock);
      slopes.resize(count * kBlock);
      integers.resize(count * kBlock);
    }
  }
};

template <class T>
Registers<T>& registers() {
  thread_local Registers<T> instance;
  return instance;
}

struct Place {
  int32_t batch, head, query, key;
  int32_t count, rows;  ///< queries and keys that exist in this block
};

template <class F>
MH_INLINE void each(F&& f) {
#pragma GCC ivdep
  for (int i = 0; i < kBlock; ++i) f(i);
}

MH_INLINE int32_t floor_div(int32_t a, int32_t b) {
  if (b == 0) return 0;
  const int32_t q = a / b;
  return q - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

template <class T>
MH_INLINE void run_integer(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  int32_t* y = r.integer(index);
  const int32_t* a = in.a >= 0 ? r.integer(in.a) : nullptr;
  const int32_t* b = in.b >= 0 ? r.integer(in.b) : nullptr;
  const int32_t* c = in.c >= 0 ? r.integer(in.c) : nullptr;
  const T* fa = in.a >= 0 ? r.value(in.a) : nullptr;
  const T* fb = in.b >= 0 ? r.value(in.b) : nullptr;
  const auto number = static_cast<int32_t>(in.number);
  switch (in.op) {
    case Op::batch:
      each([&](int i) { y[i] = at.batch; });
      break;
    case Op::head:
      each([&](int i) { y[i] = at.head; });
      break;
    case Op::query:
      each([&](int i) { y[i] = at.query + i % kQueries; });
      break;
    case Op::key:
      each([&](int i) { y[i] = at.key + i / kQueries; });
      break;
    case Op::const_i:
      each([&](int i) { y[i] = number; });
      break;
    case Op::to_i:
      each([&](int i) { y[i] = static_cast<int32_t>(fa[i]); });
      break;
    case Op::add_i:
      each([&](int i) { y[i] = a[i] + b[i]; });
      break;
    case Op::sub_i:
      each([&](int i) { y[i] = a[i] - b[i]; });
      break;
    case Op::mul_i:
      each([&](int i) { y[i] = a[i] * b[i]; });
      break;
    case Op::div_i:
      each([&](int i) { y[i] = floor_div(a[i], b[i]); });
      break;
    case Op::mod_i:
      each([&](int i) { y[i] = a[i] - floor_div(a[i], b[i]) * b[i]; });
      break;
    case Op::min_i:
      each([&](int i) { y[i] = b[i] < a[i] ? b[i] : a[i]; });
      break;
    case Op::max_i:
      each([&](int i) { y[i] = b[i] > a[i] ? b[i] : a[i]; });
      break;
    case Op::abs_i:
      each([&](int i) { y[i] = a[i] < 0 ? -a[i] : a[i]; });
      break;
    case Op::neg_i:
      each([&](int i) { y[i] = -a[i]; });
      break;
    case Op::and_i:
      each([&](int i) { y[i] = a[i] & b[i]; });
      break;
    case Op::or_i:
      each([&](int i) { y[i] = a[i] | b[i]; });
      break;
    case Op::xor_i:
      each([&](int i) { y[i] = a[i] ^ b[i]; });
      break;
    case Op::not_b:
      each([&](int i) { y[i] = a[i] == 0; });
      break;
    case Op::eq_i:
      each([&](int i) { y[i] = a[i] == b[i]; });
      break;
    case Op::ne_i:
      each([&](int i) { y[i] = a[i] != b[i]; });
      break;
    case Op::lt_i:
      each([&](int i) { y[i] = a[i] < b[i]; });
      break;
    case Op::le_i:
      each([&](int i) { y[i] = a[i] <= b[i]; });
      break;
    case Op::eq_f:
      each([&](int i) { y[i] = fa[i] == fb[i]; });
      break;
    case Op::ne_f:
      each([&](int i) { y[i] = fa[i] != fb[i]; });
      break;
    case Op::lt_f:
      each([&](int i) { y[i] = fa[i] < fb[i]; });
      break;
    case Op::le_f:
      each([&](int i) { y[i] = fa[i] <= fb[i]; });
      break;
    case Op::select_i:
      each([&](int i) { y[i] = a[i] != 0 ? b[i] : c[i]; });
      break;
    case Op::bound_i: {
      int32_t bad = 0;
      each([&](int i) {
        const int32_t wrapped = a[i] < 0 ? a[i] + number : a[i];
        y[i] = wrapped < 0 ? 0 : (wrapped >= number ? number - 1 : wrapped);
        bad |= (i % kQueries < at.count) & (i / kQueries < at.rows) & (y[i] != wrapped);
      });
      if (bad != 0) program.note_out_of_range();
      break;
    }
    case Op::gather_i: {
      const auto* table = program.tables()[static_cast<size_t>(in.table)].template data<int32_t>();
      each([&](int i) { y[i] = table[a[i]]; });
      break;
    }
    default:
      break;
  }
}

// y = f(a), dy = df(a, y) · da
template <bool kDerivative, class T, class F, class D>
MH_INLINE void unary(Registers<T>& r, int32_t index, int32_t a_index, bool active, F&& f, D&& df) {
  T* y = r.value(index);
  const T* a = r.value(a_index);
  each([&](int i) { y[i] = f(a[i]); });
  if (kDerivative && active) {
    T* dy = r.slope(index);
    const T* da = r.slope(a_index);
    each([&](int i) { dy[i] = df(a[i], y[i]) * da[i]; });
  }
}

template <bool kDerivative, class T>
MH_INLINE void run_number(const ScoreProgram& program, int32_t index, Registers<T>& r) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  const bool active = kDerivative && program.is_active(index);
  T* y = r.value(index);
  T* dy = r.slope(index);
  const T* a = in.a >= 0 ? r.value(in.a) : nullptr;
  const T* b = in.b >= 0 ? r.value(in.b) : nullptr;
  const T* da = in.a >= 0 ? r.slope(in.a) : nullptr;
  const T* db = in.b >= 0 ? r.slope(in.b) : nullptr;
  const int32_t* ia = in.a >= 0 ? r.integer(in.a) : nullptr;
  const auto number = static_cast<T>(in.number);
  switch (in.op) {
    case Op::score:
      break;
    case Op::const_f:
      each([&](int i) { y[i] = number; });
      break;
    case Op::to_f:
      each([&](int i) { y[i] = static_cast<T>(ia[i]); });
      break;
    case Op::add_f:
      each([&](int i) { y[i] = a[i] + b[i]; });
      if (active) each([&](int i) { dy[i] = da[i] + db[i]; });
      break;
    case Op::sub_f:
      each([&](int i) { y[i] = a[i] - b[i]; });
      if (active) each([&](int i) { dy[i] = da[i] - db[i]; });
      break;
    case Op::mul_f:
      each([&](int i) { y[i] = a[i] * b[i]; });
      if (active) each([&](int i) { dy[i] = da[i] * b[i] + a[i] * db[i]; });
      break;
    case Op::div_f:
      each([&](int i) { y[i] = a[i] / b[i]; });
      if (active) each([&](int i) { dy[i] = (da[i] - y[i] * db[i]) / b[i]; });
      break;
    case Op::min_f:
      each([&](int i) { y[i] = b[i] < a[i] ? b[i] : a[i]; });
      if (active) each([&](int i) { dy[i] = b[i] < a[i] ? db[i] : da[i]; });
      break;
    case Op::max_f:
      each([&](int i) { y[i] = b[i] > a[i] ? b[i] : a[i]; });
      if (active) each([&](int i) { dy[i] = b[i] > a[i] ? db[i] : da[i]; });
      break;
    case Op::neg_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return -x; }, [](T, T) { return T(-1); });
      break;
    case Op::abs_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return x < 0 ? -x : x; },
          [](T x, T) { return x > 0 ? T(1) : (x < 0 ? T(-1) : T(0)); });
      break;
    case Op::exp_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return vector_exp(x); }, [](T, T e) { return e; });
      break;
    case Op::tanh_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return vector_tanh(x); }, [](T, T t) { return 1 - t * t; });
      break;
    case Op::sigmoid_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return 1 / (1 + vector_exp(-x)); },
          [](T, T s) { return s * (1 - s); });
      break;
    case Op::log_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::log(x); }, [](T x, T) { return 1 / x; });
      break;
    case Op::sqrt_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::sqrt(x); }, [](T, T s) { return T(0.5) / s; });
      break;
    case Op::sin_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::sin(x); }, [](T x, T) { return std::cos(x); });
      break;
    case Op::cos_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::cos(x); }, [](T x, T) { return -std::sin(x); });
      break;
    case Op::erf_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::erf(x); },
          [](T x, T) { return T(1.1283791670955126) * std::exp(-x * x); });
      break;
    case Op::pow_f:  // the exponent is a constant in in.number
      unary<kDerivative>(
          r, index, in.a, active, [&](T x) { return std::pow(x, number); },
          [&](T x, T) { return number * std::pow(x, number - 1); });
      break;
    case Op::floor_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::floor(x); }, [](T, T) { return T(0); });
      break;
    case Op::round_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::nearbyint(x); }, [](T, T) { return T(0); });
      break;
    case Op::select_f: {
      const T* x = r.value(in.b);
      const T* z = r.value(in.c);
      each([&](int i) { y[i] = ia[i] != 0 ? x[i] : z[i]; });
      if (active) {
        const T* dx = r.slope(in.b);
        const T* dz = r.slope(in.c);
        each([&](int i) { dy[i] = ia[i] != 0 ? dx[i] : dz[i]; });
      }
      break;
    }
    case Op::gather_f: {
      const Tensor& table = program.tables()[static_cast<size_t>(in.table)];
      if (table.dtype() == Dtype::f64) {
        const double* t = table.data<double>();
        each([&](int i) { y[i] = static_cast<T>(t[ia[i]]); });
      } else {
        const float* t = table.data<float>();
        each([&](int i) { y[i] = static_cast<T>(t[ia[i]]); });
      }
      break;
    }
    default:
      break;
  }
}

template <bool kDerivative, class T>
MH_INLINE void run(const ScoreProgram& program, const std::vector<int32_t>& list, Registers<T>& r,
                   const Place& at) {
  for (const int32_t index : list) {
    if (is_integer(program.code()[static_cast<size_t>(index)].op)) {
      run_integer(program, index, r, at);
    } else {
      run_number<kDerivative>(program, index, r);
    }
  }
}

template <class T>
MH_INLINE void load_block(const T* scores, int64_t stride, const Place& at, T* x) {
  for (int k = 0; k < at.rows; ++k) {
    const T* row = scores + k * stride;
    if (at.count == kQueries) {
      for (int i = 0; i < kQueries; ++i) x[k * kQueries + i] = row[i];
    } else {
      for (int i = 0; i < at.count; ++i) x[k * kQueries + i] = row[i];
    }
  }
  if (at.rows == kKeys && at.count == kQueries) return;
  for (int i = 0; i < kBlock; ++i) {  // a block cut short computes on zeros
    if (i % kQueries >= at.count || i / kQueries >= at.rows) x[i] = 0;
  }
}

template <class T>
MH_INLINE void store_block(const T* y, const Place& at, T* scores, int64_t stride) {
  for (int k = 0; k < at.rows; ++k) {
    T* row = scores + k * stride;
    if (at.count == kQueries) {
      for (int i = 0; i < kQueries; ++i) row[i] = y[k * kQueries + i];
    } else {
      for (int i = 0; i < at.count; ++i) row[i] = y[k * kQueries + i];
    }
  }
}

template <bool kDerivative, class T>
MH_INLINE void apply_tile(const ScoreProgram& program, const kernels::ScoreTile<T>& tile, T* derivative) {
  const auto size = static_cast<int32_t>(program.code().size());
  Registers<T>& r = registers<T>();
  r.fit(static_cast<size_t>(size));
  int32_t score = -1;  // instructions are unique, so there is one at most
  for (int32_t i = 0; i < size; ++i) {
    if (program.code()[static_cast<size_t>(i)].op == Op::score) score = i;
  }
  if (kDerivative) {
    // Only what depends on the score writes a derivative; the others are zero.
    for (int32_t i = 0; i < size; ++i) {
      if (!program.is_active(i)) std::fill_n(r.slope(i), kBlock, T(0));
    }
    if (score >= 0) std::fill_n(r.slope(score), kBlock, T(1));
  }
  Place at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head), 0, 0, 0, 0};
  for (int64_t q = 0; q < tile.query_count; q += kQueries) {
    at.query = static_cast<int32_t>(tile.query_begin + q);
    at.count = static_cast<int32_t>(std::min<int64_t>(kQueries, tile.query_count - q));
    at.rows = kKeys;
    run<kDerivative>(program, program.once(), r, at);
    for (int64_t k = 0; k < tile.key_count; k += kKeys) {
      at.key = static_cast<int32_t>(tile.key_begin + k);
      at.rows = static_cast<int32_t>(std::min<int64_t>(kKeys, tile.key_count - k));
      T* scores = tile.scores + k * tile.stride + q;
      if (score >= 0) load_block(scores, tile.stride, at, r.value(score));
      run<kDerivative>(program, program.per_key(), r, at);
      store_block(r.value(size - 1), at, scores, tile.stride);
      if (kDerivative) store_block(r.slope(size - 1), at, derivative + k * tile.stride + q, tile.stride);
    }
  }
}

MH_INLINE void fill_tile(const ScoreProgram& program, const kernels::KeepTile& tile) {
  const auto size = static_cast<int32_t>(program.code().size());
  Registers<float>& r = registers<float>();
  r.fit(static_cast<size_t>(size));
  Place at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head), 0, 0, 0, 0};
  for (int64_t q = 0; q < tile.query_count; q += kQueries) {
    at.query = static_cast<int32_t>(tile.query_begin + q);
    at.count = static_cast<int32_t>(std::min<int64_t>(kQueries, tile.query_count - q));
    at.rows = kKeys;
    run<false>(program, program.once(), r, at);
    for (int64_t k = 0; k < tile.key_count; k += kKeys) {
      at.key = static_cast<int32_t>(tile.key_begin + k);
      at.rows = static_cast<int32_t>(std::min<int64_t>(kKeys, tile.key_count - k));
      run<false>(program, program.per_key(), r, at);
      const int32_t* y = r.integer(size - 1);
      for (int row = 0; row < at.rows; ++row) {
        uint8_t* keep = tile.keep + (k + row) * tile.stride + q;
        for (int i = 0; i < at.count; ++i) keep[i] = y[row * kQueries + i] != 0;
      }
    }
  }
}

// The same loops for each instruction set. No FMA contraction: all give the same bits.
#if defined(__x86_64__) && defined(__GNUC__)
#define MH_AVX2 __attribute__((target("avx2")))
#define MH_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")))
#else
#define MH_AVX2
#define MH_AVX512
#endif

template <bool kDerivative, class T>
void apply_baseline(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  apply_tile<kDerivative>(p, t, d);
}
template <bool kDerivative, class T>
MH_AVX2 void apply_avx2(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  apply_tile<kDerivative>(p, t, d);
}
template <bool kDerivative, class T>
MH_AVX512 void apply_avx512(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  apply_tile<kDerivative>(p, t, d);
}
void fill_baseline(const ScoreProgram& p, const kernels::KeepTile& t) { fill_tile(p, t); }
MH_AVX2 void fill_avx2(const ScoreProgram& p, const kernels::KeepTile& t) { fill_tile(p, t); }

template <bool kDerivative, class T>
void dispatch_apply(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  switch (kernels::current_isa()) {
    case kernels::Isa::avx512:
      return apply_avx512<kDerivative>(p, t, d);
    case kernels::Isa::avx2:
      return apply_avx2<kDerivative>(p, t, d);
    default:
      return apply_baseline<kDerivative>(p, t, d);
  }
}

}  // namespace

template <class T>
void ScoreProgram::apply(const kernels::ScoreTile<T>& tile, T* derivative) const {
  if (derivative != nullptr) {
    dispatch_apply<true>(*this, tile, derivative);
  } else {
    dispatch_apply<false>(*this, tile, derivative);
  }
}
template void ScoreProgram::apply(const kernels::ScoreTile<float>&, float*) const;
template void ScoreProgram::apply(const kernels::ScoreTile<double>&, double*) const;

void ScoreProgram::fill(const kernels::KeepTile& tile) const {
  kernels::current_isa() >= kernels::Isa::avx2 ? fill_avx2(*this, tile) : fill_baseline(*this, tile);
}

}  // namespace multihead::python
