// The methods that every module has in Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/kernels/quantized/packed_linear.h"
#include "multihead/nn/module.h"
#include "python/src/gil.h"
#include "python/src/tensor/convert.h"
#include "python/src/tensor/copies.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

/// The generator that modules use if none is given; multihead.nn.manual_seed() restarts it.
Rng& default_rng();
inline Rng& rng_or_default(Rng* rng) { return rng != nullptr ? *rng : default_rng(); }

inline std::map<std::string, Tensor> to_tensor_map(nb::handle mapping, const char* who) {
  if (!nb::hasattr(mapping, "items")) {
    throw nb::type_error(concat(who, ": expected names with their tensors, a dict, got ",
                                nb::cast<std::string>(mapping.type().attr("__name__")))
                             .c_str());
  }
  std::map<std::string, Tensor> tensors;
  for (nb::handle item : mapping.attr("items")()) {
    const auto pair = nb::cast<nb::tuple>(item);
    const auto name = nb::cast<std::string>(pair[0]);
    tensors.emplace(name, to_tensor(pair[1], {who, name.c_str(), true}));
  }
  return tensors;
}

inline nb::dict to_dict(const std::map<std::string, Tensor>& tensors) {
  nb::dict result;
  for (const auto& [name, tensor] : tensors) result[name.c_str()] = tensor;
  return result;
}

