// The keywords of the constructors of Transformer layers and stacks.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "multihead/nn/encoder_decoder.h"
#include "python/src/modules.h"

namespace multihead::python {

struct StackArguments {
  nn::StackOptions stack = {};
  bool attention_bias = true;
  std::optional<bool> query_bias = {}, key_bias = {}, value_bias = {};  ///< attention_bias unless given
  std::optional<int64_t> hidden_dim = {};                               ///< 4 · embed_dim unless given
  Rng* rng = nullptr;
};

/// From the keywords of a layer, or of a stack of them. Raises TypeError for one that is missing, unknown or of
/// the wrong type.
StackArguments layer_arguments(const char* who, const nb::dict& words);
StackArguments stack_arguments(const char* who, const nb::dict& words);

/// The constructors' signatures, of those words. They live as long as the module.
const char* layer_signature();
const char* stack_signature();

}  // namespace multihead::python
