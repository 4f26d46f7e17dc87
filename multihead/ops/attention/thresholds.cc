// Sparsemax (Martins and Astudillo 2016) and entmax-1.5 (Peters et al. 2019) of a row of scores s:
//   p = max(x - t, 0)^a with x = s, a = 1, or x = s / 2, a = 2, and t such that the row's p add up to 1.
//
// Newton's steps find t, each from two passes over the keys that keep nothing but sums: of p and of its slope. They start
// below t, where the sum is convex and falls, so they rise to it and never pass it; a row that has stopped rising has
// its t for good, whatever the other rows do. One more step from there is recorded: by it t has the derivatives of the
// implicit function, and so the weights have theirs.
#include "multihead/ops/attention/thresholds-inl.h"

#include <cmath>
#include <memory>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"

namespace multihead::detail {
namespace {

// p of a score, or its slope by x, with the thresholds [B, H, Tq] or, of packed rows, [H, N].
struct Threshold {
  Tensor of_row;  // f32 or f64, contiguous
  bool squared, slope;
  std::vector<int64_t> begins;  // where the rows of a sample begin, of packed rows

  int64_t first(const kernels::ScoreTile& tile) const {
    const Shape& strides = of_row.strides();
    if (of_row.rank() == 2)
      return tile.head * strides[0] + begins[static_cast<size_t>(tile.batch)] + tile.query_begin;
    return tile.batch * strides[0] + tile.head * strides[1] + tile.query_begin;
  }
};

// f(k, q, score, x - t, the place of t) for every pair of a tile.
template <class T, class F>
void each_pair_above(const Threshold& threshold, const kernels::ScoreTile& tile, const F& f) {
  const int64_t first = threshold.first(tile);
  const T* t = threshold.of_row.data<T>() + first;
  const T factor = threshold.squared ? T(0.5) : T(1);
  for (int64_t k = 0; k < tile.key_count; ++k) {
    T* row = static_cast<T*>(tile.scores) + k * tile.stride;
    int64_t q = 0;
    for (; q + kScoreBlock <= tile.query_count; q += kScoreBlock) {  // a count that compilers know
      for (int64_t i = q; i < q + kScoreBlock; ++i)
        f(k * tile.stride + i, row[i], factor * row[i] - t[i], first + i);
    }
    for (; q < tile.query_count; ++q) f(k * tile.stride + q, row[q], factor * row[q] - t[q], first + q);
  }
}

// score <- weight(x, one) of x, by how much it lies above the threshold or 0, and whether it does.
template <class T, class F>
void apply_above(const Threshold& threshold, const kernels::ScoreTile& tile, const F& weight) {
  each_pair_above<T>(threshold, tile, [&](int64_t, T& score, T above, int64_t) {
    score = weight(above > 0 ? above : T(0), above > 0 ? T(1) : T(0));
  });
}

template <class T>
void apply_threshold(const void* context, const kernels::ScoreTile& tile) {
  const auto& threshold = *static_cast<const Threshold*>(static_cast<const ScoreContext*>(context)->function);
  if (threshold.squared) {
    return threshold.slope ? apply_above<T>(threshold, tile, [](T x, T) { return 2 * x; })
                           : apply_above<T>(threshold, tile, [](T x, T) { return x * x; });
  }
  return threshold.slope ? apply_above<T>(threshold, tile, [](T, T one) { return one; })
                         : apply_above<T>(threshold, tile, [](T x, T) { return x; });
}

template <class T>
void apply_with_slope(const void* context, const kernels::ScoreTile& tile, void* derivative) {
  const auto& threshold = *static_cast<const Threshold*>(static_cast<const ScoreContext*>(context)->function);
  const bool squared = threshold.squared;
  each_pair_above<T>(threshold, tile, [&](int64_t at, T& score, T above, int64_t) {
    const T x = above > 0 ? above : T(0), one = above > 0 ? T(1) : T(0);
    static_cast<T*>(derivative)[at] = squared ? x : one;
    score = squared ? x * x : x;
  });
}

template <class T>
void threshold_gradient(const void* context, const kernels::ScoreTile& tile, void* d_scores, void* sums) {
  const auto& threshold = *static_cast<const Threshold*>(static_cast<const ScoreContext*>(context)->function);
  const bool squared = threshold.squared;
  each_pair_above<T>(threshold, tile, [&](int64_t at, T&, T above, int64_t row) {
    T& d = static_cast<T*>(d_scores)[at];
    if (d == 0 || !(above > 0)) {
      d = 0;
      return;
    }
    static_cast<T*>(sums)[row] -= squared ? 2 * above * d : d;
    if (squared) d *= above;
  });
}

template <class T>
kernels::ScoreFunction threshold_table(bool /*avx2*/) {
  kernels::ScoreFunction f;
  f.apply = apply_threshold<T>;
  f.apply_with_derivative = apply_with_slope<T>;
  f.backward = threshold_gradient<T>;
  return f;
}

// The weights above thresholds `t`, or their slopes. t gets its gradient.
ScoreMod weights_above(const Tensor& t, bool squared, bool slope, const std::vector<int64_t>& begins) {
  auto function =
      std::make_shared<const Threshold>(Threshold{t.detach().contiguous(), squared, slope, begins});
  return ScoreMod(std::shared_ptr<const void>(std::move(function)), threshold_table<float>,
                  threshold_table<double>, {t});
}

// [rows]: 1 / slope where there is one, and t <- the next step's where that is higher. False if no row rises.
template <class T>
bool rise_once(const Tensor& sums, const Tensor& slopes, const Tensor& t, const Tensor& inverse) {
  bool rises = false;
  for (int64_t i = 0; i < t.numel(); ++i) {
    T &at = t.data<T>()[i], &by = inverse.data<T>()[i];
    const T slope = slopes.data<T>()[i];
    by = slope > 0 ? 1 / slope : T(0);
    const T next = at + (sums.data<T>()[i] - 1) * by;
    if (!(next > at)) continue;
    at = next, rises = true;
  }
  return rises;
}

// Below each row's threshold, from a log-sum-exp over fewer than 2^31 scores: their largest is less than 22 below that.
template <class T>
void start_below(const Tensor& t, bool squared) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    T& at = t.data<T>()[i];
    at = std::isfinite(at) ? (at - 22) * (squared ? T(0.5) : T(1)) - 1 : T(0);
  }
}

}  // namespace

