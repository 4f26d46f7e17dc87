// The methods of every model that concern its configuration, its folder and adapters.
#pragma once

#include "multihead/models/files/adapter.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"
#include "python/src/path.h"

namespace multihead::python {

/// The constructor from a configuration, and `config`.
template <class Model, class Config>
void bind_config(nb::class_<Model>& c, const Config& (Model::*config)() const) {
  c.def(
      "__init__",
      [](Model* self, const Config& config, Rng* rng) {
        new (self) Model(models::resolved(config), rng_or_default(rng));
      },
      nb::arg("config"), nb::kw_only(), nb::arg("rng") = nb::none());
  c.def_prop_ro("config", [config](const Model& model) { return (model.*config)(); });
}

template <class Model>
void bind_save(nb::class_<Model>& c, void (*save)(Model&, const std::string&, bool), const char* doc) {
  c.def(
      "save",
      [save](Model& model, const Path& folder, bool overwrite) {
        unlocked([&] { return save(model, folder, overwrite), 0; });
      },
      nb::arg("folder"), nb::kw_only(), nb::arg("overwrite") = false, doc);
}

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
