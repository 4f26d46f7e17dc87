// Attention composed of ops, whose gradients are theirs. Internal to ops and nn.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {

/// Rows of one call of attention(), with scores and probabilities in the open. Products take 0 · NaN for NaN:
/// what is not finite in a key or value reaches the rows that may not see it, too.
class Composition {
 public:
  /// query [B, H, rows, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, Dv], computed in `dtype`. `rows` says which
  /// of the call's sizes.queries these are; empty: all.
  Composition(std::string who, const AttentionSizes& sizes, const std::array<Tensor, 3>& query_key_value,
              const AttentionOptions& options, const ScoreMod& score_mod, Dtype dtype,
              std::vector<int64_t> rows = {});

  /// [B, H, rows, Tk], -inf where excluded.
  Tensor scores() const;
  /// bool [B, H, rows, Tk]: what masks and bias let through.
  const Tensor& allowed() const { return allowed_; }
  struct Softmax {
    Tensor probabilities;  ///< [B, H, rows, Tk]
    Tensor lse;            ///< [B, H, rows], or what weights are divided by
    Tensor empty;          ///< bool [B, H, rows, 1]: rows without any key
  };
  Softmax softmax(const Tensor& scores) const;
  Tensor dropout(const Tensor& probabilities) const;
  /// dropout(probabilities) · value: [B, H, rows, Dv].
  Tensor output(const Softmax& softmax) const;

  // For the terms.
  const AttentionOptions& options() const { return options_; }
  const AttentionSizes& sizes() const { return bound_.sizes(); }
  const Tensor& query() const { return query_; }
  /// scale · query · keyᵀ.
  Tensor products(const Tensor& query, const Tensor& key) const;
  /// `x` in the type of the composition.
  Tensor wide(const Tensor& x) const;
  /// The rows of `x`, which broadcasts to [B, H, Tq, Tk].
  Tensor own_rows(const Tensor& x) const;
  /// [B, 1, rows, Tk]: |key position - query position|.
  Tensor distances() const;
  /// The element of `table`, which broadcasts to [B, H, rows, span], at clamp(key position - query position +
  /// center, 0, span - 1): [B, H, rows, Tk].
  Tensor at_distance(const Tensor& table, int64_t center) const;
  /// Its transpose: the sums of x [B, H, rows, Tk] by distance, [B, H, rows, span].
  Tensor by_distance(const Tensor& x, int64_t span, int64_t center) const;
  Tensor apply_function(const Tensor& scores) const;

 private:
  Softmax weights(const Tensor& scores) const;
  /// f(n, b, h, row) for the rows of [B, H, rows], row a query of the call.
  template <class F>
  void each_row(F f) const;
  int64_t distance(int64_t b, int64_t i, int64_t j) const { return j - i - offsets_[static_cast<size_t>(b)]; }
  /// Of each element of [B, H, rows, Tk], its place in [B, H, rows, span].
  std::vector<int64_t> places(int64_t span, int64_t center) const;
  Tensor find_allowed() const;
  void check_no_empty_row(const Tensor& empty) const;

  AttentionOptions options_;
  ScoreMod score_mod_;
  BoundAttention bound_;
  Dtype dtype_;
  Tensor query_, key_, value_, allowed_;
  std::vector<int64_t> rows_, offsets_;
};

}  // namespace multihead::detail
