#include "multihead/serve/server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/quiet_thread-inl.h"

namespace multihead::serve {
namespace {

// A session on a socket of the module.
class SocketSession : public Connection {
 public:
  SocketSession(const HttpServer& server, Socket& socket, const std::string& peer)
      : session_(
            server.handle, server.session, peer, [&socket](std::string_view bytes) { socket.send(bytes); },
            [&socket] { socket.end(); }) {}
  size_t receive(std::string_view bytes) override { return session_.receive(bytes); }
  void wake() override { session_.wake(); }
  void tick() override { session_.tick(HttpSession::Clock::now()); }
  void finish() override { session_.finish(); }
  void break_off() override { session_.break_off(); }

 private:
  HttpSession session_;
};

// Clients may call a server by the name that it listens on.
ServiceOptions with_host(ServiceOptions options, const std::string& host) {
  options.hosts.push_back(host);
  return options;
}

}  // namespace

WakeDescriptor::WakeDescriptor() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw IoError(concat("Server: eventfd: ", std::generic_category().message(errno)));
}
WakeDescriptor::~WakeDescriptor() { close(descriptor_); }

void WakeDescriptor::raise() const {
  const uint64_t one = 1;
  while (write(descriptor_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void run_http(RunSockets run, const HttpServer& server, const WakeDescriptor& wake) {
  const auto open = [&](Socket& socket, const std::string& peer) {
    return std::make_unique<SocketSession>(server, socket, peer);
  };
  const int problem = run({.host = server.host,
                           .port = server.port,
                           .most = server.connections,
                           .wake_descriptor = wake.get(),
                           .open = open,
                           .on_ready = server.on_ready,
                           .phase = server.phase});
  if (problem == 0) return;
  const std::string reason =
      problem == -1 ? "there is no such host" : std::generic_category().message(problem);
  throw IoError(problem == EADDRINUSE ? concat("port ", server.port, " on ", printable(server.host),
                                               " is in use; port 0 picks a free one")
                                      : concat("cannot listen on ", printable(server.host), " port ",
                                               server.port, ": ", reason));
}

Server::Server(RunSockets run, std::vector<Model> models, const ServiceOptions& service,
               const ServerOptions& options)
    : service_(std::move(models), with_host(service, options.host), [this] { wake_.raise(); }) {
  HttpServer http = {.host = options.host, .port = options.port, .connections = options.connections};
  http.handle = [this](const HttpRequest& request) { return service_.handle(request); };
  http.session = options.session;
  http.session.log = [this, log = options.session.log](const AccessLine& line) {
    if (line.status != 0) service_.count(line.status);
    if (log) log(line);
  };
  http.phase = [this] { return phase(); };
  thread_ = quiet_thread([this, run, http = std::move(http)]() mutable { answer(run, std::move(http)); });
  try {
    port_ = ready_.get_future().get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

Server::~Server() {
  end_ = Clock::time_point::min();
  if (thread_.joinable()) thread_.join();
}

void Server::answer(RunSockets run, HttpServer http) {
  bool is_ready = false;
  http.on_ready = [&](int port) {
    is_ready = true;
    ready_.set_value(port);
  };
  try {
    run_http(run, http, wake_);
  } catch (...) {
    error_ = std::current_exception();
  }
  if (!is_ready) ready_.set_exception(error_);
  has_ended_ = true;
}

// After stop() answers that have begun get some seconds more.
SocketLoop::Phase Server::phase() const {
  const Clock::time_point end = end_;
  if (end == Clock::time_point::max()) return SocketLoop::Phase::serve;
  return Clock::now() < end ? SocketLoop::Phase::finish : SocketLoop::Phase::stop;
}

void Server::stop(double seconds) {
  constexpr double kLongest = 1e6;
  MH_CHECK(seconds >= 0, ValueError, "Server.stop: seconds must not be negative, got ", seconds);
  service_.close();
  const std::chrono::duration<double> grace(std::min(seconds, kLongest));
  end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace multihead::serve
