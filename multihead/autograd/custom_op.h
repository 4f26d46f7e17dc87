// Operations whose result and gradient are your functions.
//
//   Tensor cube(const Tensor& x) {
//     return custom_op(
//         {x}, [](const auto& in) { return std::vector{mul(square(in[0]), in[0])}; },
//         [](const auto& d, const auto& in, const auto&) { return Gradients{scale(mul(d[0], square(in[0])), 3)}; })[0];
//   }
#pragma once

#include <functional>
#include <vector>

#include "multihead/autograd/tape.h"

namespace multihead {

/// The results, from the inputs.
using CustomForward = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
/// One gradient per input, from those of the results (undefined: zero), the inputs and the results.
using CustomBackward =
    std::function<Gradients(const std::vector<Tensor>& d_results, const std::vector<Tensor>& inputs,
                            const std::vector<Tensor>& results)>;

/// The results of `forward`, which `backward` differentiates. Nothing in either function is recorded: both get
/// the tensors detached. Results of integers and bools have no gradient.
///
/// Throws    ValueError (an undefined input or result; in Tape::backward, another number of gradients),
///           ShapeError, DtypeError (in Tape::backward, a gradient unlike its input; f32 for inputs of 16 bits)
std::vector<Tensor> custom_op(const std::vector<Tensor>& inputs, const CustomForward& forward,
                              CustomBackward backward);

}  // namespace multihead
