// multihead lab
#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "cli/look_flags.h"
#include "cli/streams.h"
#include "multihead/train/signals.h"

#ifdef MULTIHEAD_HAS_HTTPLIB
#include <httplib.h>
#endif

namespace multihead::cli {
namespace {

#ifdef MULTIHEAD_HAS_HTTPLIB

// Answers requests of one page: its text, the heads that are off, the edges that are cut.
class Laboratory {
 public:
  Laboratory(std::string folder, LoadedModel loaded, Selection selection)
      : folder_(std::move(folder)), loaded_(std::move(loaded)), selection_(std::move(selection)) {}

  look::AttentionPage page(const std::string& text) const {
    look::AttentionPage page;
    page.title = page_title(folder_, text);
    page.runs.push_back(run(text, {}));
    page.bits = look::bits_for(page.runs);
    return page;
  }

  // The changed model beside the one as it is.
  Json answer(const std::string& body) const {
    const Json asked = Json::parse(body, "request");
    const std::string text = asked.at("text").as_string();
    look::Look changes;
    for (const Json& name : asked.at("off").items()) changes.off.push_back(head_of(name.as_string()));
    for (const Json& edge : asked.at("cut").items()) {
      changes.cut.push_back(
          {edge.at(0).as_int(), edge.at(1).as_int(), edge.at(2).as_int(), edge.at(3).as_int()});
    }
    look::AttentionPage page;
    const bool changed = !changes.off.empty() || !changes.cut.empty();
    if (changed) page.runs.push_back(run(text, changes));
    page.runs.push_back(run(text, {}));
    if (changed) page.runs[0].title = "changed", page.runs[1].title = "as it is";
    page.bits = look::bits_for(page.runs);
    return to_json(page);
  }

 private:
  look::AttentionRun run(const std::string& text, const look::Look& changes) const {
    const models::LanguageModelConfig& c = loaded_.model.config();
    look::Look wanted = selection_.of(c.num_layers, c.num_heads, 0);
    wanted.off = changes.off, wanted.cut = changes.cut;
    constexpr double kASecond = 5e10;
    look::AttentionRun result = look_at(loaded_, text, wanted, kASecond);
    check_numbers(folder_, result);
    return result;
  }

  static std::array<int64_t, 2> head_of(const std::string& name) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos) throw InputError(concat("a head is LAYER.HEAD, got ", quote(name)));
    return {train::parse_integer("layer", name.substr(0, dot)),
            train::parse_integer("head", name.substr(dot + 1))};
  }

  std::string folder_;
  LoadedModel loaded_;
  Selection selection_;
};

/// A page on loopback that other pages in the browser cannot use.
class Server {
 public:
  Server(const Laboratory& laboratory, const std::string& text) {
    // One thread: the model has all of them.
    server_.new_task_queue = [] { return new httplib::ThreadPool(1); };
    server_.set_payload_max_length(1 << 20);
    // Not a port that another server listens on, which the library's own options allow.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.set_keep_alive_timeout(1);
    server_.Get("/", [this, &laboratory, text](const httplib::Request& request, httplib::Response& response) {
      if (!is_ours(request, response)) return;
      look::AttentionPage page = laboratory.page(text);
      page.lab = text;
      response.set_content(to_html(page), "text/html; charset=utf-8");
    });
    server_.Post("/run", [this, &laboratory](const httplib::Request& request, httplib::Response& response) {
      if (!is_ours(request, response)) return;
      // Another site's page may send text, not JSON, without being asked for leave.
      if (!request.get_header_value("Content-Type").starts_with("application/json")) {
        response.status = 415;
        return;
      }
      Json answer;
      try {
        answer = laboratory.answer(request.body);
      } catch (const std::exception& error) {
        response.status = 400;
        answer = Json::object({{"error", valid_utf8(error.what())}});
      }
      response.set_content(answer.dump(), "application/json");
    });
  }

  // The port that was bound; 0: none.
  int bind(int64_t port) {
    if (port == 0) return port_ = std::max(0, server_.bind_to_any_port("127.0.0.1"));
    return port_ = server_.bind_to_port("127.0.0.1", static_cast<int>(port)) ? static_cast<int>(port) : 0;
  }

  void run_until(const std::function<bool()>& should_stop) {
    std::atomic<bool> ended = false;
    std::thread thread([&] {
      server_.listen_after_bind();
      ended = true;
    });
    while (!ended && !should_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server_.stop();
    thread.join();
  }

 private:
  // A name that points here would let its pages read ours (DNS rebinding).
  bool is_ours(const httplib::Request& request, httplib::Response& response) const {
    const std::string host = request.get_header_value("Host");
    if (host == concat("127.0.0.1:", port_) || host == concat("localhost:", port_)) return true;
    response.status = 403;
    return false;
  }

  httplib::Server server_;
  int port_ = 0;
};

#endif

class Lab : public Verb {
 public:
  Lab()
      : Verb("lab", "try changes of a language model in the browser: other texts, heads off, edges cut",
             {{"multihead lab model", "prints an address on this machine; Ctrl-C ends it"},
              {"multihead lab model --text \"It was a fine\" --port 8000",
               "a text to begin with, a fixed port"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("text", "TEXT", text_, "the text to begin with");
    flags.integer("port", port_, "port on 127.0.0.1 (0: any)", {.most = 65535});
    selection_.declare(flags, false);
  }

  int run(const CommonOptions& common) override {
#ifdef MULTIHEAD_HAS_HTTPLIB
    if (reading([&] { return models::is_seq2seq_folder(folder_); }))
      throw UsageError("a laboratory is for language models; for translators there is multihead attend");
    LoadedModel loaded = load_model_dir(folder_);
    if (text_.empty()) text_ = some_text(loaded.tokenizer);
    const Laboratory laboratory(folder_, std::move(loaded), selection_);
    laboratory.page(text_);  // refuses what it cannot show before there is an address
    Server server(laboratory, text_);
    const int port = server.bind(port_);
    if (port == 0)
      throw InputError(concat("port ", port_, " on 127.0.0.1 is taken; --port 0 takes a free one"));
    const std::string address = fmt::format("http://127.0.0.1:{}/", port);
    if (common.json) {
      put_json(Json::object({{ "address", address }}), -1);
    } else {
      put_output(concat(address, "   (Ctrl-C ends)\n"));
    }
    flush_output();
    const train::StopSignals signals;
    server.run_until([] { return train::StopSignals::received() != 0; });
    return kDone;
#else
    (void)common;
    throw UsageError(
        "this program was built without cpp-httplib, which lab needs (Debian: libcpp-httplib-dev)");
#endif
  }

 private:
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
