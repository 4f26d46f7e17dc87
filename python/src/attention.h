// Attention options from keyword arguments, shared by attention.cc, torch.cc and nn.cc.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>

#include "multihead/nn/attention.h"
#include "python/src/convert.h"

namespace multihead::python {

/// The keyword arguments of attention() as Python has them.
struct AttentionKeywords {
  nb::handle mask, bias, alibi_slopes, relative_bias, relative_key;
  std::optional<double> scale;
  float softcap = 0;
  int64_t relative_center = -1;
  float dropout_p = 0;
  Rng* rng = nullptr;
  std::string empty_row = "zero", layout = "bhtd";
  bool allow_binary_bias = false;
  nb::handle sinks = {};
};

AttentionOptions to_options(const AttentionKeywords& k);
/// A Mask from a Mask or None; a bare array is refused with the names of the two polarities.
Mask to_mask(nb::handle object);
class ScoreProgram;
/// From None (null) or what multihead.score_mod() made.
std::shared_ptr<const ScoreProgram> to_score_program(nb::handle object);
ScoreMod to_score_mod(nb::handle object);
/// Raises what went wrong in traced functions of the call that has just ended: IndexError, ZeroDivisionError,
/// OverflowError.
void raise_faults(const std::string& who, const Mask& mask, nb::handle score_mod);

/// What a call of an attention module may add, as Python has it.
struct AttentionCallKeywords {
  nb::handle mask, bias, alibi_slopes, relative_bias, relative_key, sinks, score_mod;
  const RotaryTable* rotary = nullptr;
  int64_t relative_center = -1;
  float softcap = 0;
  std::string empty_row = "zero";
  AttentionCapture* capture = nullptr;
};
nn::AttentionCall to_call(const char* who, const AttentionCallKeywords& k);

}  // namespace multihead::python
