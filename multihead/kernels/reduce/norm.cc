// Rows go to the threads; a row stays in L1 between its passes (sum, squared deviations, result), which is
// more precise than one pass of moments. The gradients of weight and bias are summed over fixed chunks of
// rows and the chunks in order, so their bits do not depend on the threads.
#include "multihead/kernels/reduce/norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/reduce/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/reduce/chains-inl.h"
#include "multihead/kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// x (+ residual) and its sum, of a part of a row that is one chain, as are those below.
template <class T>
HWY_NOINLINE float ChainSum(const T* x, const float* residual, float* sum, int64_t size) {
  Pack total = Set(0);
  if (residual == nullptr) {
    ForPacks(size, [&](int64_t i, auto at) HWY_ATTR { total = Add(total, at.Load(x + i)); });
  } else {
    ForPacks(size, [&](int64_t i, auto at) HWY_ATTR {
      const Pack s = Add(at.Load(x + i), at.Load(residual + i));
      at.Store(s, sum + i);
      total = Add(total, s);
    });
  }
  return Sum(total);
}

template <class T>
HWY_NOINLINE float ChainOfSquares(const T* x, float mean, int64_t size) {
  const Pack center = Set(mean);
  Pack total = Set(0);
  ForPacks(size, [&](int64_t i, auto at) HWY_ATTR {
    const Pack v = Sub(at.Load(x + i, mean), center);
    total = MulAdd(v, v, total);
  });
  return Sum(total);
}

// x (+ residual) of one row and its sum.
template <class T>
HWY_INLINE float RowSum(const T* x, const float* residual, float* sum, int64_t size) {
  return SumOfChains(size, [&](int64_t at, int64_t n) HWY_ATTR {
    return residual == nullptr ? ChainSum(x + at, nullptr, nullptr, n)
                               : ChainSum(x + at, residual + at, sum + at, n);
  });
}

template <class T>
HWY_INLINE float SquaredDeviations(const T* x, float mean, int64_t size) {
  return SumOfChains(size, [&](int64_t at, int64_t n) HWY_ATTR { return ChainOfSquares(x + at, mean, n); });
}

template <bool kWeight, bool kBias, class T>
HWY_NOINLINE void Affine(const NormArgs<float>& a, const T* x, T* y, int64_t row, float mean, float inv_std) {
  const Pack center = Set(mean), factor = Set(inv_std);
  BFloat16* normalized = a.normalized16 != nullptr ? a.normalized16 + row * a.size : nullptr;
  ForPacks(a.size, [&](int64_t i, auto at) HWY_ATTR {
    Pack v = Mul(Sub(at.Load(x + i), center), factor);
    if (normalized != nullptr) at.Store(v, normalized + i);
    if constexpr (kWeight && kBias) {
      v = MulAdd(v, at.Load(a.weight + i), at.Load(a.bias + i));
    } else if constexpr (kWeight) {
      v = Mul(v, at.Load(a.weight + i));
    } else if constexpr (kBias) {
      v = Add(v, at.Load(a.bias + i));
    }
    at.Store(v, y + i);
  });
}

// `sum` is that of x, if the mean is requested.
template <bool kWeight, bool kBias, class T>
HWY_INLINE void NormRow(const NormArgs<float>& a, const T* x, T* y, int64_t row, float sum) {
  const float size = static_cast<float>(a.size), eps = static_cast<float>(a.eps);
  float mean = 0;
  if (a.mean != nullptr) a.mean[row] = mean = sum / size;
  const float inv_std = 1 / std::sqrt(SquaredDeviations(x, mean, a.size) / size + eps);
  a.inv_std[row] = inv_std;
  Affine<kWeight, kBias>(a, x, y, row, mean, inv_std);
}

template <bool kWeight, bool kBias>
void NormRowsOf(const NormArgs<float>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * a.size;
    float sum = 0;
    if (a.y16 != nullptr) {
      const BFloat16* x16 = a.x16 + at;
      if (a.mean != nullptr) sum = RowSum(x16, nullptr, nullptr, a.size);
      NormRow<kWeight, kBias>(a, x16, a.y16 + at, row, sum);
      continue;
    }
    const float* x = a.x + at;
    if (a.mean != nullptr || a.residual != nullptr) {
      const float* residual = a.residual == nullptr ? nullptr : a.residual + at;
      sum = a.x16 != nullptr ? RowSum(a.x16 + at, residual, a.sum + at, a.size)
                             : RowSum(x, residual, a.sum + at, a.size);
      if (a.residual != nullptr) x = a.sum + at;
    }
    NormRow<kWeight, kBias>(a, x, a.y + at, row, sum);
  }
}

template <class At>
HWY_INLINE Pack LoadOr(const float* parameter, int64_t i, At at, Pack absent) {
  return parameter != nullptr ? at.Load(parameter + i) : absent;
}

