// multihead generate
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <sstream>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "cli/verbs/chat.h"
#include "multihead/core/files.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/draft.h"
#include "multihead/generate/generator.h"
#include "multihead/generate/text_stream.h"
#include "multihead/generate/token_rules.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

class Generate : public Verb {
 public:
  Generate()
      : Verb("generate", "continue a prompt with a trained model",
             {{"multihead generate model --prompt \"It was\" --max-new-tokens 200", "streams the text"},
              {"multihead generate model --prompt \"Emma\" --temperature 0.8 --top-k 40 --seed 7 --samples 3",
               "three continuations"},
              {"echo \"Dear\" | multihead generate model --prompt - --temperature 0",
               "greedy, prompt from stdin"},
              {"multihead generate model --prompt \"It was\" --draft small-model",
               "speculative decoding: the same text, sooner"},
              {"multihead generate model.gguf --chat", "a conversation, using the model's chat template"},
              {"multihead generate model --prompt \"A person:\" --json-schema person.json",
               "JSON that fits a schema"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("prompt", "TEXT", prompt_, "prompt; - reads stdin");
    Flag& most =
        flags.integer("max-new-tokens", options_.max_new_tokens,
                      "number of tokens to generate (--chat: at most, per answer; default: to the end)");
    most.set = [this, set = most.set](std::string_view value) { set(value), limited_ = true; };
    given_.declare(flags, [this](Flags& own) {
      own.number("temperature", options_.sampling.temperature, "softmax temperature (0: greedy)");
      own.integer("top-k", options_.sampling.top_k, "sample from the k most probable tokens (0: all)");
      own.number("top-p", options_.sampling.top_p,
                 "sample from the smallest set with this total probability");
      own.number("min-p", options_.sampling.min_p, "drop tokens below this fraction of the top probability");
      own.number("repetition-penalty", options_.sampling.repetition_penalty, "> 1 penalises repeated tokens");
      own.integer("no-repeat-ngram", options_.no_repeat_ngram, "forbid repeated N-grams (0: off)");
      own.integer("min-new-tokens", options_.min_new_tokens, "minimum number of tokens before the end");
    });
    flags.text("json-schema", "FILE", schema_file_,
               "the text is JSON that fits this schema ({\"type\": \"object\"}: any object)");
    flags.text("regex", "PATTERN", regex_, "the text fits this regular expression as a whole");
    flags.text("grammar", "FILE", grammar_file_, "the text follows this grammar (GBNF)");
    flags.text("suppress", "TEXT", suppress_, "forbidden words, separated by spaces");
    flags.flag("special", special_,
               "read special tokens in --prompt, such as <|im_start|>, as tokens, and print those that are "
               "generated");
    flags.flag("chat", chat_,
               "answer the lines of stdin, or --prompt, as a conversation by the model's chat template");
    flags.text("system", "TEXT", system_, "--chat: the system message");
    flags.text("chat-template-kwargs", "JSON", template_variables_,
               "--chat: variables of the chat template, an object such as {\"enable_thinking\": false}");
    flags.integer("seed", seed_, "random seed of sampling");
    flags.integer("samples", samples_, "number of continuations", {.least = 1, .most = 4096});
    flags.repeated("stop", "TEXT", stops_, "stop before this text; may be given several times");
    declare_weights(flags, weights_);
    flags.text("draft", "lookup|DIR", draft_,
               "speculative decoding, same text: lookup (guess from earlier text) or a smaller model "
               "with the same tokenizer");
    flags.integer("draft-tokens", options_.draft_tokens, "maximum number of draft tokens per step",
                  {.least = 1, .most = 64});
    flags.choice("kv-cache-dtype", cache_dtype_, {"f32", "bf16", "int8"},
                 "dtype of cached keys and values (bf16: half the memory, int8: a quarter; rounded)");
    flags.text("prefix-cache", "DIR", prefix_cache_,
               "cache keys and values of prompts in this folder (1 GB at most), so that prompts and "
               "conversations with a common prefix compute it once");
    flags.choice("past-context", overflow_, {"slide", "error"},
                 "when the context is full: continue from its last half, or fail up front");
  }

  int run(const CommonOptions& common) override {
    refuse_sampling("with --temperature 0");
    if (draft_.empty()) refuse_given("without --draft", {"draft-tokens"});
    check(options_.sampling);
    check_chat(common);
    const LoadedModel loaded = load_model_dir(folder_, weights_, true);
    const std::string prompt = text_or_stdin(prompt_);
    if (prompt.empty() && (!chat_ || !prompt_.empty()))
      throw UsageError("the prompt is empty; give --prompt TEXT");
    options_.seed = static_cast<uint64_t>(seed_);
    options_.overflow = overflow_ == "error" ? Overflow::error : Overflow::slide;
    if (cache_dtype_ == "bf16") options_.cache_dtype = Dtype::bf16;
    if (cache_dtype_ == "int8") options_.cache_dtype = nn::kInt8Cache;
    if (const auto eos = loaded.tokenizer.eos_id()) options_.stop_tokens = {*eos};
    reading([&] {
      const models::GenerationConfig defaults = models::load_generation_config(folder_);
      apply(defaults, options_), check(options_.sampling);
      stops_.insert(stops_.end(), defaults.stop_strings.begin(), defaults.stop_strings.end());
    });
    given_.set_again();
    refuse_sampling("at temperature 0, which the folder's generation_config.json says");
    suppress_words(loaded.tokenizer);
    set_constraint(loaded.tokenizer);
    if (!chat_) return print(common, loaded, prompt);
    return with_weights_of(folder_, [&] {
      return chat(loaded, {folder_, system_, prompt, options_, limited_, common.quiet, prefix_cache_,
                           template_variables(), stops_});
    });
  }

 private:
  void refuse_sampling(const char* when) const {
    if (options_.sampling.temperature == 0) refuse_given(when, {"top-k", "top-p", "min-p", "seed"});
  }

  void check_chat(const CommonOptions& common) const {
    if (!chat_ && !system_.empty()) throw UsageError("--system requires --chat");
    if (!chat_ && !template_variables_.empty()) throw UsageError("--chat-template-kwargs requires --chat");
    if (!chat_) return;
    const bool other = common.json || samples_ > 1 || special_ || overflow_ != "slide" || !draft_.empty();
    if (other)
      throw UsageError(
          "--chat cannot be combined with --json, --samples, --special, --past-context or --draft");
  }

  // A word may be spelt with and without a space in front of it.
  void suppress_words(const text::Tokenizer& tokenizer) {
    std::istringstream words(suppress_);
    for (std::string word; words >> word;) {
      for (const std::string& spelt : {word, " " + word}) {
        options_.suppress.push_back(
            tokenizer.encode(spelt, {.parse_special = special_, .add_template = false}));
      }
    }
  }

  void set_constraint(const text::Tokenizer& tokenizer) {
    const int count = !schema_file_.empty() + !regex_.empty() + !grammar_file_.empty();
    if (count > 1) throw UsageError("--json-schema, --regex and --grammar exclude each other");
    try {
      if (!regex_.empty()) options_.constraint = Constraint::regex(tokenizer, regex_);
    } catch (const ValueError& error) {
      throw UsageError(concat("--regex: ", error.what()));
    }
    reading([&] {
      if (!schema_file_.empty()) {
        options_.constraint =
            Constraint::json_schema(tokenizer, Json::parse(read_file(schema_file_), schema_file_));
      }
      if (!grammar_file_.empty())
        options_.constraint = Constraint::grammar(tokenizer, read_file(grammar_file_));
    });
  }

  Json template_variables() const {
    if (template_variables_.empty()) return Json::object();
    try {
      Json variables = Json::parse(template_variables_, "--chat-template-kwargs");
      if (variables.is_object()) return variables;
    } catch (const FormatError& error) {
      throw UsageError(error.what());
    }
    throw UsageError("--chat-template-kwargs must be an object, such as {\"enable_thinking\": false}");
  }

  GeneratorOptions generator_options(const CommonOptions& common) const {
    return {.prefix_folder = prefix_cache_, .on_problem = [&common](const std::string& problem) {
              if (!common.quiet) std::fputs(("note: " + printable(problem) + "\n").c_str(), stderr);
            }};
  }

  void set_draft(const CommonOptions& common, const LoadedModel& loaded, int64_t length) {
    if (draft_.empty()) return;
    if (plan_generate(loaded.model, samples_, length, options_).window > 0 && !common.quiet) {
      std::fputs("note: --draft saves no time: each layer of this model keeps its window of keys alone\n",
                 stderr);
    }
    if (draft_ == "lookup") {
      options_.draft = prompt_lookup();
      return;
    }
    if (samples_ > 1) throw UsageError("--draft DIR supports one sample; --draft lookup any number");
    smaller_ = load_model_dir(draft_, "stored", true);
    if (smaller_->tokenizer.fingerprint() != loaded.tokenizer.fingerprint())
      throw InputError(concat(draft_, ": its tokenizer differs from that of ", folder_));
    options_.draft = draft_model(smaller_->model);
  }

  int print(const CommonOptions& common, const LoadedModel& loaded, const std::string& prompt) {
    const std::vector<int32_t> ids = loaded.tokenizer.encode(prompt, {.parse_special = special_});
    check_rules(options_, loaded.model.config().vocab_size);  // before the prompt is shown
    check_length(loaded.model, std::ssize(ids), options_);
    set_draft(common, loaded, std::ssize(ids));
    const bool streams = samples_ == 1 && !common.json;
    const text::DecodeOptions decode = {.skip_special = !special_, .continued = true};
    TextStream stream(put_output, loaded.tokenizer, decode, stops_);
    StopStrings said(loaded.tokenizer, stops_, decode);
    if (streams) put_output(prompt);
    const train::StopSignals signals;
    options_.on_token = [&](int64_t row, int32_t token) {
      const bool more = streams ? stream.write(token) : said.add(row, token);
      return more && train::StopSignals::received() == 0;
    };
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<std::vector<int32_t>> rows(static_cast<size_t>(samples_), ids);
    const auto tokens = with_weights_of(
        folder_, [&] { return generate(loaded.model, rows, options_, generator_options(common)); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (streams) {
      stream.finish();
      fmt::print("\n");
    } else {
      std::vector<std::string> texts;
      for (int64_t row = 0; row < samples_; ++row) texts.push_back(said.text(row));
      common.json ? print_json(prompt, texts, tokens, seconds) : print_texts(prompt, texts);
    }
    return train::StopSignals::received() != 0 ? train::StopSignals::exit_code() : kDone;
  }

  void print_texts(const std::string& prompt, const std::vector<std::string>& texts) const {
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts.size() > 1) fmt::print("{}--- {} ---\n", i > 0 ? "\n" : "", i + 1);
      fmt::print("{}{}\n", prompt, texts[i]);
    }
  }

  void print_json(const std::string& prompt, const std::vector<std::string>& texts,
                  const std::vector<std::vector<int32_t>>& tokens, double seconds) const {
    Json samples = Json::array();
    int64_t count = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto n = static_cast<int64_t>(tokens[i].size());
      count += n;
      samples.push_back(Json::object({{"text", valid_utf8(texts[i])}, {"tokens", n}}));
    }
    put_json(Json::object({{"prompt", valid_utf8(prompt)},
                           {"samples", samples},
                           {"seed", seed_},
                           {"tokens_per_second", static_cast<double>(count) / std::max(seconds, 1e-9)}}));
  }

  std::string schema_file_, regex_, grammar_file_;
  std::string folder_, prompt_, suppress_, overflow_ = "slide", cache_dtype_ = "f32", weights_ = "stored";
  std::string system_, draft_, prefix_cache_, template_variables_;
  std::vector<std::string> stops_;
  bool chat_ = false, limited_ = false, special_ = false;
  int64_t samples_ = 1, seed_ = 0;
  std::optional<LoadedModel> smaller_;  // of --draft
  GenerateOptions options_;
  GivenFlags given_;
};

}  // namespace

std::unique_ptr<Verb> make_generate() { return std::make_unique<Generate>(); }

}  // namespace multihead::cli
