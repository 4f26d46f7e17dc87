// Layer norm (Ba et al. 2016) and RMS norm (Zhang & Sennrich 2019) over the last axis.
#pragma once

#include <string_view>

#include "multihead/core/text/enum_words.h"
#include "multihead/nn/linear.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/norm.h"

namespace multihead::nn {

enum class NormKind {
  layer,
  rms,
  rms_from_one,  ///< rms whose weight is kept as its difference from 1 (Gemma)
};
constexpr auto enum_words(NormKind) {
  return std::to_array<std::string_view>({"layer", "rms", "rms_from_one"});
}

struct NormOptions {
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
  bool bias = true;  ///< layer norm only
};

/// Shapes: x [..., size] -> the same. Without a size it is none: x is the result.
class Norm {
 public:
  Norm() = default;
  /// Throws ValueError unless eps is finite and not negative.
  explicit Norm(int64_t size, const NormOptions& options = {});

  /// `name` is that of its points (points.h); without one it has none.
  Tensor operator()(const Tensor& x, std::string_view name = {}) const;
  /// {x + residual, norm(x + residual)} in one pass; the sum is the point `sum_name`.
  AddNorm add(const Tensor& x, const Tensor& residual, std::string_view name = {},
              std::string_view sum_name = {}) const;

  void visit(Visitor& visitor) {
    visitor("weight", weight);
    visitor("bias", bias);
  }

  NormKind kind() const { return kind_; }
  double eps() const { return eps_; }
  /// The factors of a normalised x.
  Tensor factors() const { return kind_ == NormKind::rms_from_one ? add_scalar(weight, 1) : weight; }

  Tensor weight;
  Tensor bias;

 private:
  Tensor at_points(const Tensor& x) const;

  NormKind kind_ = NormKind::layer;
  double eps_ = 1e-5;
};

struct LayerNorm : Norm {
  explicit LayerNorm(int64_t size, double eps = 1e-5) : Norm(size, {.kind = NormKind::layer, .eps = eps}) {}
};

struct RMSNorm : Norm {
  explicit RMSNorm(int64_t size, double eps = 1e-6) : Norm(size, {.kind = NormKind::rms, .eps = eps}) {}
};

}  // namespace multihead::nn
