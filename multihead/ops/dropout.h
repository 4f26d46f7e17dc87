// Dropout (Srivastava et al. 2014), scaled by 1/(1-p) to preserve expectations.
//
// Active if and only if rng is not null and p > 0; otherwise returns the input itself. Elements are kept by
// kernels::dropout_keeps(stream, p, element index), stream = rng->next(): independent of the thread count,
// and recomputed in the backward instead of stored.
//
// Dtypes    f32, f64; bf16, f16: as f32, rounded once; one of them with f32 gives f32
// Throws    ValueError unless 0 <= p <= 1
#pragma once

#include "multihead/core/tensor/rng.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/activation.h"

namespace multihead {

Tensor dropout(const Tensor& x, double p, Rng* rng);

/// dropout(activate(x)) in one pass. Under a tape relu keeps only its result, which the next product keeps
/// anyway, and the others only x: the activation before dropout is never stored.
Tensor activate_dropout(const Tensor& x, Activation activation, double p, Rng* rng);

/// residual + dropout(x), in one pass. Both of one shape.
Tensor add_dropout(const Tensor& residual, const Tensor& x, double p, Rng* rng);

}  // namespace multihead
