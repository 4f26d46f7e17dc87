// A table of vectors, one per token (or position).
#pragma once

#include "multihead/nn/linear.h"
#include "multihead/ops/embedding.h"

namespace multihead::nn {

/// Shapes: ids (i64 or i32) of any shape -> [..., embed_dim]. Initialised N(0, 1) as in PyTorch.
class Embedding {
 public:
  Embedding() = default;
  Embedding(int64_t count, int64_t embed_dim, Rng& rng)
      : weight(normal_parameter({count, embed_dim}, 1, rng)) {}

  Tensor operator()(const Tensor& ids) const {
    return packed.defined() ? packed.rows(ids) : embedding(weight, ids);
  }
  /// Dtype of the vectors.
  Dtype dtype() const { return packed.defined() ? Dtype::f32 : weight.dtype(); }
  void visit(Visitor& visitor) { visitor("weight", weight, packed); }

  Tensor weight;
  PackedLinear packed;  ///< if defined, used in place of `weight`, which is then undefined
};

}  // namespace multihead::nn
