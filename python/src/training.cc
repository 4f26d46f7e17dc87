#include <nanobind/stl/map.h>

#include <algorithm>
#include <memory>

#include "multihead/core/error.h"
#include "multihead/io/safetensors.h"
#include "multihead/optim/adam.h"
#include "multihead/optim/schedule.h"
#include "multihead/optim/sgd.h"
#include "multihead/train/language_model_run.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"

namespace multihead::python {
namespace {

// Parameters from a module, a list of tensors, or a list of (name, tensor).
optim::ParameterList to_parameters(nb::handle object) {
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
      if (!nb::try_cast(item, tensor, false)) throw nb::type_error("optimizer: parameters must be Tensors");
      tensors.push_back(*tensor);
    }
  }
  return named.empty() ? optim::ParameterList(std::move(tensors)) : optim::ParameterList(named);
}

void bind_optimizers(nb::module_& m) {
  using optim::Optimizer;
  nb::class_<Optimizer>(m, "Optimizer", "What all optimisers share.")
      .def("step", &Optimizer::step, nb::call_guard<nb::gil_scoped_release>(),
           "Updates every parameter that has a gradient; the gradients stay.")
      .def("zero_grad", &Optimizer::zero_grad, "Forgets the gradients.")
      .def("grad_norm", &Optimizer::grad_norm,
           "Norm over all gradients; NumericError naming one with NaN or Inf.")
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
  nb::class_<optim::Adam, Optimizer>(m, "Adam", "As torch.optim.Adam.")
      .def(
          "__init__",
          [](optim::Adam* self, nb::handle parameters, double lr, double beta1, double beta2, double eps,
             double weight_decay, bool eps_hat) {
            new (self) optim::Adam(to_parameters(parameters), {lr, beta1, beta2, eps, weight_decay, eps_hat});
          },
          "parameters"_a, nb::kw_only(), "lr"_a = 1e-3, "beta1"_a = 0.9, "beta2"_a = 0.999, "eps"_a = 1e-8,
          "weight_decay"_a = 0.0, "eps_hat"_a = false);
  nb::class_<optim::AdamW, Optimizer>(m, "AdamW", "As torch.optim.AdamW.")
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
             bool nesterov) {
            new (self) optim::SGD(to_parameters(parameters), {lr, momentum, weight_decay, nesterov});
          },
          "parameters"_a, nb::kw_only(), "lr"_a = 1e-2, "momentum"_a = 0.0, "weight_decay"_a = 0.0,
          "nesterov"_a = false);
  m.def(
      "learning_rate",
      [](int64_t step, const std::string& kind, double lr, int64_t warmup_steps, int64_t total_steps,
         double final_ratio, int64_t embed_dim) {
        const optim::Schedule s{
            optim::parse_schedule(kind), lr, warmup_steps, total_steps, final_ratio, embed_dim};
        optim::check(s);
        return s.at(step);
      },
      "step"_a, nb::kw_only(), "kind"_a = "constant", "lr"_a = 1e-3, "warmup_steps"_a = 0,
      "total_steps"_a = 0, "final_ratio"_a = 0.0, "embed_dim"_a = 0,
      "The rate of a step (from 0) of a 'constant', 'linear', 'cosine' or 'noam' schedule with linear "
      "warm-up.");
}

void bind_files(nb::module_& m) {
  m.def(
      "load_safetensors",
      [](const std::string& path) { return to_dict(unlocked([&] { return io::load_safetensors(path); })); },
      "path"_a, "The tensors of a .safetensors file, an index, or a folder, by name.");
  m.def(
      "save_safetensors",
      [](const std::string& path, nb::handle tensors, const io::Metadata& metadata) {
        const io::TensorMap map = to_tensor_map(tensors, "save_safetensors");
        unlocked([&] {
          io::save_safetensors(path, map, metadata);
          return 0;
        });
      },
      "path"_a, "tensors"_a, "metadata"_a = io::Metadata(), "Writes named tensors atomically.");
}

// --- language-model runs ----------------------------------------------------------------------------------

class PyObserver : public train::Observer {
 public:
  explicit PyObserver(nb::object callback) : callback_(std::move(callback)) {}

