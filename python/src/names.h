// The words that stand for enum values in Python.
#pragma once

#include <string>

#include "multihead/nn/norm.h"
#include "multihead/nn/positions.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/attention_options.h"
#include "multihead/ops/rotary.h"
#include "python/src/convert.h"

namespace multihead::python {

inline Activation activation_of(const std::string& name) {
  return to_enum<Activation>(name, "activation",
                             {{"none", Activation::none},
                              {"relu", Activation::relu},
                              {"gelu", Activation::gelu},
                              {"gelu_tanh", Activation::gelu_tanh},
                              {"silu", Activation::silu}});
}

inline RotaryLayout rotary_layout_of(const std::string& name) {
  return to_enum<RotaryLayout>(
      name, "layout", {{"halves", RotaryLayout::halves}, {"interleaved", RotaryLayout::interleaved}});
}

inline nn::NormKind norm_kind_of(const std::string& name) {
  return to_enum<nn::NormKind>(name, "norm", {{"layer", nn::NormKind::layer}, {"rms", nn::NormKind::rms}});
}

inline EmptyRow empty_row_of(const std::string& name) {
  return to_enum<EmptyRow>(name, "empty_row",
                           {{"zero", EmptyRow::zero},
                            {"uniform", EmptyRow::uniform},
                            {"nan", EmptyRow::nan},
                            {"error", EmptyRow::error}});
}

inline CaptureStage stage_of(const std::string& name) {
  return to_enum<CaptureStage>(name, "stage",
                               {{"scores", CaptureStage::scores},
                                {"probabilities", CaptureStage::probabilities},
                                {"after_dropout", CaptureStage::after_dropout}});
}

}  // namespace multihead::python
