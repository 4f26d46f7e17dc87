// multihead serve
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <memory>
#include <thread>

#include "cli/model_dir.h"
#include "cli/module.h"
#include "cli/streams.h"
#include "multihead/core/files.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/serve/http.h"
#include "multihead/serve/server.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

class Serve : public Verb {
 public:
  Serve()
      : Verb(
            "serve", "answer requests over HTTP: chat, completions, embeddings",
            {{"multihead serve model.gguf --port 8080", "http://127.0.0.1:8080/v1 for OpenAI's clients"},
             {"multihead serve chat=smol.gguf embed=all-MiniLM-L6-v2", "two models, under names of your own"},
             {"multihead serve model --host 0.0.0.0 --api-key-file keys.txt --allow-host box.example.org",
              "for other machines; put TLS in front of it"},
             {"multihead serve reranker --port 8081 --threads 2 --max-queue 64",
              "two threads; more requests get status 429"},
             {"curl http://127.0.0.1:8080/v1/models", "what is served, and by which names"}}) {}

  void declare(Flags& flags) override {
    flags.positionals("MODEL", models_, "model folders or GGUF files, or NAME=PATH");
    flags.text("host", "ADDRESS", host_, "address to listen on");
    flags.integer("port", port_, "port (0: any)", {.most = 65535});
    flags.text("api-key-file", "FILE", key_file_,
               "requests must carry one of these keys, one per line; lines that begin with # are remarks");
    flags.repeated("allow-host", "NAME", service_.hosts,
                   "a host name by which clients call this server, besides localhost and addresses");
    declare_weights(flags, weights_);
    flags.integer("parallel", service_.parallel, "sequences that a language model continues at the same time",
                  {.least = 1, .most = 4096});
    flags.integer("context", service_.context,
                  "tokens of a prompt and its continuation (0: the model's, at most 4096)");
    flags.choice("kv-cache-dtype", cache_dtype_, {"f32", "bf16", "int8"},
                 "dtype of cached keys and values (bf16: half the memory, int8: a quarter; rounded)");
    flags.integer(
        "cache-memory", cache_megabytes_,
        "MB of keys and values of earlier prompts, per model, so that common beginnings are read once",
        {.most = 1 << 24});
    flags.integer("prompt-chunk", service_.prompt_chunk,
                  "tokens of prompts that are read between two steps of the others", {.least = 1});
    flags.number("timeout", service_.timeout, "seconds for a request", {.open = true});
    flags.integer("max-queue", service_.max_queue, "requests of a model that may wait; more get status 429",
                  {.least = 1, .most = 1 << 30});
    flags.integer("max-body", body_megabytes_, "MB of a request", {.least = 1, .most = 256});
    flags.integer("max-inputs", service_.max_inputs, "texts of a request", {.least = 1});
    flags.integer("max-tokens", service_.max_tokens, "new tokens of an answer (0: what the context holds)");
    flags.integer("max-connections", connections_, "open connections; further clients wait",
                  {.least = 1, .most = 1 << 20});
  }

  int run(const CommonOptions& common) override {
    const serve::RunSockets sockets = load_sockets("serve");
    if (models_.empty()) throw UsageError("MODEL is required; see multihead serve --help");
    read_options();
    serve::ServerOptions options = {.host = host_, .port = port_, .connections = connections_};
    options.session.limits.body = static_cast<size_t>(body_megabytes_) << 20;
    if (!common.quiet) options.session.log = [&](const serve::AccessLine& line) { log(common, line); };
    std::vector<serve::Model> models = load(common);
    const train::StopSignals signals;
    const auto server = start(sockets, std::move(models), options);
    report(common, server->port());
    // A handler of signals may not wake a thread that waits; it can only set what is looked at.
    while (train::StopSignals::received() == 0 && !server->has_ended())
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    constexpr double kGrace = 10;
    server->stop(kGrace);
    return kDone;
  }