void AffineRange(const NormArgs<float>& a, int64_t begin, int64_t end) {
  const Pack one = Set(1), zero = Set(0);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * a.size;
    ForPacks(a.size, [&](int64_t i, auto at) HWY_ATTR {
      const Pack weight = LoadOr(a.weight, i, at, one);
      const Pack bias = LoadOr(a.bias, i, at, zero);
      at.Store(MulAdd(at.Load(a.normalized16 + first + i), weight, bias), a.y + first + i);
    });
  }
}

void NormRange(const NormArgs<float>& a, int64_t begin, int64_t end) {
  if (a.weight != nullptr) {
    a.bias != nullptr ? NormRowsOf<true, true>(a, begin, end) : NormRowsOf<true, false>(a, begin, end);
  } else {
    a.bias != nullptr ? NormRowsOf<false, true>(a, begin, end) : NormRowsOf<false, false>(a, begin, end);
  }
}

// Rows whose gradients of weight and bias are one chain: its error grows with its length.
inline constexpr int64_t kChainRows = 8;

// to += from; from = 0.
inline void MoveSums(float* from, float* to, int64_t size) {
  ForPacks(size, [&](int64_t i, auto at) HWY_ATTR {
    at.Store(Add(at.Load(to + i), at.Load(from + i)), to + i);
    at.Store(Set(0), from + i);
  });
}

// d_weight and d_bias of the rows [begin, end) go to the first half of `partial` [2, 2, size]. x is one of
// three. A missing weight is 1, which changes no bit.
template <bool kLayer, bool kNormalized, class T>
void NormBackwardRows(const NormGradArgs<float>& a, const T* x, int64_t begin, int64_t end, float* partial) {
  const float scale = 1.0f / static_cast<float>(a.size);
  float* d_weight = partial + 2 * a.size;
  float* d_bias = d_weight + a.size;
  std::fill(partial, partial + 4 * a.size, 0.0f);
  const Pack one = Set(1);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * a.size;
    const float* dy = a.dy + first;
    const Pack center = Set(kLayer ? a.mean[row] : 0.0f), factor = Set(a.inv_std[row]);
    const auto normed_at = [&](int64_t i, auto at) HWY_ATTR {
      if constexpr (kNormalized) return at.Load(x + first + i);
      return Mul(Sub(at.Load(x + first + i), center), factor);
    };
    double all_g = 0;
    const float all_gx = SumOfChains(a.size, [&](int64_t from, int64_t n) HWY_ATTR {
      Pack sum_g = Set(0), sum_gx = Set(0);
      ForPacks(n, [&](int64_t j, auto at) HWY_ATTR {
        const int64_t i = from + j;
        const Pack d = at.Load(dy + i);
        const Pack normed = normed_at(i, at);
        const Pack g = Mul(d, LoadOr(a.weight, i, at, one));
        if constexpr (kLayer) sum_g = Add(sum_g, g);
        sum_gx = MulAdd(g, normed, sum_gx);
        at.Store(MulAdd(d, normed, at.Load(d_weight + i)), d_weight + i);
        at.Store(Add(d, at.Load(d_bias + i)), d_bias + i);
      });
      if constexpr (kLayer) all_g += Sum(sum_g);
      return Sum(sum_gx);
    });
    const Pack mean_g = Set(static_cast<float>(all_g) * scale), mean_gx = Set(all_gx * scale);
    ForPacks(a.size, [&](int64_t i, auto at) HWY_ATTR {
      const Pack normed = normed_at(i, at);
      Pack g = Mul(at.Load(dy + i), LoadOr(a.weight, i, at, one));
      if constexpr (kLayer) g = Sub(g, mean_g);
      g = Mul(NegMulAdd(normed, mean_gx, g), factor);
      if (a.d_sum != nullptr) g = Add(g, at.Load(a.d_sum + first + i));
      at.Store(g, a.dx + first + i);
    });
    if ((row + 1 - begin) % kChainRows == 0 || row + 1 == end) MoveSums(d_weight, partial, 2 * a.size);
  }
}

template <bool kLayer>
void NormBackwardSum(const NormGradArgs<float>& a, int64_t begin, int64_t end, float* partial) {
  if (a.normalized16 != nullptr) {
    NormBackwardRows<kLayer, true>(a, a.normalized16, begin, end, partial);
  } else if (a.x16 != nullptr) {
    NormBackwardRows<kLayer, false>(a, a.x16, begin, end, partial);
  } else {
    NormBackwardRows<kLayer, false>(a, a.x, begin, end, partial);
  }
}

