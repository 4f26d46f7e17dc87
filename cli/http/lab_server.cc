#include "cli/http/lab_server.h"

#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace multihead::cli {
namespace {

/// A page on loopback that other pages in the browser cannot use.
class Server {
 public:
  explicit Server(const LabRequests& requests) {
    // One thread: the model has all of them.
    server_.new_task_queue = [] { return new httplib::ThreadPool(1); };
    server_.set_payload_max_length(1 << 20);
    // Not a port that another server listens on, which the library's own options allow.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.set_keep_alive_timeout(1);
    server_.Get("/", [this, &requests](const httplib::Request& request, httplib::Response& response) {
      if (is_ours(request, response)) response.set_content(requests.page(), "text/html; charset=utf-8");
    });
    server_.Post("/run", [this, &requests](const httplib::Request& request, httplib::Response& response) {
      if (!is_ours(request, response)) return;
      // Another site's page may send text, not JSON, without asking for permission.
      if (!request.get_header_value("Content-Type").starts_with("application/json")) {
        response.status = 415;
        return;
      }
      auto [status, answer] = requests.run(request.body);
      response.status = status;
      response.set_content(answer, "application/json");
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
    if (host == "127.0.0.1:" + std::to_string(port_) || host == "localhost:" + std::to_string(port_))
      return true;
    response.status = 403;
    return false;
  }

  httplib::Server server_;
  int port_ = 0;
};

}  // namespace
}  // namespace multihead::cli

extern "C" bool multihead_serve_lab(int64_t port, const multihead::cli::LabRequests& requests) {
  multihead::cli::Server server(requests);
  const int bound = server.bind(port);
  if (bound == 0) return false;
  requests.on_ready(bound);
  server.run_until(requests.should_stop);
  return true;
}
