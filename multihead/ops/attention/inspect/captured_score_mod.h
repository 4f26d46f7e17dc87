// A score function that reads tensors, which then learn.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

namespace detail {

/// A tensor as score functions read it, row-major f32 or f64; its elements' gradients are sums[first, …).
struct ReadTensor {
  Tensor values;
  int64_t first;
};

/// The reads of one evaluation of a score function, in order; read number `seed` has the derivative 1.
struct ReadLog {
  std::vector<int64_t> places;
  int64_t seed = -1;
};

[[noreturn]] void throw_read_index(size_t tensor, const Tensor& values, const int64_t* index, size_t rank);

template <class N>
struct NumberOf {
  using Type = N;
};
template <class T>
struct NumberOf<Dual<T>> {
  using Type = T;
};

}  // namespace detail

/// The tensors of score_mod(f, tensors) while f computes with numbers of type N: reads[n](i, j, …) is an
/// element of the n-th. Throws ShapeError for an index outside.
template <class N>
class ScoreReads {
 public:
  class Reader {
   public:
    template <class... Index>
    N operator()(Index... index) const {
      static_assert((std::is_integral_v<Index> && ...), "tensors are read at integers");
      const int64_t at[] = {static_cast<int64_t>(index)..., 0};
      return element(at, sizeof...(Index));
    }

   private:
    friend class ScoreReads;
    Reader(const ScoreReads& reads, size_t number) : reads_(reads), number_(number) {}

    N element(const int64_t* index, size_t rank) const {
      const detail::ReadTensor& x = (*reads_.tensors_)[number_];
      const Shape& shape = x.values.shape();
      bool inside = static_cast<size_t>(shape.rank()) == rank;
      int64_t place = 0;
      for (size_t axis = 0; inside && axis < rank; ++axis) {
        const int64_t size = shape[static_cast<int>(axis)];
        inside = index[axis] >= 0 && index[axis] < size;
        place = place * size + index[axis];
      }
      if (!inside) detail::throw_read_index(number_, x.values, index, rank);
      using T = typename detail::NumberOf<N>::Type;
      const T value = x.values.dtype() == Dtype::f64
                          ? static_cast<T>(static_cast<const double*>(x.values.raw())[place])
                          : static_cast<T>(static_cast<const float*>(x.values.raw())[place]);
      if constexpr (!std::is_same_v<N, T>) {
        if (reads_.log_ != nullptr) {
          const bool seeded = static_cast<int64_t>(reads_.log_->places.size()) == reads_.log_->seed;
          reads_.log_->places.push_back(x.first + place);
          return N(value, seeded ? T(1) : T(0));
        }
      }
      return N(value);
    }

    const ScoreReads& reads_;
    size_t number_;
  };

  explicit ScoreReads(const std::vector<detail::ReadTensor>& tensors, detail::ReadLog* log = nullptr)
      : tensors_(&tensors), log_(log) {}
  Reader operator[](size_t number) const {
    MH_CHECK(number < tensors_->size(), ValueError, "score_mod: the function reads tensor ", number, " of ",
             tensors_->size());
    return Reader(*this, number);
  }

 private:
  const std::vector<detail::ReadTensor>* tensors_;
  detail::ReadLog* log_;
};

namespace detail {

/// The tensors row-major in f32 or f64. Throws DtypeError, ValueError.
std::vector<ReadTensor> read_tensors(const std::vector<Tensor>& tensors);

template <class F>
class ReadingFunction {
 public:
  ReadingFunction(F f, const std::vector<Tensor>& tensors)
      : f_(std::move(f)), tensors_(read_tensors(tensors)) {}

  template <class N>
  auto operator()(N score, ScoreIndex at) const {
    return f_(score, at, ScoreReads<N>(tensors_));
  }

  /// ScoreFunction::backward. f runs once for the scores, and once for every read with the derivative there.
  template <class T>
  static void backward(const void* context, const kernels::ScoreTile& tile, void* d_scores, void* sums) {
    const auto& bound = *static_cast<const ScoreContext*>(context);
    const auto& self = *static_cast<const ReadingFunction*>(bound.function);
    const auto offset = static_cast<int32_t>(bound.offset_of(tile.batch));
    ReadLog log;
    for (int64_t k = 0; k < tile.key_count; ++k) {
      for (int64_t q = 0; q < tile.query_count; ++q) {
        T& d = static_cast<T*>(d_scores)[k * tile.stride + q];
        if (d == 0) continue;
        const auto row = static_cast<int32_t>(tile.query_begin + q);
        const ScoreIndex at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head), row + offset,
                            static_cast<int32_t>(tile.key_begin + k), row};
        const T score = static_cast<const T*>(tile.scores)[k * tile.stride + q];
        const auto derivative = [&](T of_score, int64_t seed) {
          log.places.clear(), log.seed = seed;
          const Dual<T> y = self.f_(Dual<T>(score, of_score), at, ScoreReads<Dual<T>>(self.tensors_, &log));
          return y.derivative;
        };
        const T by_score = derivative(1, -1);
        for (int64_t read = 0; read < static_cast<int64_t>(log.places.size()); ++read) {
          const T by_read = derivative(0, read);
          static_cast<T*>(sums)[log.places[static_cast<size_t>(read)]] += d * by_read;
        }
        d *= by_score;
      }
    }
  }

 private:
  F f_;
  std::vector<ReadTensor> tensors_;
};

template <class F, class T>
kernels::ScoreFunction reading_table(bool avx2) {
  kernels::ScoreFunction f = score_table<ReadingFunction<F>, T>(avx2);
  f.backward = ReadingFunction<F>::template backward<T>;
  return f;
}

}  // namespace detail

/// score <- f(score, at, reads): as score_mod(f), and f may read elements of `tensors` by reads[n](i, j, …),
/// which are numbers of the score's type. The tensors (f32, f64, bf16, f16) get gradients, however they were
/// computed; the backward runs f once more for each element read.
///
///   auto forget = [](auto score, ScoreIndex at, const auto& reads) {
///     return score + reads[0](at.batch, at.head, at.query) - reads[0](at.batch, at.head, at.key);
///   };
///   attention(q, k, v, {.mask = causal()}, score_mod(forget, {log_gates}));
template <class F>
ScoreMod score_mod(F f, std::vector<Tensor> tensors) {
  using Function = detail::ReadingFunction<F>;
  auto function = std::make_shared<const Function>(std::move(f), tensors);
  return ScoreMod(std::shared_ptr<const void>(std::move(function)), detail::reading_table<F, float>,
                  detail::reading_table<F, double>, std::move(tensors));
}

}  // namespace multihead
