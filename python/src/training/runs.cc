// Whole training runs with the command line's settings, how well a model predicts, and what is wrong with it.
#include <nanobind/stl/map.h>

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/near_names.h"
#include "multihead/core/text/utf8.h"
#include "multihead/distributed/world.h"
#include "multihead/train/doctor/doctor.h"
#include "multihead/train/evaluate.h"
#include "multihead/train/linear_head.h"
#include "multihead/train/tasks/kind.h"
#include "python/src/bindings.h"
#include "python/src/interrupt.h"
#include "python/src/modules.h"
#include "python/src/path.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {
namespace {

class PyObserver : public train::Observer {
 public:
  explicit PyObserver(nb::object callback) : callback_(std::move(callback)) {}

  /// Ctrl-C, noticed between steps or inside the callback; raised once the run has saved its checkpoint.
  Interrupt& interrupt() { return interrupt_; }

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
      for (const auto& [name, value] : r.metrics) d[name.c_str()] = value;
    });
  }
  void on_warning(const std::string& message) override {
    tell("warning", [&](nb::dict& d) { d["message"] = message; });
  }

 private:
  template <class F>
  void tell(const char* event, F&& fill) {
    const Locked locked;
    if (callback_.is_none()) return;
    nb::dict fields;
    fill(fields);
    try {
      or_sleep([&] { return callback_(event, fields); });
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_KeyboardInterrupt)) throw;
      interrupt_.take(error);
    }
  }

  nb::object callback_;
  Interrupt interrupt_;
};

nb::object from_json(const Json& json) { return nb::module_::import_("json").attr("loads")(json.dump()); }

// A setting's name as a keyword argument.
std::string keyword_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

[[noreturn]] void refuse_setting(const std::string& kind, const std::vector<train::Field>& known,
                                 const std::string& given) {
  std::vector<std::string> names;
  for (const train::Field& field : known) names.push_back(keyword_of(field.name));
  std::ranges::sort(names);
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  throw nb::type_error(
      concat("train ", kind, ": unknown setting '", given, "'", NearNames(names)(given), "; all are: ", all)
          .c_str());
}

// Keyword arguments by the settings' names, with _ for -.
void assign_settings(const std::string& kind, const std::vector<train::Field>& known, nb::dict settings) {
  for (auto [key, value] : settings) {
    const auto given = nb::cast<std::string>(key);
    std::string name = given;
    std::replace(name.begin(), name.end(), '_', '-');
    const auto find = [&] { return std::ranges::find(known, name, &train::Field::name); };
    if (find() == known.end()) {
      name = train::current_name(name);
      if (find() == known.end()) refuse_setting(kind, known, given);
      throw nb::type_error(
          concat("train ", kind, ": unknown setting '", given, "'; it is now called '", name, "'").c_str());
    }
    std::string text;
    if (PyBool_Check(value.ptr())) {
      text = nb::cast<bool>(value) ? "true" : "false";
    } else {
      const nb::object printed = nb::steal(PyObject_Str(value.ptr()));
      text = nb::cast<std::string>(printed);
    }
    train::assign(*find(), std::string_view(text));
  }
  const int lengths = settings.contains("steps") + settings.contains("epochs") + settings.contains("time");
  MH_CHECK(lengths <= 1, ValueError, "train ", kind, ": give one of steps, epochs and time");
}

std::unique_ptr<train::AnyRun> new_run(const std::string& kind, const std::string& preset) {
  std::unique_ptr<train::AnyRun> run = train::kind_of(kind).make();
  run->set_preset(preset);
  return run;
}

nb::object train_kind(const std::string& kind, const Path& data, const Path& folder, nb::dict settings,
                      const std::string& preset, const Path& valid, const Path& tokenizer, const Path& init,
                      bool resume, bool overwrite, nb::object callback) {
  const std::unique_ptr<train::AnyRun> run = new_run(kind, preset);
  train::RunRequest& request = run->request();
  request.data = data;
  request.folder = folder;
  request.valid = valid;
  request.tokenizer = tokenizer;
  request.init = init;
  request.resume = resume;
  request.extends = resume && (settings.contains("steps") || settings.contains("epochs"));
  request.overwrite = overwrite;
  MH_CHECK(!resume || !overwrite, ValueError, "train ", kind, ": give resume or overwrite, not both");
  for (const auto& [name, value] : settings) request.given.push_back(nb::cast<std::string>(name));
  if (!request.tokenizer.empty()) request.given.emplace_back("tokenizer-file");
  if (!request.init.empty()) run->start_from_init();
  assign_settings(kind, run->settings(), settings);
  const std::shared_ptr<distributed::Group> group = unlocked([] { return distributed::world(); });
  request.group = group.get();
  PyObserver observer(callback);
  if (request.leads()) request.observers = {&observer};
  request.should_stop = [&] { return observer.interrupt().came(); };
  distributed::set_world_failed(true);  // until it is done
  const Json summary = unlocked([&] { return run->train(); });
  distributed::set_world_failed(false);
  observer.interrupt().raise_if_any();
  return from_json(summary);
}

nb::dict evaluate_text(const models::LanguageModel& model, nb::handle tokens, int64_t context, int64_t batch,
                       int64_t windows, const text::Tokenizer* tokenizer, int64_t stride) {
  std::vector<int32_t> ids;
  for (const int64_t id : to_integers(tokens, {"evaluate", "tokens"})) {
    ids.push_back(id < 0 || id > INT32_MAX ? -1 : static_cast<int32_t>(id));
  }
  Interrupt interrupt;
  const train::EvaluateOptions options{context, batch, windows, stride, {[&] { return interrupt.came(); }}};
  const train::TextLoss loss = unlocked([&] { return train::evaluate(model, ids, options, tokenizer); });
  interrupt.raise_if_any();
  nb::dict result;
  result["nats"] = loss.nats, result["tokens"] = loss.tokens;
  result["loss"] = loss.loss(), result["perplexity"] = loss.perplexity();
  if (tokenizer == nullptr) return result;
  result["bytes"] = loss.bytes, result["characters"] = loss.characters;
  result["bits_per_byte"] = loss.bits_per_byte(), result["nats_per_character"] = loss.nats_per_character();
  return result;
}