void NormBackwardRange(const NormGradArgs<float>& a, int64_t begin, int64_t end, float* partial) {
  a.mean != nullptr ? NormBackwardSum<true>(a, begin, end, partial)
                    : NormBackwardSum<false>(a, begin, end, partial);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 8192;     // elements
constexpr int64_t kChunkRows = 64;   // least rows that share one partial gradient
constexpr int64_t kMostChunks = 64;  // of partial gradients

HWY_EXPORT(NormRange);
HWY_EXPORT(AffineRange);
HWY_EXPORT(NormBackwardRange);

int64_t row_grain(int64_t size) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(size, 1)); }

int64_t chunk_rows(int64_t rows) { return std::max(kChunkRows, (rows + kMostChunks - 1) / kMostChunks); }
int64_t chunk_count(int64_t rows) { return (rows + chunk_rows(rows) - 1) / chunk_rows(rows); }

void backward_range(const NormGradArgs<double>& a, int64_t begin, int64_t end, double* partial) {
  std::fill(partial, partial + 2 * a.size, 0.0);
  const double size = static_cast<double>(a.size);
  for (int64_t row = begin; row < end; ++row) {
    const double* x = a.x + row * a.size;
    const double* dy = a.dy + row * a.size;
    const double mean = a.mean != nullptr ? a.mean[row] : 0, inv_std = a.inv_std[row];
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < a.size; ++i) {
      const double normed = (x[i] - mean) * inv_std, g = a.weight != nullptr ? dy[i] * a.weight[i] : dy[i];
      mean_g += g / size;
      mean_gx += g * normed / size;
      partial[i] += dy[i] * normed;
      partial[a.size + i] += dy[i];
    }
    if (a.mean == nullptr) mean_g = 0;
    for (int64_t i = 0; i < a.size; ++i) {
      const double normed = (x[i] - mean) * inv_std, g = a.weight != nullptr ? dy[i] * a.weight[i] : dy[i];
      const double d_sum = a.d_sum != nullptr ? a.d_sum[row * a.size + i] : 0;
      a.dx[row * a.size + i] = (g - mean_g - normed * mean_gx) * inv_std + d_sum;
    }
  }
}

template <class T, class Range>
void backward(const NormGradArgs<T>& a, Range range) {
  const int64_t chunks = chunk_count(a.rows), chunk = chunk_rows(a.rows);
  parallel_for(chunks, [&](int64_t i, int) {
    range(a, i * chunk, std::min(a.rows, (i + 1) * chunk), a.scratch + i * 4 * a.size);
  });
  const auto add_up = [&](T* total, const T* partials) {
    if (total == nullptr) return;
    std::fill(total, total + a.size, T{0});
    for (int64_t i = 0; i < chunks; ++i) {
      for (int64_t j = 0; j < a.size; ++j) total[j] += partials[i * 4 * a.size + j];
    }
  };
  add_up(a.d_weight, a.scratch);
  add_up(a.d_bias, a.scratch + a.size);
}

}  // namespace

void norm(const NormArgs<float>& args) {
  const auto range = HWY_DYNAMIC_DISPATCH(NormRange);
  parallel_ranges(args.rows, row_grain(args.size),
                  [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

void norm_affine(const NormArgs<float>& args) {
  const auto range = HWY_DYNAMIC_DISPATCH(AffineRange);
  parallel_ranges(args.rows, row_grain(args.size),
                  [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

void norm(const NormArgs<double>& a) {
  const double size = static_cast<double>(a.size);
  for (int64_t row = 0; row < a.rows; ++row) {
    const double* x = a.x + row * a.size;
    if (a.residual != nullptr) {
      double* sum = a.sum + row * a.size;
      for (int64_t i = 0; i < a.size; ++i) sum[i] = x[i] + a.residual[row * a.size + i];
      x = sum;
    }
    double mean = 0, variance = 0;
    if (a.mean != nullptr) {
      for (int64_t i = 0; i < a.size; ++i) mean += x[i];
      a.mean[row] = mean /= size;
    }
    for (int64_t i = 0; i < a.size; ++i) variance += (x[i] - mean) * (x[i] - mean);
    const double inv_std = a.inv_std[row] = 1 / std::sqrt(variance / size + a.eps);
    for (int64_t i = 0; i < a.size; ++i) {
      const double v = (x[i] - mean) * inv_std * (a.weight != nullptr ? a.weight[i] : 1);
      a.y[row * a.size + i] = v + (a.bias != nullptr ? a.bias[i] : 0);
    }
  }
}

int64_t norm_backward_scratch(int64_t rows, int64_t size) { return chunk_count(rows) * 4 * size; }

void norm_backward(const NormGradArgs<float>& args) {
  backward(args, HWY_DYNAMIC_DISPATCH(NormBackwardRange));
}
void norm_backward(const NormGradArgs<double>& args) { backward(args, backward_range); }

}  // namespace multihead::kernels
#endif  // HWY_ONCE
