// Mixed precision: products in bf16, everything else as it is.
#pragma once

#include "multihead/core/dtype.h"

namespace multihead {

/// While it is alive, on this thread, with the rules of PyTorch's autocast on a CPU:
///   linear, matmul, attention   take f32 inputs as bf16; biases, scores, sums and statistics are f32, and a
///                               product with a fused f32 residual writes f32
///   norms, softmax, losses      give f32; norms keep their input in bf16 for the backward
///   all other ops               follow their inputs: bf16 and f32 give f32
/// Weights stay f32 and get f32 gradients; their bf16 copies are made once per tape and freed with it or with
/// its backward(), which is not affected itself. Nests: the innermost counts. f64 is left alone.
class Autocast {
 public:
  /// bf16, or f32 to switch it off. Throws DtypeError.
  explicit Autocast(Dtype dtype = Dtype::bf16);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  static bool active();

 private:
  bool outer_;
};

}  // namespace multihead
