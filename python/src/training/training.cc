#include <nanobind/stl/map.h>

#include "multihead/core/error.h"
#include "multihead/io/gguf.h"
#include "multihead/io/safetensors.h"
#include "multihead/optim/adam.h"
#include "multihead/optim/schedule.h"
#include "multihead/optim/sgd.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

// Parameters from a module, a list of tensors, or a list of (name, tensor).
optim::ParameterList to_parameters(nb::handle object) {
  if (nb::isinstance<Tensor>(object))
    throw nb::type_error("optimizer: parameters must be a list, got one Tensor");
  nb::object source = nb::hasattr(object, "named_parameters") ? nb::object(object.attr("named_parameters")())
                                                              : nb::borrow(object);
  std::vector<nn::NamedTensor> named;
  std::vector<Tensor> tensors;
  for (nb::handle item : source) {
    if (PyTuple_Check(item.ptr())) {
      const auto pair = nb::cast<nb::tuple>(item);
      named.push_back({nb::cast<std::string>(pair[0]), nb::cast<Tensor>(pair[1])});
    } else {
      Tensor* tensor = nullptr;
      if (!nb::try_cast(item, tensor, false) || tensor == nullptr) {
        throw nb::type_error(
            concat("optimizer: parameters must be Tensors or (name, Tensor), got ", class_name(item))
                .c_str());
      }
      tensors.push_back(*tensor);
    }
  }
  if (!named.empty() && !tensors.empty())
    throw nb::type_error("optimizer: parameters must be all Tensors or all (name, Tensor), got both");
  return named.empty() ? optim::ParameterList(std::move(tensors)) : optim::ParameterList(named);
}

void bind_optimizers(nb::module_& m) {
  using optim::Optimizer;
  nb::class_<Optimizer>(m, "Optimizer", "Base class of optimisers.")
      .def("step", &Optimizer::step, nb::call_guard<Unlocked>(),
           "Updates every parameter that has a gradient; gradients are kept.")
      .def("zero_grad", &Optimizer::zero_grad, "Clears the gradients.")
      .def("grad_norm", &Optimizer::grad_norm,
           "Norm of all gradients; NumericError names one with NaN or Inf.")
      .def("clip_grad_norm", &Optimizer::clip_grad_norm, "max_norm"_a,
           "Makes the next step() use gradients * min(1, max_norm / norm) and returns the norm.")
      .def_prop_rw("lr", &Optimizer::lr, &Optimizer::set_lr)
      .def_prop_ro("steps", &Optimizer::steps)
      .def(
          "state_dict", [](const Optimizer& o) { return to_dict(o.state()); },
          "Moments by name, sharing memory.")
      .def(
          "load_state_dict",
          [](Optimizer& o, nb::handle state) { o.load_state(to_tensor_map(state, "load_state_dict")); },
          "state"_a);
  nb::class_<optim::Adam, Optimizer>(
      m, "Adam",
      "As torch.optim.Adam, but with one count of steps for all parameters: one that gets its first gradient "
      "late\nis corrected as one of that many steps.")
      .def(
          "__init__",
          [](optim::Adam* self, nb::handle parameters, double lr, double beta1, double beta2, double eps,
             double weight_decay, bool decay_vectors, bool eps_hat) {
            new (self) optim::Adam(to_parameters(parameters),
                                   {lr, beta1, beta2, eps, weight_decay, decay_vectors, eps_hat});
          },
          "parameters"_a, nb::kw_only(), "lr"_a = 1e-3, "beta1"_a = 0.9, "beta2"_a = 0.999, "eps"_a = 1e-8,
          "weight_decay"_a = 0.0, "decay_vectors"_a = true, "eps_hat"_a = false);
  nb::class_<optim::AdamW, Optimizer>(
      m, "AdamW", "As torch.optim.AdamW, but with one count of steps for all parameters, as Adam.")
      .def(
          "__init__",
          [](optim::AdamW* self, nb::handle parameters, double lr, double beta1, double beta2, double eps,
             double weight_decay, bool decay_vectors, bool eps_hat) {
            new (self) optim::AdamW(to_parameters(parameters),
                                    {lr, beta1, beta2, eps, weight_decay, decay_vectors, eps_hat});
          },
          "parameters"_a, nb::kw_only(), "lr"_a = 1e-3, "beta1"_a = 0.9, "beta2"_a = 0.999, "eps"_a = 1e-8,
          "weight_decay"_a = 0.01, "decay_vectors"_a = true, "eps_hat"_a = false);
  nb::class_<optim::SGD, Optimizer>(m, "SGD", "As torch.optim.SGD.")
      .def(
          "__init__",
          [](optim::SGD* self, nb::handle parameters, double lr, double momentum, double weight_decay,
             bool decay_vectors, bool nesterov) {
            new (self)
                optim::SGD(to_parameters(parameters), {lr, momentum, weight_decay, decay_vectors, nesterov});
          },
          "parameters"_a, nb::kw_only(), "lr"_a = 1e-2, "momentum"_a = 0.0, "weight_decay"_a = 0.0,
          "decay_vectors"_a = true, "nesterov"_a = false);
  m.def(
      "learning_rate",
      [](int64_t step, const std::string& kind, double lr, int64_t warmup_steps, int64_t total_steps,
         double final_ratio, int64_t embed_dim, double decay_share) {
        const optim::Schedule s{
            optim::parse_schedule(kind), lr, warmup_steps, total_steps, final_ratio, embed_dim, decay_share};
        optim::check(s);
        return s.at(step);
      },
      "step"_a, nb::kw_only(), "kind"_a = "constant", "lr"_a = 1e-3, "warmup_steps"_a = 0,
      "total_steps"_a = 0, "final_ratio"_a = 0.0, "embed_dim"_a = 0, "decay_share"_a = 0.2,
      "The learning rate of a step (from 0) of a 'constant', 'linear', 'cosine', 'noam' or 'wsd' schedule "
      "with linear warm-up.");
}

void bind_token_files(nb::module_& m) {
  m.def(
      "load_safetensors",
      [](const Path& path) { return to_dict(unlocked([&] { return io::load_safetensors(path); })); },
      "path"_a, "The tensors of a .safetensors file, an index or a folder, by name.");
  m.def(
      "load_gguf",
      [](const Path& path) { return to_dict(unlocked([&] { return io::GgufFile(path).load_all(); })); },
      "path"_a, "The tensors of a GGUF file by name, decoded to f32.");
  m.def(
      "save_safetensors",
      [](const Path& path, nb::handle tensors, const io::Metadata& metadata) {
        const io::TensorMap map = to_tensor_map(tensors, "save_safetensors");
        unlocked([&] {
          io::save_safetensors(path, map, metadata);
          return 0;
        });
      },
      "path"_a, "tensors"_a, "metadata"_a = io::Metadata(), "Writes named tensors atomically.");
}

}  // namespace

void bind_training(nb::module_& m) {
  bind_optimizers(m);
  bind_token_files(m);
}

}  // namespace multihead::python
