// HTTP on a port, by sockets that a module brings.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "multihead/serve/service.h"
#include "multihead/serve/session.h"
#include "multihead/serve/sockets.h"

namespace multihead::serve {

/// A number that other threads raise to wake the one that sends.
class WakeDescriptor {
 public:
  WakeDescriptor();
  ~WakeDescriptor();
  WakeDescriptor(const WakeDescriptor&) = delete;
  WakeDescriptor& operator=(const WakeDescriptor&) = delete;

  void raise() const;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

struct HttpServer {
  std::string host = "127.0.0.1";
  int64_t port = 0;  ///< 0: any
  int64_t connections = 1024;
  HttpSession::Handler handle = {};
  SessionOptions session = {};
  std::function<void(int port)> on_ready = {};
  std::function<SocketLoop::Phase()> phase = {};
};

/// Answers until phase() says that it is over. Throws IoError if the address cannot be had.
void run_http(RunSockets run, const HttpServer& server, const WakeDescriptor& wake);

struct ServerOptions {
  std::string host = "127.0.0.1";
  int64_t port = 0;            ///< 0: any
  int64_t connections = 1024;  ///< open ones; further clients wait
  SessionOptions session = {};
};

/// A Service that answers on a port, in a thread of its own.
class Server {
 public:
  /// Returns when the port is open. Throws IoError if the address cannot be had, ValueError as Service does.
  Server(RunSockets run, std::vector<Model> models, const ServiceOptions& service,
         const ServerOptions& options);
  /// Stops at once.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  /// Accepts nothing more; answers that have begun get so many seconds, then they break off with an error. Throws
  /// what ended the server before.
  void stop(double seconds);
  /// Whether it has stopped, or failed.
  bool has_ended() const { return has_ended_; }

 private:
  using Clock = std::chrono::steady_clock;
  void answer(RunSockets run, HttpServer http);
  SocketLoop::Phase phase() const;

  WakeDescriptor wake_;
  Service service_;
  std::promise<int> ready_;
  std::atomic<Clock::time_point> end_ = Clock::time_point::max();
  std::atomic<bool> has_ended_ = false;
  std::exception_ptr error_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace multihead::serve
