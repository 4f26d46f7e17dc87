// multihead lab
#include <fmt/format.h>

#include "cli/module.h"
#include "cli/streams.h"
#include "cli/verbs/look_flags.h"
#include "multihead/look/laboratory.h"
#include "multihead/serve/error.h"
#include "multihead/serve/server.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

// Answers requests of one page: its text, the heads that are off, the edges that are cut.
class Laboratory {
 public:
  Laboratory(std::string folder, LoadedModel loaded, Selection selection)
      : folder_(std::move(folder)), loaded_(std::move(loaded)), selection_(std::move(selection)) {}

  std::string page(const std::string& text) const {
    look::AttentionPage page;
    page.title = page_title(folder_, text);
    page.runs.push_back(run(text, {}));
    page.bits = look::bits_for(page.runs);
    page.lab = text;
    return look::to_html(page);
  }

  std::pair<int, std::string> answer(const std::string& body) const {
    try {
      const auto run_with = [&](const std::string& text, const look::Look& changes) {
        return run(text, changes);
      };
      return {200, look::answer(body, run_with).dump()};
    } catch (const std::exception& error) {
      return {400, Json::object({{"error", valid_utf8(error.what())}}).dump()};
    }
  }

 private:
  look::AttentionRun run(const std::string& text, const look::Look& changes) const {
    constexpr double kASecond = 5e10;
    look::AttentionRun result = look_at(loaded_, text, selection_, kASecond, changes);
    check_numbers(folder_, result);
    return result;
  }

  std::string folder_;
  LoadedModel loaded_;
  Selection selection_;
};

class Lab : public Verb {
 public:
  Lab()
      : Verb(
            "lab", "explore a language model in the browser: edit the text, switch off heads, cut edges",
            {{"multihead lab model", "prints a local address; Ctrl-C stops it"},
             {"multihead lab model --text \"It was a fine\" --port 8000", "an initial text, a fixed port"}}) {
  }

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("text", "TEXT", text_, "initial text");
    flags.integer("port", port_, "port on 127.0.0.1 (0: any)", {.most = 65535});
    selection_.declare(flags, false);
  }

  int run(const CommonOptions& common) override {
    const serve::RunSockets sockets = load_sockets("lab");
    if (reading([&] { return models::is_seq2seq_folder(folder_); }))
      throw UsageError("lab is for language models; for translators use multihead attend");
    LoadedModel loaded = load_model_dir(folder_);
    if (text_.empty()) text_ = some_text(loaded.tokenizer);
    const Laboratory laboratory(folder_, std::move(loaded), selection_);
    laboratory.page(text_);  // refuses what it cannot show before there is an address
    const train::StopSignals signals;
    const serve::WakeDescriptor wake;
    serve::HttpServer server = {.port = port_, .connections = 256};
    int bound = 0;
    server.handle = [&](const serve::HttpRequest& request) { return reply(laboratory, request, bound); };
    server.session = {.limits = {.body = size_t{1} << 20}, .body_patience = 10, .idle_patience = 10};
    server.on_ready = [&](int port) { report(common, bound = port); };
    server.phase = [] {
      return train::StopSignals::received() != 0 ? serve::SocketLoop::Phase::stop
                                                 : serve::SocketLoop::Phase::serve;
    };
    reading([&] { serve::run_http(sockets, server, wake); });
    return kDone;
  }

 private:
  // A page on loopback that other pages in the browser cannot use: not under a name that points here (DNS
  // rebinding), and not with a form, which may send text but not JSON without asking for permission.
  std::shared_ptr<serve::Reply> reply(const Laboratory& laboratory, const serve::HttpRequest& request,
                                      int port) const {
    auto reply = std::make_shared<serve::Reply>(nullptr, serve::Reply::Clock::time_point::max());
    const std::string &host = request.header("host"), &origin = request.header("origin");
    const bool is_own = host == concat("127.0.0.1:", port) || host == concat("localhost:", port);
    if (!is_own || (!origin.empty() && origin != "http://" + host)) {
      reply->fail(serve::ApiError(403, concat("this address is http://127.0.0.1:", port, "/")));
    } else if ((request.method == "GET" || request.method == "HEAD") && request.path == "/") {
      reply->answer(200, "text/html; charset=utf-8",
                    laboratory.page(text_));  // made once before: it does not fail
    } else if (request.method != "POST" || request.path != "/run") {
      reply->fail(serve::ApiError(404, "there are GET / and POST /run"));
    } else if (!request.header("content-type").starts_with("application/json")) {
      reply->fail(
          serve::ApiError(415, "the request's body must be JSON, with Content-Type: application/json"));
    } else {
      auto [status, body] = laboratory.answer(request.body);
      reply->answer(status, "application/json", std::move(body));
    }
    return reply;
  }

  static void report(const CommonOptions& common, int port) {
    const std::string address = fmt::format("http://127.0.0.1:{}/", port);
    if (common.json) {
      put_json(Json::object({{"address", address}}), -1);
    } else {
      put_output(concat(address, "   (Ctrl-C ends)\n"));
    }
    flush_output();
  }

  // A tokenizer of characters may lack those of a word.
  static std::string some_text(const text::Tokenizer& tokenizer) {
    try {
      tokenizer.encode("The");
      return "The";
    } catch (const ValueError&) {
      return tokenizer.decode(std::vector<int32_t>{0, 1, 2});
    }
  }

  std::string folder_, text_;
  Selection selection_;
  int64_t port_ = 0;
};

}  // namespace

std::unique_ptr<Verb> make_lab() { return std::make_unique<Lab>(); }

}  // namespace multihead::cli