Tensor attention_above_thresholds(const char* who, const AttentionOptions& options, const ScoreMod& score_mod,
                                  const std::vector<int64_t>& begins, const WeightedCall& call) {
  MH_CHECK(!score_mod, ValueError, who, ": score_mod does not go with normalise = sparsemax or entmax15");
  const bool squared = options.normalise == Normalise::entmax15;
  AttentionOptions pass = options;
  pass.capture = nullptr, pass.rng = nullptr, pass.empty_row = EmptyRow::zero;
  pass.sinks = {}, pass.relative_value = {};
  if (!pass.relative_bias.defined() && !pass.relative_key.defined()) pass.relative_center = -1;
  const auto sums_of = [&](Normalise normalise, const ScoreMod& weight) {
    Tensor sums;
    pass.normalise = normalise, pass.lse = &sums;
    call(pass, weight, false);
    return sums;
  };
  Tensor t, inverse;
  {
    const NoTape search;
    t = sums_of(Normalise::softmax, {});
    inverse = empty_like(t);
    const bool wide = t.dtype() == Dtype::f64;
    if (wide) {
      start_below<double>(t, squared);
    } else {
      start_below<float>(t, squared);
    }
    for (int step = 0; step < 100; ++step) {
      const Tensor sums = sums_of(Normalise::sum, weights_above(t, squared, false, begins));
      const Tensor slopes = sums_of(Normalise::sum, weights_above(t, squared, true, begins));
      if (!(wide ? rise_once<double>(sums, slopes, t, inverse) : rise_once<float>(sums, slopes, t, inverse)))
        break;
    }
  }
  const Tensor over = add_scalar(sums_of(Normalise::sum, weights_above(t, squared, false, begins)), -1);
  const Tensor threshold = add(t, mul(over, inverse));
  AttentionOptions last = options;
  last.normalise = Normalise::none, last.lse = nullptr;
  const Tensor out = call(last, weights_above(threshold, squared, false, begins), true);
  if (options.lse) *options.lse = threshold;
  return out;
}

}  // namespace multihead::detail
