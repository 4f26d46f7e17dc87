#include "python/src/models/generation.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>

#include <functional>
#include <map>
#include <memory>

#include "multihead/core/error.h"
#include "multihead/generate/constraint/constraint.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/draft.h"
#include "multihead/generate/generator.h"
#include "multihead/generate/stop_strings.h"
#include "multihead/generate/text_stream.h"
#include "python/src/bindings.h"
#include "python/src/interrupt.h"
#include "python/src/models/decoding.h"
#include "python/src/modules.h"
#include "python/src/names.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

using models::LanguageModel;

// Ctrl-C during generation: Python's handler only sets a flag, which has to be polled.
void check_signals() {
  const Locked locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Arrays may be indices too, if they are one number.
bool has_axes(const nb::object& x) {
  return nb::hasattr(x, "ndim") && nb::cast<int>(nb::object(x.attr("ndim"))) > 0;
}

bool is_number(nb::handle x) {
  return PyLong_Check(x.ptr()) || (nb::hasattr(x, "__index__") && !has_axes(nb::borrow(x)));
}

std::vector<std::vector<int32_t>> to_prompts(nb::handle prompts, bool& single) {
  if (PyUnicode_Check(prompts.ptr())) {
    throw nb::type_error(
        "generate: prompts must be token ids, got text; encode it with the model's Tokenizer, or use "
        "multihead.TextGenerator(folder).generate(text)");
  }
  std::vector<std::vector<int32_t>> rows;
  const auto convert = [](nb::handle given) {
    const bool is_range = PyRange_Check(given.ptr());
    const nb::object row = is_range ? nb::object(nb::list(given)) : nb::borrow(given);
    std::vector<int32_t> tokens;
    for (const int64_t t : to_integers(row, {"generate", "prompts"})) {
      MH_CHECK(t >= INT32_MIN && t <= INT32_MAX, ValueError, "generate: token ", t,
               " is outside the vocabulary");
      tokens.push_back(static_cast<int32_t>(t));
    }
    return tokens;
  };
  const bool is_array = nb::hasattr(prompts, "ndim");
  const bool is_sequence = PySequence_Check(prompts.ptr()) != 0 && !PyBytes_Check(prompts.ptr()) &&
                           !PyByteArray_Check(prompts.ptr());
  if (is_array ? !has_axes(nb::borrow(prompts)) : !is_sequence)
    throw nb::type_error("generate: prompts must be a sequence of token ids, or of such sequences");
  const bool is_empty = nb::len(prompts) == 0;
  single = is_array ? nb::cast<int>(nb::object(prompts.attr("ndim"))) == 1
                    : !is_empty && is_number(nb::object(prompts[0]));
  if (single) {
    rows.push_back(convert(prompts));
    return rows;
  }
  for (nb::handle row : prompts) {
    if (is_number(row)) throw nb::type_error("generate: prompts has token ids beside rows of them");
    rows.push_back(convert(row));
  }
  return rows;
}

const text::Tokenizer& needed(nb::handle tokenizer, const char* what) {
  const text::Tokenizer* found = nullptr;
  MH_CHECK(!tokenizer.is_none() && nb::try_cast(tokenizer, found), ValueError, "generate: ", what,
           " need tokenizer, the Tokenizer of the model");
  return *found;
}

// The constraint on the text, if one of the keywords gives one.
std::optional<Constraint> to_constraint(nb::handle tokenizer, nb::handle json_schema,
                                        const std::optional<std::string>& regex,
                                        const std::optional<std::string>& grammar) {
  const int count = !json_schema.is_none() + regex.has_value() + grammar.has_value();
  if (count == 0) return std::nullopt;
  MH_CHECK(count == 1, ValueError, "generate: json_schema, regex and grammar exclude each other");
  const text::Tokenizer& words = needed(tokenizer, "json_schema, regex and grammar");
  if (regex) return Constraint::regex(words, *regex);
  if (grammar) return Constraint::grammar(words, *grammar);
  nb::object text = nb::borrow(json_schema);
  if (!nb::isinstance<nb::str>(text)) text = nb::module_::import_("json").attr("dumps")(text);
  return Constraint::json_schema(words, Json::parse(nb::cast<std::string>(text), "json_schema"));
}

Draft to_draft(nb::handle draft) {
  if (draft.is_none()) return {};
  const LanguageModel* model = nullptr;
  if (nb::try_cast(draft, model) && model != nullptr) return draft_model(*model);
  MH_CHECK(nb::isinstance<nb::str>(draft) && nb::cast<std::string>(draft) == "lookup", ValueError,
           "generate: draft must be a LanguageModel or 'lookup'");
  return prompt_lookup();
}

// Calls back with each token, and ends a row at one of `strings`.
std::function<bool(int64_t, int32_t)> to_callback(const nb::object& on_token, nb::handle tokenizer,
                                                  const std::vector<std::string>& strings) {
  std::shared_ptr<StopStrings> stops;
  if (!strings.empty()) {
    stops = std::make_shared<StopStrings>(needed(tokenizer, "stop_strings"), strings,
                                          text::DecodeOptions{.continued = true});
  }
  // Copied and dropped without the interpreter's lock.
  std::shared_ptr<nb::object> call;
  if (!on_token.is_none()) {
    call = {new nb::object(on_token), [](nb::object* object) {
              const Locked locked;
              delete object;
            }};
  }
  return [call, stops](int64_t row, int32_t token) {
    check_signals();
    const bool more = stops == nullptr || stops->add(row, token);
    if (call == nullptr) return more;
    const Locked locked;
    const nb::object answer = or_sleep([&] { return (*call)(row, token); });
    return more && (answer.is_none() || is_true(answer));
  };
}

// Defines a method with the keywords of generation after its own: call(self, prompts, own..., options).
template <class... Own, class Self, class Call, class... Names>
void def_writing(nb::class_<Self>& c, const char* name, const char* prompts, Call call, const char* doc,
                 const Names&... own) {
  c.def(
      name,
      [call](Self& self, nb::handle given, Own... extra, int64_t max_new_tokens, double temperature,
             int64_t top_k, double top_p, double min_p, double repetition_penalty, uint64_t seed,
             const std::vector<int32_t>& stop_tokens, const std::string& overflow, nb::handle draft,
             int64_t draft_tokens, const nb::object& on_token, int64_t no_repeat_ngram,
             int64_t min_new_tokens, const std::vector<std::vector<int32_t>>& suppress,
             std::optional<int32_t> first_token, std::optional<int32_t> last_token,
             const std::vector<std::string>& stop_strings, nb::handle tokenizer, nb::handle json_schema,
             const std::optional<std::string>& regex, const std::optional<std::string>& grammar,
             const std::map<int32_t, float>& logit_bias) {
        GenerateOptions options;
        options.max_new_tokens = max_new_tokens;
        options.sampling = {temperature, top_k, top_p, min_p, repetition_penalty};
        options.seed = seed;
        options.stop_tokens = stop_tokens;
        options.overflow = to_enum<Overflow>(overflow, "generate: overflow",
                                             {{"slide", Overflow::slide}, {"error", Overflow::error}});
        options.no_repeat_ngram = no_repeat_ngram, options.min_new_tokens = min_new_tokens;
        options.suppress = suppress;
        options.first_token = first_token, options.last_token = last_token;
        options.constraint = to_constraint(tokenizer, json_schema, regex, grammar);
        options.logit_bias.assign(logit_bias.begin(), logit_bias.end());
        options.draft = to_draft(draft);
        options.draft_tokens = draft_tokens;
        options.on_token = to_callback(on_token, tokenizer, stop_strings);
        return call(self, given, extra..., std::move(options));
      },
      nb::arg(prompts), nb::kw_only(), own..., "max_new_tokens"_a = 100, "temperature"_a = 1.0, "top_k"_a = 0,
      "top_p"_a = 1.0, "min_p"_a = 0.0, "repetition_penalty"_a = 1.0, "seed"_a = 0,
      "stop_tokens"_a = std::vector<int32_t>(), "overflow"_a = "slide", "draft"_a = nb::none(),
      "draft_tokens"_a = 4, "on_token"_a = nb::none(), "no_repeat_ngram"_a = 0, "min_new_tokens"_a = 0,
      "suppress"_a = std::vector<std::vector<int32_t>>(), "first_token"_a = nb::none(),
      "last_token"_a = nb::none(), "stop_strings"_a = std::vector<std::string>(), "tokenizer"_a = nb::none(),
      "json_schema"_a = nb::none(), "regex"_a = nb::none(), "grammar"_a = nb::none(),
      "logit_bias"_a = std::map<int32_t, float>(), doc);
}

nb::object generate_call(const LanguageModel& model, nb::handle prompts, nb::handle cache_dtype,
                         GenerateOptions options) {
  bool single = false;
  const std::vector<std::vector<int32_t>> rows = to_prompts(prompts, single);
  if (!cache_dtype.is_none()) options.cache_dtype = to_cache_dtype(cache_dtype);
  auto result = unlocked([&] { return generate(model, rows, options); });
  return single ? nb::cast(result.at(0)) : nb::cast(result);
}

// Lists of numbers, and of the likeliest tokens if they are asked for.
nb::object logprobs_call(const LanguageModel& model, nb::handle prompts, int64_t top) {
  bool single = false;
  const std::vector<std::vector<int32_t>> rows = to_prompts(prompts, single);
  const auto all = interruptible([&] { return prompt_logprobs(model, rows, top); });
  nb::list chosen, likeliest;
  for (const std::vector<TokenLogprobs>& row : all) {
    nb::list numbers, lists;
    for (const TokenLogprobs& one : row) {
      numbers.append(one.chosen.logprob);
      nb::list own;
      for (const TokenLogprob& token : one.top) own.append(nb::make_tuple(token.token, token.logprob));
      lists.append(own);
    }
    chosen.append(numbers), likeliest.append(lists);
  }
  const nb::object first = single ? nb::object(chosen[0]) : nb::object(chosen);
  const nb::object second = single ? nb::object(likeliest[0]) : nb::object(likeliest);
  return top > 0 ? nb::object(nb::make_tuple(first, second)) : first;
}

int64_t submit_call(Generator& generator, nb::handle prompt, const GenerateOptions& options) {
  bool single = false;
  std::vector<std::vector<int32_t>> rows = to_prompts(prompt, single);
  MH_CHECK(single, ValueError, "Generator.submit: one prompt at a time, got ", rows.size());
  return unlocked([&] { return generator.submit(std::move(rows[0]), options); });
}

std::vector<int32_t> take_call(Generator& generator, int64_t sequence) {
  const std::string problem = generator.problem(sequence);
  std::vector<int32_t> tokens = generator.take(sequence);
  MH_CHECK(problem.empty(), ValueError, "Generator: sequence ", sequence, ": ", problem);
  return tokens;
}

// A model folder's defaults of generation, as keyword arguments.
nb::dict generation_defaults(const Path& folder) {
  GenerateOptions options;
  const models::GenerationConfig config = models::load_generation_config(folder);
  apply(config, options);
  nb::dict words;
  words["temperature"] = options.sampling.temperature;
  words["top_k"] = options.sampling.top_k;
  words["top_p"] = options.sampling.top_p;
  words["min_p"] = options.sampling.min_p;
  words["repetition_penalty"] = options.sampling.repetition_penalty;
  words["stop_tokens"] = options.stop_tokens;
  words["no_repeat_ngram"] = options.no_repeat_ngram;
  words["min_new_tokens"] = options.min_new_tokens;
  words["suppress"] = options.suppress;
  words["last_token"] = options.last_token;
  words["stop_strings"] = config.stop_strings;
  return words;
}

}  // namespace

