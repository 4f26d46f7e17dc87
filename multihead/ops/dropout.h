// Dropout (Srivastava et al. 2014), scaled by 1/(1-p) so that expectations stay.
//
// Acts exactly when rng is not null and p > 0; otherwise the input itself comes back. Which elements are kept
// is kernels::dropout_keeps(stream, p, element index), stream = rng->next(): the same at any thread count,
// and drawn again by the backward instead of being stored.
//
// Dtypes    f32, f64
// Throws    ValueError unless 0 <= p <= 1
#pragma once

#include "multihead/core/rng.h"
#include "multihead/core/tensor.h"
#include "multihead/ops/activation.h"

namespace multihead {

Tensor dropout(const Tensor& x, double p, Rng* rng);

/// dropout(activate(x)) in one pass. Under a tape relu keeps its result alone, which the next product keeps
/// anyhow, and the others keep x alone: neither holds the undropped activation.
Tensor activate_dropout(const Tensor& x, Activation activation, double p, Rng* rng);

/// residual + dropout(x), in one pass. Both of one shape.
Tensor add_dropout(const Tensor& residual, const Tensor& x, double p, Rng* rng);

}  // namespace multihead
