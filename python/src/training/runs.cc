// Whole training runs with the command line's settings, how well a model predicts, and what is wrong with it.
#include <nanobind/stl/map.h>

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/distributed/world.h"
#include "multihead/train/doctor/doctor.h"
#include "multihead/train/evaluate.h"
#include "multihead/train/tasks/classifier_run.h"
#include "multihead/train/tasks/embedder_run.h"
#include "multihead/train/tasks/language_model_run.h"
#include "multihead/train/tasks/masked_lm_run.h"
#include "multihead/train/tasks/seq2seq_run.h"
#include "python/src/bindings.h"
#include "python/src/interrupt.h"
#include "python/src/modules.h"
#include "python/src/path.h"

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

// Keyword arguments by the settings' names, with _ for -.
void assign_settings(const char* who, const std::vector<train::Field>& known, nb::dict settings) {
  for (auto [key, value] : settings) {
    std::string name = nb::cast<std::string>(key);
    std::replace(name.begin(), name.end(), '_', '-');
    const auto field =
        std::find_if(known.begin(), known.end(), [&](const train::Field& f) { return f.name == name; });
    if (field == known.end()) {
      throw nb::type_error(
          (std::string(who) + ": unknown setting '" + nb::cast<std::string>(key) + "'").c_str());
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
}

struct RunWords {
  const std::string &data, &folder, &tokenizer, &init;
  bool resume, overwrite;
  nb::object callback;
};

template <class Run, class Train>
nb::object run_with(Run& run, const RunWords& words, Train&& train) {
  run.data = words.data;
  run.folder = words.folder;
  run.tokenizer = words.tokenizer;
  run.init = words.init;
  run.resume = words.resume;
  run.overwrite = words.overwrite;
  const std::shared_ptr<distributed::Group> group = unlocked([] { return distributed::world(); });
  run.group = group.get();
  PyObserver observer(words.callback);
  if (run.leads()) run.observers = {&observer};
  run.should_stop = [&] { return observer.interrupt().came(); };
  distributed::set_world_failed(true);  // until it is done
  const auto summary = unlocked([&] { return train(run); });
  distributed::set_world_failed(false);
  observer.interrupt().raise_if_any();
  return from_json(train::to_json(summary));
}

nb::object train_language_model(const Path& data, const Path& folder, nb::dict settings,
                                const std::string& preset, const Path& tokenizer, const Path& init,
                                bool resume, bool overwrite, nb::object callback) {
  train::LanguageModelRun run;
  run.settings = train::language_model_settings(preset);
  if (!init.empty()) start_from(run.settings, init);
  assign_settings("train_language_model", train::fields(run.settings), settings);
  return run_with(run, {data, folder, tokenizer, init, resume, overwrite, callback},
                  train::train_language_model);
}

nb::object train_seq2seq(const Path& data, const Path& folder, nb::dict settings, const std::string& preset,
                         const Path& valid, const Path& tokenizer, const Path& init, bool resume,
                         bool overwrite, nb::object callback) {
  train::Seq2SeqRun run;
  run.settings = train::seq2seq_settings(preset);
  if (!init.empty()) start_from(run.settings, init);
  assign_settings("train_seq2seq", train::fields(run.settings), settings);
  run.valid = valid;
  return run_with(run, {data, folder, tokenizer, init, resume, overwrite, callback}, train::train_seq2seq);
}

// Runs that fine-tune an encoder: their settings begin with it.
template <class Run, class Summary>
auto tune(const char* who, Summary (*train)(const Run&)) {
  return [=](const Path& data, const Path& folder, nb::dict settings, const Path& valid, const Path& init,
             bool resume, bool overwrite, nb::object callback) {
    Run run;
    start_from(run.settings, init);
    assign_settings(who, train::fields(run.settings), settings);
    run.valid = valid;
    const std::string none;
    return run_with(run, {data, folder, none, init, resume, overwrite, callback}, train);
  };
}

nb::object train_masked_lm(const Path& data, const Path& folder, nb::dict settings, const std::string& preset,
                           const Path& tokenizer, const Path& init, bool resume, bool overwrite,
                           nb::object callback) {
  train::MaskedLmRun run;
  run.settings = train::masked_lm_settings(preset);
  if (!init.empty()) start_from(run.settings, init);
  assign_settings("train_masked_lm", train::fields(run.settings), settings);
  return run_with(run, {data, folder, tokenizer, init, resume, overwrite, callback}, train::train_masked_lm);
}

template <class Settings>
nb::object settings_dict(Settings settings) {
  return from_json(train::to_json(train::fields(settings)));
}

nb::dict evaluate_text(const models::LanguageModel& model, nb::handle tokens, int64_t context, int64_t batch,
                       int64_t windows, const text::Tokenizer* tokenizer, int64_t stride) {
  std::vector<int32_t> ids;
  for (const int64_t id : to_integers(tokens, {"evaluate", "tokens"})) {
    ids.push_back(id < 0 || id > INT32_MAX ? -1 : static_cast<int32_t>(id));
  }
  Interrupt interrupt;
  const train::EvaluateOptions options{context, batch, windows, stride, [&] { return interrupt.came(); }};
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
  m.def(
      "evaluate", &evaluate_text, "model"_a, "tokens"_a, nb::kw_only(), "context"_a = 0, "batch"_a = 16,
      "windows"_a = 0, "tokenizer"_a.none() = nb::none(), "stride"_a = 0,
      "Evaluates a LanguageModel on token ids: a dict with 'loss' in nats per token, "
      "'perplexity',\n'nats', 'tokens' and, with a tokenizer, 'bits_per_byte', 'nats_per_character', "
      "'bytes', 'characters'.\ncontext: tokens per window (0: the model's); windows: this many, evenly "
      "spaced (0: all).\nstride: tokens from one window to the next (0: context, no overlap); each token is "
      "predicted once.");
  const auto def_check = [&]<class Model>(const char* name, Checker<Model> checker, const char* doc) {
    m.def(
        name,
        [checker](const Model& model, int64_t length, uint64_t seed, nb::object on_result) {
          return check(model, length, seed, on_result, checker);
        },
        "model"_a, nb::kw_only(), "length"_a = 24, "seed"_a = 1, "on_result"_a = nb::none(), doc);
  };
  def_check(
      "check_language_model", Checker<models::LanguageModel>(train::check_language_model),
      "Checks finiteness, causality, padding, cache, threads, gradients and overfitting.\nA list of dicts "
      "'name', 'passed', 'detail', 'seconds'; on_result is called with each.");
  def_check("check_translator", Checker<models::Seq2Seq>(train::check_translator), "The same for a Seq2Seq.");
  def_check("check_encoder", Checker<models::Encoder>(train::check_encoder),
            "Checks an Encoder: finiteness, context, batch independence, threads.");
}

}  // namespace

void bind_runs(nb::module_& m) {
  m.def("train_language_model", &train_language_model, "data"_a, "folder"_a, "settings"_a, "preset"_a,
        "tokenizer"_a, "init"_a, "resume"_a, "overwrite"_a, "callback"_a.none());
  m.def("train_seq2seq", &train_seq2seq, "data"_a, "folder"_a, "settings"_a, "preset"_a, "valid"_a,
        "tokenizer"_a, "init"_a, "resume"_a, "overwrite"_a, "callback"_a.none());
  m.def("train_masked_lm", &train_masked_lm, "data"_a, "folder"_a, "settings"_a, "preset"_a, "tokenizer"_a,
        "init"_a, "resume"_a, "overwrite"_a, "callback"_a.none());
  const auto def_tune = [&](const char* name, auto run) {
    m.def(name, run, "data"_a, "folder"_a, "settings"_a, "valid"_a, "init"_a, "resume"_a, "overwrite"_a,
          "callback"_a.none());
  };
  def_tune("train_classifier", tune("train_classifier", train::train_classifier));
  def_tune("train_embedder", tune("train_embedder", train::train_embedder));
  m.def(
      "language_model_settings",
      [](const std::string& preset) { return settings_dict(train::language_model_settings(preset)); },
      "preset"_a, "All settings of train_language_model() with a preset's values.");
  m.def(
      "seq2seq_settings",
      [](const std::string& preset) { return settings_dict(train::seq2seq_settings(preset)); }, "preset"_a,
      "All settings of train_seq2seq() with the values of a preset ('tiny', 'small', 'base').");
  m.def(
      "masked_lm_settings",
      [](const std::string& preset) { return settings_dict(train::masked_lm_settings(preset)); }, "preset"_a,
      "All settings of train_masked_lm() with the values of a preset ('tiny', 'small', 'base').");
  m.def(
      "classifier_settings", [] { return settings_dict(train::ClassifierSettings()); },
      "All settings of train_classifier(); dropout is the encoder's.");
  m.def(
      "embedder_settings", [] { return settings_dict(train::EmbedderSettings()); },
      "All settings of train_embedder(); dropout is the encoder's.");
  bind_checks(m);
}

}  // namespace multihead::python