void bind_generate(nb::class_<LanguageModel>& c) {
  def_writing<nb::handle>(
      c, "generate", "prompts", &generate_call,
      "The new tokens of one prompt (a list of ints) or of several. on_token(row, token) sees each as it "
      "comes and\nmay return False to end its row. draft, a smaller model or 'lookup' (for texts that repeat "
      "themselves),\nguesses up to draft_tokens tokens, which are checked in one step: the result is the "
      "same, sooner.\ncache_dtype, of keys and values: the model's, 'bfloat16' for half the memory or 'int8' "
      "for a quarter.\nno_repeat_ngram=n: no n-gram of prompt and new tokens comes twice. min_new_tokens: "
      "before them, no stop token. suppress:\nsequences of tokens that never come. first_token, last_token: "
      "the first new token and that at max_new_tokens.\nstop_strings: a row ends with the token that "
      "completes one of them in its new text, by the `tokenizer`.\njson_schema (a dict or JSON text), regex "
      "or grammar (GBNF): tokens of the `tokenizer` by which the text would not\nfit never come, and "
      "stop_tokens only where it may end. logit_bias: {token: number}, added to the logits.\noverflow: what "
      "the "
      "context does not hold goes on from the last half of it ('slide') or is a ValueError ('error').",
      "cache_dtype"_a = nb::none());
  c.def("logprobs", &logprobs_call, "prompts"_a, nb::kw_only(), "top"_a = 0,
        "The log-probability of every token but the first by those before it, of one text (a list of ints) "
        "or of several.\nWith top > 0 also the likeliest ones in its place: lists of (token, logprob), most "
        "probable first.");
}

