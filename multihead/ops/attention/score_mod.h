// A user's function of one score, fused into attention, with the derivative taken by dual numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/ops/attention/score_math.h"

namespace multihead {

/// Position of a score.
struct ScoreIndex {
  int32_t batch = 0;
  int32_t head = 0;   ///< query head
  int32_t query = 0;  ///< position of the query among the keys: row + offset of the mask's diagonal
  int32_t key = 0;    ///< position of the key
  int32_t row = 0;    ///< index of the query in its tensor
};

namespace detail {

/// Context that the kernel hands back to the functions below.
struct ScoreContext {
  const void* function = nullptr;
  const int64_t* offsets = nullptr;  // per sample; null: `offset` for all
  int64_t offset = 0;
  int64_t offset_of(int64_t batch) const { return offsets ? offsets[batch] : offset; }
};

// The loops run over blocks of a fixed size in local arrays, which compilers turn into vectors at -O2. AVX2
// without FMA has the bits of the baseline build whatever the caller's contraction flags are.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MULTIHEAD_NO_SCORE_CLONES)
#define MH_SCORE_CLONES 1
#define MH_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define MH_SCORE_CLONES 0
#endif

inline constexpr int64_t kScoreBlock = 16;

template <class T, class F, bool kDerivative>
[[gnu::always_inline]] inline void apply_score_tile(const F& f, const ScoreContext& context,
                                                    const kernels::ScoreTile& tile, void* derivative) {
  const int32_t first_row = static_cast<int32_t>(tile.query_begin);
  const int32_t offset = static_cast<int32_t>(context.offset_of(tile.batch));
  for (int64_t k = 0; k < tile.key_count; ++k) {
    T* row = static_cast<T*>(tile.scores) + k * tile.stride;
    T* slope = kDerivative ? static_cast<T*>(derivative) + k * tile.stride : nullptr;
    for (int64_t q = 0; q < tile.query_count; q += kScoreBlock) {
      const int64_t count = std::min(kScoreBlock, tile.query_count - q);
      T padded[kScoreBlock], y[kScoreBlock], dy[kScoreBlock];
      const T* x = row + q;  // read in place: a copy in narrow pieces would stall the wide loads below
      if (count < kScoreBlock) {
        for (int64_t i = 0; i < kScoreBlock; ++i) padded[i] = i < count ? x[i] : T(0);
        x = padded;
      }
      const auto last = static_cast<int32_t>(count - 1);
      // Rolled: at -O3 GCC 12 unrolls the loop first and then vectorises little of it (1.15 of a call's
      // time).
#pragma GCC unroll 1
      for (int32_t i = 0; i < static_cast<int32_t>(kScoreBlock); ++i) {
        // Beyond the last row, again that: the function may index a table of exactly as many.
        const int32_t at_row = first_row + static_cast<int32_t>(q) + std::min(i, last);
        const ScoreIndex at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head),
                            at_row + offset, static_cast<int32_t>(tile.key_begin + k), at_row};
        if constexpr (kDerivative) {
          const Dual<T> result = f(Dual<T>(x[i], T(1)), at);
          y[i] = result.value;
          dy[i] = result.derivative;
        } else {
          y[i] = static_cast<T>(f(x[i], at));
        }
      }
      if (count == kScoreBlock) {
        for (int64_t i = 0; i < kScoreBlock; ++i) row[q + i] = y[i];
        if constexpr (kDerivative) {
          for (int64_t i = 0; i < kScoreBlock; ++i) slope[q + i] = dy[i];
        }
      } else {
        for (int64_t i = 0; i < count; ++i) row[q + i] = y[i];
        if constexpr (kDerivative) {
          for (int64_t i = 0; i < count; ++i) slope[q + i] = dy[i];
        }
      }
    }
  }
}

// flatten: the user's function is compiled into the loop, whatever its size.
template <class F, class T, bool kDerivative>
[[gnu::flatten]] void score_tile_baseline(const void* context, const kernels::ScoreTile& tile,
                                          void* derivative) {
  const auto& bound = *static_cast<const ScoreContext*>(context);
  apply_score_tile<T, F, kDerivative>(*static_cast<const F*>(bound.function), bound, tile, derivative);
}