  /// Ctrl-C, noticed here or inside the callback; raised once the run has saved its checkpoint.
  bool is_interrupted() {
    nb::gil_scoped_acquire acquire;
    if (!interrupt_.is_valid() && PyErr_CheckSignals() != 0) take_interrupt(nb::python_error());
    return interrupt_.is_valid();
  }
  void raise_interrupt() const {
    if (!interrupt_.is_valid()) return;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interrupt_.ptr())), interrupt_.ptr());
    throw nb::python_error();
  }

  void on_start(int64_t step, int64_t steps) override {
    tell("start", [&](nb::dict& d) { d["step"] = step, d["steps"] = steps; });
  }
  void on_step(const train::StepReport& r) override {
    tell("step", [&](nb::dict& d) {
      d["step"] = r.step, d["steps"] = r.steps, d["loss"] = r.loss, d["learning_rate"] = r.learning_rate;
      d["grad_norm"] = r.grad_norm, d["tokens_per_second"] = r.tokens_per_second, d["tokens"] = r.tokens;
      d["seconds"] = r.seconds;
    });
  }
  void on_evaluation(const train::EvalReport& r) override {
    tell("evaluation", [&](nb::dict& d) {
      d["step"] = r.step, d["loss"] = r.loss, d["perplexity"] = r.perplexity(), d["is_best"] = r.is_best;
    });
  }
  void on_warning(const std::string& message) override {
    tell("warning", [&](nb::dict& d) { d["message"] = message; });
  }

 private:
  template <class F>
  void tell(const char* event, F&& fill) {
    nb::gil_scoped_acquire acquire;
    if (callback_.is_none()) return;
    nb::dict fields;
    fill(fields);
    try {
      callback_(event, fields);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_KeyboardInterrupt)) throw;
      take_interrupt(error);
    }
  }
  void take_interrupt(const nb::python_error& error) { interrupt_ = nb::borrow(error.value()); }

  nb::object callback_;
  nb::object interrupt_;
};

nb::object train_run(const std::string& data, const std::string& folder, nb::dict settings,
                     const std::string& preset, const std::string& tokenizer, bool resume, bool overwrite,
                     nb::object callback) {
  train::LanguageModelRun run;
  run.settings = train::language_model_settings(preset);
  const std::vector<train::Field> known = train::fields(run.settings);
  for (auto [key, value] : settings) {
    std::string name = nb::cast<std::string>(key);
    std::replace(name.begin(), name.end(), '_', '-');
    const auto field =
        std::find_if(known.begin(), known.end(), [&](const train::Field& f) { return f.name == name; });
    if (field == known.end()) {
      throw nb::type_error(
          ("train_language_model: unknown setting '" + nb::cast<std::string>(key) + "'").c_str());
    }
    std::string text;
    if (PyBool_Check(value.ptr())) {
      text = nb::cast<bool>(value) ? "true" : "false";
    } else {
      const nb::object printed = nb::steal(PyObject_Str(value.ptr()));
      text = nb::cast<std::string>(printed);
    }
    train::assign(*field, std::string_view(text));
  }
  run.data = data;
  run.folder = folder;
  run.tokenizer = tokenizer;
  run.resume = resume;
  run.overwrite = overwrite;
  PyObserver observer(callback);
  run.observers = {&observer};
  run.should_stop = [&] { return observer.is_interrupted(); };
  const train::LanguageModelSummary summary = unlocked([&] { return train::train_language_model(run); });
  observer.raise_interrupt();
  return nb::module_::import_("json").attr("loads")(train::to_json(summary).dump());
}

}  // namespace

void bind_training(nb::module_& m) {
  bind_optimizers(m);
  bind_files(m);
  m.def("train_language_model", &train_run, "data"_a, "folder"_a, "settings"_a, "preset"_a, "tokenizer"_a,
        "resume"_a, "overwrite"_a, "callback"_a.none());
  m.def("language_model_settings", [](const std::string& preset) {
    train::LanguageModelSettings settings = train::language_model_settings(preset);
    return nb::module_::import_("json").attr("loads")(train::to_json(train::fields(settings)).dump());
  });
}

}  // namespace multihead::python