template <class Model, class Check>
nb::list check(const Model& model, int64_t length, uint64_t seed, nb::object on_result, Check&& run) {
  const auto to_dict = [](const train::CheckResult& r) {
    nb::dict d;
    d["name"] = r.name, d["passed"] = r.passed, d["detail"] = r.detail, d["seconds"] = r.seconds;
    return d;
  };
  train::DoctorOptions options{length, seed, {}};
  options.on_result = [&](const train::CheckResult& r) {
    const Locked locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!on_result.is_none()) or_sleep([&] { return on_result(to_dict(r)); });
  };
  nb::list results;
  for (const auto& r : unlocked([&] { return run(model, options); })) results.append(to_dict(r));
  return results;
}

template <class Model>
using Checker = std::vector<train::CheckResult> (*)(const Model&, const train::DoctorOptions&);

void bind_checks(nb::module_& m) {
  m.def("evaluate", &evaluate_text, "model"_a, "tokens"_a, nb::kw_only(), "context"_a = 0, "batch"_a = 16,
        "windows"_a = 0, "tokenizer"_a.none() = nb::none(), "stride"_a = 0,
        "Evaluates a LanguageModel on token ids: a dict with 'loss' in nats per token, "
        "'perplexity',\n'nats', 'tokens' and, with a tokenizer, 'bits_per_byte', 'nats_per_character', "
        "'bytes', 'characters'.\ncontext: tokens per window (0: the model's); windows: this many, evenly "
        "spaced (0: all).\nstride: tokens from one window to the next (0: context, no overlap); each token "
        "is predicted once.");
  const auto def_check = [&]<class Model>(const char* name, Checker<Model> checker, const char* doc) {
    m.def(
        name,
        [checker](const Model& model, int64_t length, uint64_t seed, nb::object on_result) {
          return check(model, length, seed, on_result, checker);
        },
        "model"_a, nb::kw_only(), "length"_a = 24, "seed"_a = 1, "on_result"_a = nb::none(), doc);
  };
  def_check("check_language_model", Checker<models::LanguageModel>(train::check_language_model),
            "Checks finiteness, causality, padding, cache, threads, gradients and overfitting.\nA list of "
            "dicts 'name', 'passed', 'detail', 'seconds'; on_result is called with each.");
  def_check("check_translator", Checker<models::Seq2Seq>(train::check_translator), "The same for a Seq2Seq.");
  def_check("check_encoder", Checker<models::Encoder>(train::check_encoder),
            "Checks an Encoder: finiteness, context, batch independence, threads.");
}

void bind_linear_head(nb::module_& m) {
  m.def(
      "fit_linear_head",
      [](nb::handle vectors, nb::handle targets, int64_t labels, const std::string& problem, double c,
         int64_t seed, bool balanced) {
        const Tensor x = to_tensor(vectors, {"fit_linear_head", "vectors"}),
                     y = to_tensor(targets, {"fit_linear_head", "targets"});
        const auto type = value_of<models::ProblemType>(problem);
        MH_CHECK(type.has_value(), ValueError, "fit_linear_head: problem must be one of ",
                 Enumeration(word_list<models::ProblemType>()), ", got ", quote(problem));
        Interrupt interrupt;
        const auto should_stop = [&] { return interrupt.came(); };
        const train::LinearHead head = unlocked([&] {
          if (c == 0) c = train::choose_c(x, y, labels, *type, seed, should_stop, balanced).c;
          return train::fit_linear_head(x, y, labels, *type,
                                        {.c = c, .balanced = balanced, .should_stop = should_stop});
        });
        interrupt.raise_if_any();
        nb::dict result;
        result["weight"] = head.weight, result["bias"] = head.bias, result["c"] = c;
        result["loss"] = head.loss, result["steps"] = head.steps, result["converged"] = head.converged;
        return result;
      },
      "vectors"_a, "targets"_a, "labels"_a, nb::kw_only(), "problem"_a = "single_label", "c"_a = 0.0,
      "seed"_a = 0, "balanced"_a = false,
      "Logistic or ridge regression of vectors [n, dim], to convergence: a dict with weight [labels, dim], "
      "bias [labels],\nc, loss, steps and converged. targets: a label [n] (problem 'single_label'), 0 and 1 "
      "[n, labels] ('multi_label')\nor numbers [n, labels] ('regression'). c as in scikit-learn's "
      "LogisticRegression; 0: the best of .01, .1, 1, 10,\n100 and 1000 in five-fold cross-validation. "
      "balanced: "
      "labels count alike, as class_weight=\"balanced\".");
}

}  // namespace

void bind_runs(nb::module_& m) {
  m.def("train", &train_kind, "kind"_a, "data"_a, "folder"_a, "settings"_a, "preset"_a, "valid"_a,
        "tokenizer"_a, "init"_a, "resume"_a, "overwrite"_a, "callback"_a.none());
  m.def(
      "settings",
      [](const std::string& kind, const std::string& preset) {
        return from_json(train::to_json(new_run(kind, preset)->settings()));
      },
      "kind"_a, "preset"_a);
  bind_linear_head(m);
  bind_checks(m);
}

}  // namespace multihead::python