#if MH_SCORE_CLONES
template <class F, class T, bool kDerivative>
[[gnu::flatten]] MH_TARGET_AVX2 void score_tile_avx2(const void* context, const kernels::ScoreTile& tile,
                                                     void* derivative) {
  const auto& bound = *static_cast<const ScoreContext*>(context);
  apply_score_tile<T, F, kDerivative>(*static_cast<const F*>(bound.function), bound, tile, derivative);
}
#endif

/// The compiled versions of one function for one element type; the context comes later.
template <class F, class T>
kernels::ScoreFunction score_table(bool avx2) {
#if MH_SCORE_CLONES
  if (avx2) {
    return {
        .apply = [](const void* context,
                    const kernels::ScoreTile& tile) { score_tile_avx2<F, T, false>(context, tile, nullptr); },
        .apply_with_derivative = score_tile_avx2<F, T, true>};
  }
#endif
  (void)avx2;
  return {.apply =
              [](const void* context, const kernels::ScoreTile& tile) {
                score_tile_baseline<F, T, false>(context, tile, nullptr);
              },
          .apply_with_derivative = score_tile_baseline<F, T, true>};
}

}  // namespace detail

/// A score function ready for attention(); made by score_mod(). A default one changes nothing.
class ScoreMod {
 public:
  ScoreMod() = default;
  template <class F>
  explicit ScoreMod(std::shared_ptr<const F> function)
      : function_(function), f32_(detail::score_table<F, float>), f64_(detail::score_table<F, double>) {}

  /// A function that knows its derivative by the numbers of `captured`, too, which then get gradients.
  template <class F>
  ScoreMod(std::shared_ptr<const F> function, std::vector<Tensor> captured) : ScoreMod(std::move(function)) {
    capture(std::move(captured));
  }

  /// The same by its tables for f32 and f64.
  using Table = kernels::ScoreFunction (*)(bool avx2);
  ScoreMod(std::shared_ptr<const void> function, Table f32, Table f64, std::vector<Tensor> captured)
      : function_(std::move(function)), f32_(f32), f64_(f64) {
    capture(std::move(captured));
  }

  explicit operator bool() const { return function_ != nullptr; }
  /// The tensors that get gradients besides the scores; the kernel's sums hold them one after another.
  const std::vector<Tensor>& captured() const { return captured_; }
  const void* function() const { return function_.get(); }

  /// The kernel's callbacks for scores of f32 or f64; `context` must outlive their use and hold function().
  kernels::ScoreFunction bind(Dtype dtype, const detail::ScoreContext* context) const {
    kernels::ScoreFunction f =
        (dtype == Dtype::f64 ? f64_ : f32_)(kernels::current_isa() >= kernels::Isa::avx2);
    f.context = context, f.captured = captured_size_;
    if (captured_size_ == 0) f.backward = nullptr;
    return f;
  }

 private:
  void capture(std::vector<Tensor> captured) {
    captured_ = std::move(captured);
    for (const Tensor& x : captured_) captured_size_ += x.numel();
  }

  std::shared_ptr<const void> function_;
  Table f32_ = nullptr, f64_ = nullptr;
  std::vector<Tensor> captured_;
  int64_t captured_size_ = 0;
};

/// score <- f(score, at), applied after the scaling and before soft-cap, biases and masks.
///
/// `f` is generic, `auto f(auto score, ScoreIndex at)`: it is called with float, double and Dual numbers,
/// from several threads at once, for rows and keys that exist, but also for pairs that a mask excludes
/// afterwards. It is copied; what it refers to must live until the backward has run. Gradients flow through
/// `score` alone: numbers that f reads from a tensor (data<float>()) are constants, and no tape knows that
/// they depend on anything, queries included. What is to learn goes to score_mod(f, tensors) of
/// captured_score_mod.h, or into bias, alibi_slopes, relative_bias or relative_key. For exp, tanh and sigmoid
/// use those of score_math.h.
///
///   auto alibi = [&](auto score, ScoreIndex at) { return score - slope[at.head] * float(at.query - at.key);
///   }; attention(q, k, v, {.mask = causal()}, score_mod(alibi));
template <class F>
ScoreMod score_mod(F f) {
  static_assert(std::is_invocable_v<const F&, Dual<double>, ScoreIndex>,
                "score_mod: f must take scores of any number type: [](auto score, ScoreIndex at) { ... }");
  return ScoreMod(std::make_shared<const F>(std::move(f)));
}

}  // namespace multihead
