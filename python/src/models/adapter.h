// The methods about adapters that every model has.
#pragma once

#include "multihead/models/files/adapter.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"
#include "python/src/path.h"

namespace multihead::python {

template <class Model>
void bind_adapter(nb::class_<Model>& c) {
  c.def(
      "load_adapter",
      [](Model& model, const Path& folder) {
        unlocked([&] { return models::load_adapter(model, folder), 0; });
      },
      "folder"_a,
      "Merges a LoRA adapter, a folder as PEFT or train(..., lora_rank=...) writes it, into the weights.");
}

}  // namespace multihead::python
