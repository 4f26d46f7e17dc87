// Masks and traced functions from Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "multihead/nn/attention.h"
#include "multihead/nn/decode/state.h"
#include "multihead/ops/attention/program/program-inl.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

using program::ScoreProgram;

/// A Mask from a Mask or None; a bare array is refused with the names of the two polarities.
Mask to_mask(nb::handle object);
/// From None (null) or what multihead.score_mod() made.
std::shared_ptr<const ScoreProgram> to_score_program(nb::handle object);
ScoreMod to_score_mod(nb::handle object);
/// Raises what went wrong in traced functions of the call that has just ended: IndexError, ZeroDivisionError,
/// OverflowError.
void raise_faults(const std::string& who, const Mask& mask, nb::handle score_mod);
/// Refuses traced functions, which see positions, over a state with a window that has dropped tokens.
void check_positions(const char* who, const nn::DecodeState& state, const nn::AttentionCall& call);

}  // namespace multihead::python
