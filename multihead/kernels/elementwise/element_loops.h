// Conversions, transposes and random bits for what core does to tensors (core/tensor/element_loops-inl.h).
#pragma once

namespace multihead::kernels {

/// Core uses the loops of this CPU's instruction set from now on. Returns true. The ops do it before main.
bool install_element_loops();

}  // namespace multihead::kernels
