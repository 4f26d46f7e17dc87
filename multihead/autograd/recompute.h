// Memory for time: a part of a computation that is run again for its gradient.
#pragma once

#include <functional>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// f(), of which the tape keeps the result alone: f runs a second time in the backward, with the same
/// Autocast. Gradients go to the leaves that f reads, the same bits in the same order as without. `f` must
/// give the same result every time, so it makes its own Rng, and may read nothing that was recorded before.
///
/// Source    Chen et al. 2016, "Training deep nets with sublinear memory cost"
Tensor checkpoint(std::function<Tensor()> f);

}  // namespace multihead