inline std::optional<Tensor> optional_tensor(const Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

/// The signature of a class whose settable properties are its constructor's keywords.
inline std::string signature_of_fields(nb::handle type, nb::handle preset) {
  std::string text = "def __init__(self, *";
  for (nb::handle name : type.attr("__dict__")) {
    const nb::object property = type.attr(name);
    if (!nb::hasattr(property, "fset") || property.attr("fset").is_none()) continue;
    const nb::object value = preset.attr(name);
    const std::string kind = nb::cast<std::string>(value.type().attr("__name__"));
    const bool is_plain = kind == "int" || kind == "float" || kind == "bool" || kind == "str";
    text += concat(", ", nb::cast<std::string>(name), ": ", kind == "list" ? "Sequence" : kind, " = ",
                   is_plain ? nb::repr(value).c_str() : "...");
  }
  return text + ") -> None";
}

/// __init__ of a plain struct whose fields are bound: they come by keyword, others are refused.
template <class Config>
void bind_fields_init(nb::class_<Config>& c, const char* name) {
  static const std::string signature = signature_of_fields(c, nb::cast(Config()));
  c.def(
      "__init__",
      [name](nb::pointer_and_handle<Config> self, const nb::kwargs& fields) {
        new (self.p) Config();
        nb::inst_mark_ready(self.h);
        for (auto [field, value] : fields) {
          if (!nb::hasattr(self.h, field)) {
            throw nb::type_error(
                (std::string(name) + ": unknown field '" + nb::cast<std::string>(field) + "'").c_str());
          }
          nb::setattr(self.h, field, value);
        }
      },
      nb::sig(signature.c_str()));
}

/// c.name: a module that is a part of this one, None where it has no weights. It lives as long as anything
/// holds it, and its weights are this one's.
template <class Module, class Part>
void bind_part(nb::class_<Module>& c, const char* name, Part Module::*part) {
  c.def_prop_ro(name, [part](Module& m) -> Part* {
    bool present = false;
    auto see = [&](const std::string&, Tensor&) { present = true; };
    nn::Visitor visitor(see);
    (m.*part).visit(visitor);
    return present ? &(m.*part) : nullptr;
  });
}

/// c.name: the list of a module's layers; multihead._parts makes a tuple of it that can say why none can be
/// replaced.
template <class Module, class Part>
void bind_parts(nb::class_<Module>& c, const char* name, std::vector<Part> Module::*parts) {
  c.def_prop_ro(name, [parts](Module& m) {
    std::vector<Part*> result;
    for (Part& part : m.*parts) result.push_back(&part);
    return result;
  });
}

/// c.name: a weight, None where the module has none of that name.
template <class Module>
void bind_weight(nb::class_<Module>& c, const char* name, Tensor Module::*weight) {
  c.def_prop_ro(name, [weight](const Module& m) { return optional_tensor(m.*weight); });
}

template <class Model>
void bind_packing(nb::class_<Model>& c) {
  c.def(
      "pack_weights",
      [](Model& model, const std::string& weights) {
        const kernels::WeightDtype dtype = kernels::parse_weight_dtype(weights);
        unlocked([&] { return model.pack_weights(dtype), 0; });
      },
      nb::arg("weights") = "f32",
      "Replaces the matrices by packed ones: 'f32' (every bit kept, products of few rows a quarter faster), "
      "'bf16', 'f16',\n'int8' (a scale per row), 'q8', 'q5' or 'q4' (8, 5 or 4 bits, scales per group of "
      "32). With these and int8 a language model's\nembedding and output layer become q8. The model can no "
      "longer be trained, nor saved unless it is a language model packed\nas other than 'f32'.");
  c.def_prop_ro(
      "packed_dtype",
      [](const Model& model) -> std::optional<std::string> {
        if (!model.packed_dtype()) return std::nullopt;
        return std::string(kernels::name(*model.packed_dtype()));
      },
      "What the matrices were packed as, or None.");
}

template <class Module>
void bind_module(nb::class_<Module>& c, const char* name) {
  c.def(
      "named_parameters",
      [](Module& m) {
        nb::list list;
        for (const nn::NamedTensor& p : nn::named_parameters(m))
          list.append(nb::make_tuple(p.name, p.tensor));
        return list;
      },
      "(name, Tensor) of every parameter; a shared one is listed once.");
  c.def("parameters", [](Module& m) { return nn::parameters(m); });
  c.def("parameter_count", [](Module& m) { return nn::parameter_count(m); });
  c.def(
      "state_dict",
      [](Module& m) {
        nb::dict dict;
        for (const nn::NamedTensor& p : nn::named_parameters(m)) dict[p.name.c_str()] = p.tensor.detach();
        return dict;
      },
      "Parameters by name, sharing memory; for save_safetensors() and load_state_dict().");
  c.def(
      "load_state_dict",
      [name](Module& m, nb::handle state) {
        nn::load_parameters(nn::named_parameters(m), to_tensor_map(state, "load_state_dict"), name);
      },
      "state"_a,
      "Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are "
      "listed in\none FormatError; nothing is changed then.");
  c.def(
      "to",
      [](nb::object self, nb::handle dtype) {
        nn::to(nb::cast<Module&>(self), to_dtype(dtype));
        return self;
      },
      "dtype"_a, "Converts every parameter.");
  c.def("_rebind", [](Module& m, const nb::dict& replaced) {
    auto see = [&](const std::string&, Tensor& tensor) {
      const nb::tuple key = identity_of(tensor);
      if (replaced.contains(key)) tensor = nb::cast<Tensor>(nb::object(replaced[key]));
    };
    nn::Visitor visitor(see);
    m.visit(visitor);
  });
  c.def(
      "zero_grad", [](Module& m) { nn::zero_grad(nn::parameters(m)); }, "Clears the gradients.");
  c.def(
      "clone", [](const Module& m) { return nn::clone(m); }, "A copy with its own parameters.");
  c.def("__copy__", [](const Module& m) { return m; });
  c.def("__deepcopy__", [](const Module& m, nb::dict memo) {
    Module copy = m;
    nn::replace_parameters(copy, [&](const Tensor& parameter) { return deep_copy(parameter, memo); });
    return copy;
  });
  c.def("__reduce_ex__", [name](const Module&, int) -> nb::object {
    throw nb::type_error(
        (std::string(name) +
         ": not picklable; save it with multihead.save_safetensors(path, module.state_dict())")
            .c_str());
  });
  c.def("__repr__", [name](Module& m) {
    return std::string(name) + "(" + std::to_string(nn::parameter_count(m)) + " parameters)";
  });
}

}  // namespace multihead::python