void bind_generator(nb::module_& m) {
  m.def("generation_defaults", &generation_defaults, "folder"_a,
        "What the folder's generation_config.json asks of generate(), as keyword arguments. stop_strings "
        "want a tokenizer beside them.");
  m.def(
      "load_with_tokenizer",
      [](const Path& path, const std::optional<std::string>& weights) {
        std::optional<nn::WeightDtype> dtype;
        if (weights) dtype = kernels::parse_weight_dtype(*weights);
        LoadedModel loaded = unlocked([&] { return load_with_tokenizer(path, dtype); });
        return std::make_pair(std::move(loaded.model), std::move(loaded.tokenizer));
      },
      "path"_a, "weights"_a = nb::none(),
      "A folder's or GGUF file's LanguageModel and its Tokenizer; FormatError if they do not match.");
  nb::class_<TextStream>(m, "TextStream", "Calls back with whole characters as tokens complete them.")
      .def(
          "__init__",
          [](TextStream* self, const nb::object& on_text, const text::Tokenizer& tokenizer) {
            new (self) TextStream([on_text](std::string_view piece) { on_text(to_str(piece)); }, tokenizer,
                                  {.skip_special = true, .continued = true});
          },
          "on_text"_a, "tokenizer"_a)
      .def("write", &TextStream::write, "token"_a)
      .def("finish", &TextStream::finish, "Shows what was held back.");
  m.def("turn_ends", &turn_ends, "tokenizer"_a,
        "Tokens that end an answer where the chat template writes them, besides the end of the text.");
  nb::class_<Generator> c(
      m, "Generator",
      "Sequences decoded together, each with the tokens that generate() gives it alone: submit() at any "
      "time,\nstep() until it returns False. Up to max_batch run at a time. `cached_prompts` prompts keep "
      "their keys and values for prompts with a common prefix,\nin prompt_cache_bytes at most (0: no limit); "
      "in prefix_folder they outlive the process.");
  c.def(
      "__init__",
      [](Generator* self, const LanguageModel& model, int64_t max_batch, int64_t capacity,
         nb::handle cache_dtype, int64_t cached_prompts, size_t prompt_cache_bytes,
         const Path& prefix_folder) {
        GeneratorOptions options = {.max_batch = max_batch,
                                    .capacity = capacity,
                                    .cached_prompts = cached_prompts,
                                    .prompt_cache_bytes = prompt_cache_bytes,
                                    .prefix_folder = prefix_folder,
                                    .on_problem = [](const std::string& problem) {
                                      const nb::gil_scoped_acquire gil;
                                      PyErr_WarnEx(PyExc_RuntimeWarning, problem.c_str(), 1);
                                      if (PyErr_Occurred() != nullptr) throw nb::python_error();
                                    }};
        if (!cache_dtype.is_none()) options.cache_dtype = to_cache_dtype(cache_dtype);
        new (self) Generator(model, options);
      },
      "model"_a, nb::kw_only(), "max_batch"_a = 8, "capacity"_a = 0, "cache_dtype"_a = nb::none(),
      "cached_prompts"_a = 0, "prompt_cache_bytes"_a = 0, "prefix_folder"_a = "");
  def_writing(
      c, "submit", "prompt", &submit_call,
      "Queues a prompt; returns the number of its sequence. on_token(number, token) may return False to "
      "end it.");
  c.def(
       "step", [](Generator& g) { return unlocked([&] { return g.step(); }); },
       "One token for every running sequence, those that wait let in; False if none is left.")
      .def(
          "cancel", [](Generator& g, int64_t i) { unlocked([&] { return g.cancel(i), 0; }); }, "sequence"_a)
      .def(
          "finished", [](Generator& g, int64_t i) { return unlocked([&] { return g.finished(i); }); },
          "sequence"_a)
      .def(
          "tokens", [](Generator& g, int64_t i) { return unlocked([&] { return g.tokens(i); }); },
          "sequence"_a, "The new tokens so far.")
      .def(
          "take", [](Generator& g, int64_t i) { return unlocked([&] { return take_call(g, i); }); },
          "sequence"_a,
          "The new tokens of a sequence that has ended, which is forgotten. ValueError if it ended because "
          "no token was left to it;\ntokens() has those before.")
      .def_prop_ro("running", [](Generator& g) { return unlocked([&] { return g.running(); }); })
      .def_prop_ro("waiting", [](Generator& g) { return unlocked([&] { return g.waiting(); }); })
      .def_prop_ro(
          "bytes", [](Generator& g) { return unlocked([&] { return g.bytes(); }); },
          "Memory of keys and values.");
}

}  // namespace multihead::python