 private:
  void read_options() {
    if (cache_dtype_ == "bf16") service_.cache_dtype = Dtype::bf16;
    if (cache_dtype_ == "int8") service_.cache_dtype = nn::kInt8Cache;
    service_.cache_bytes = static_cast<size_t>(cache_megabytes_) << 20;
    try {
      serve::check(service_);
    } catch (const ValueError& error) {
      throw UsageError(error.what());
    }
    if (key_file_.empty()) return;
    const std::string content =
        reading([&] { return text::read_text(key_file_, {.require_utf8 = false, .in_lines = true}); });
    text::each_line(content, [&](std::string_view line, int64_t number) {
      const std::string_view key = trimmed(line, " \t\r");  // as the values of headers are
      if (key.starts_with('#')) return;
      if (serve::has_controls(key)) {
        throw InputError(concat(printable(key_file_), ": line ", number,
                                ": a key with control characters, which no header can carry"));
      }
      if (!key.empty()) service_.api_keys.emplace_back(key);
    });
    if (service_.api_keys.empty()) throw InputError(concat(printable(key_file_), ": holds no key"));
  }

  std::unique_ptr<serve::Server> start(serve::RunSockets sockets, std::vector<serve::Model> models,
                                       const serve::ServerOptions& options) const {
    try {
      return std::make_unique<serve::Server>(sockets, std::move(models), service_, options);
    } catch (const IoError& error) {
      throw InputError(error.what());
    }
  }

  std::vector<serve::Model> load(const CommonOptions& common) const {
    std::optional<nn::WeightDtype> weights;
    if (weights_ != "stored") weights = kernels::parse_weight_dtype(weights_);
    std::vector<serve::Model> loaded;
    for (const std::string& word : models_) {
      const size_t equals = word.find('=');
      const std::string path = equals == std::string::npos ? word : word.substr(equals + 1);
      std::filesystem::path last = std::filesystem::path(path).lexically_normal();
      if (!last.has_filename()) last = last.parent_path();
      const std::string stem = last.extension() == ".gguf" ? last.stem().string() : last.filename().string();
      const std::string name = equals == std::string::npos ? stem : word.substr(0, equals);
      if (name.empty()) throw UsageError(concat("MODEL must be PATH or NAME=PATH, got ", quote(word)));
      loaded.push_back(reading([&] { return serve::load_model(valid_utf8(name), path, weights); }));
      if (!common.quiet && !common.json)
        std::fputs(concat(printable(name), ": ", loaded.back().kind(), "\n").c_str(), stderr);
    }
    return loaded;
  }

  void report(const CommonOptions& common, int port) const {
    const std::string host = host_.find(':') == std::string::npos ? host_ : "[" + host_ + "]";
    const std::string address = fmt::format("http://{}:{}/", host, port);
    if (common.json) {
      put_json(Json::object({{"address", valid_utf8(address)}}), -1);
    } else {
      put_output(concat(printable(address), "   (Ctrl-C ends)\n"));
    }
    flush_output();
  }

  static void log(const CommonOptions& common, const serve::AccessLine& line) {
    const std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    const double milliseconds = std::round(line.seconds * 1e4) / 10;
    if (common.json) {
      Json json = Json::object({{"time", time},
                                {"peer", line.peer},
                                {"method", valid_utf8(line.method)},
                                {"path", valid_utf8(line.path)},
                                {"status", line.status},
                                {"bytes", line.bytes},
                                {"ms", milliseconds},
                                {"model", line.facts.model},
                                {"prompt_tokens", line.facts.prompt_tokens},
                                {"new_tokens", line.facts.new_tokens},
                                {"complete", line.broken_off.empty()}});
      std::fputs((json.dump() + "\n").c_str(), stderr);
      return;
    }
    std::string text = fmt::format("{} {} {} {} {} {} bytes {} ms", time, line.peer, printable(line.method),
                                   printable(line.path), line.status, line.bytes, milliseconds);
    if (!line.facts.model.empty()) {
      text += fmt::format(" {} {} + {} tokens", printable(line.facts.model), line.facts.prompt_tokens,
                          line.facts.new_tokens);
    }
    if (!line.broken_off.empty()) text += concat(" (", line.broken_off, ")");
    std::fputs((text + "\n").c_str(), stderr);
  }

  std::vector<std::string> models_;
  std::string host_ = "127.0.0.1", key_file_, weights_ = "stored", cache_dtype_ = "f32";
  int64_t port_ = 8080, cache_megabytes_ = 512, body_megabytes_ = 8, connections_ = 1024;
  serve::ServiceOptions service_;
};

}  // namespace

std::unique_ptr<Verb> make_serve() { return std::make_unique<Serve>(); }

}  // namespace multihead::cli
