// multihead generate
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "cli/chat.h"
#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/token_stream.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/draft.h"
#include "multihead/generate/generator.h"
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
              {"multihead generate model.gguf --chat", "a conversation, using the model's chat template"}}) {}

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
    });
    flags.flag("chat", chat_,
               "answer the lines of stdin, or --prompt, as a conversation by the model's chat template");
    flags.text("system", "TEXT", system_, "--chat: the system message");
    flags.text("chat-template-kwargs", "JSON", template_variables_,
               "--chat: variables of the chat template, an object such as {\"enable_thinking\": false}");
    flags.integer("seed", seed_, "random seed of sampling");
    flags.integer("samples", samples_, "number of continuations", {.least = 1, .most = 4096});
    flags.text("stop", "TEXT", stop_, "stop before this text");
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
    check(options_.sampling);
    check_chat(common);
    const LoadedModel loaded = load_model_dir(folder_, weights_, true);
    const std::string prompt = text_or_stdin(prompt_);
    if (prompt.empty() && !chat_) throw UsageError("the prompt is empty; give --prompt TEXT");
    options_.seed = static_cast<uint64_t>(seed_);
    options_.overflow = overflow_ == "error" ? Overflow::error : Overflow::slide;
    if (cache_dtype_ == "bf16") options_.cache_dtype = Dtype::bf16;
    if (cache_dtype_ == "int8") options_.cache_dtype = nn::kInt8Cache;
    if (const auto eos = loaded.tokenizer.eos_id()) options_.stop_tokens = {*eos};
    reading([&] { apply(models::load_generation_config(folder_), options_), check(options_.sampling); });
    given_.set_again();
    if (!chat_) return print(common, loaded, prompt);
    return with_weights_of(folder_, [&] {
      return chat(loaded, {folder_, system_, prompt, options_, limited_, common.quiet, prefix_cache_,
                           template_variables()});
    });
  }

 private:
  void check_chat(const CommonOptions& common) const {
    if (!chat_ && !system_.empty()) throw UsageError("--system requires --chat");
    if (!chat_ && !template_variables_.empty()) throw UsageError("--chat-template-kwargs requires --chat");
    if (!chat_) return;
    const bool other =
        common.json || samples_ > 1 || !stop_.empty() || overflow_ != "slide" || !draft_.empty();
    if (other)
      throw UsageError("--chat cannot be combined with --json, --samples, --stop, --past-context or --draft");
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

  void set_draft(const LoadedModel& loaded) {
    if (draft_.empty()) return;
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
    set_draft(loaded);
    const std::vector<int32_t> ids = loaded.tokenizer.encode(prompt);
    const bool streams = samples_ == 1 && !common.json && stop_.empty();
    TokenStream stream(loaded.tokenizer, {.continued = true});
    if (streams) put_output(prompt);
    const train::StopSignals signals;
    std::vector<std::string> texts(static_cast<size_t>(samples_));
    options_.on_token = [&](int64_t row, int32_t token) {
      if (streams) stream.write(token);
      std::string& text = texts[static_cast<size_t>(row)];
      text += loaded.tokenizer.decode(std::span(&token, 1), {.continued = true});
      const bool stopped = !stop_.empty() && text.find(stop_) != std::string::npos;
      if (stopped) text.resize(text.find(stop_));
      return !stopped && train::StopSignals::received() == 0;
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

  std::string folder_, prompt_, stop_, overflow_ = "slide", cache_dtype_ = "f32", weights_ = "stored";
  std::string system_, draft_, prefix_cache_, template_variables_;
  bool chat_ = false, limited_ = false;
  int64_t samples_ = 1, seed_ = 0;
  std::optional<LoadedModel> smaller_;  // of --draft
  GenerateOptions options_;
  GivenFlags given_;
};

}  // namespace

std::unique_ptr<Verb> make_generate() { return std::make_unique<Generate>(); }

}  // namespace multihead::cli
