// The words that stand for enum values in Python.
#pragma once

#include <string>

#include "multihead/nn/norm.h"
#include "multihead/nn/positions.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/attention/options.h"
#include "multihead/ops/loss.h"
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

inline Reduction reduction_of(const std::string& name) {
  return to_enum<Reduction>(name, "reduction",
                            {{"mean", Reduction::mean}, {"sum", Reduction::sum}, {"none", Reduction::none}});
}

inline CaptureStage stage_of(const std::string& name) {
  return to_enum<CaptureStage>(name, "stage",
                               {{"scores", CaptureStage::scores},
                                {"probabilities", CaptureStage::probabilities},
                                {"after_dropout", CaptureStage::after_dropout}});
}

/// The fields `norm` and `activation` that every model's configuration has, by their names.
template <class Config>
void bind_named_fields(nb::class_<Config>& c) {
  c.def_prop_rw(
      "norm", [](const Config& x) { return x.norm == nn::NormKind::layer ? "layer" : "rms"; },
      [](Config& x, const std::string& name) { x.norm = norm_kind_of(name); });
  c.def_prop_rw(
      "activation",
      [](const Config& x) {
        static const char* const names[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};
        return names[static_cast<int>(x.activation)];
      },
      [](Config& x, const std::string& name) { x.activation = activation_of(name); });
}

}  // namespace multihead::python
