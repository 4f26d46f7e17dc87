#include "cli/http/server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cli/module.h"
#include "cli/verb.h"
#include "multihead/core/text/utf8.h"

namespace multihead::cli {
namespace {

// A session of the library on a socket of the module.
class Session : public Connection {
 public:
  Session(const HttpServer& server, Socket& socket, const std::string& peer)
      : session_(
            server.handle, server.session, peer, [&socket](std::string_view bytes) { socket.send(bytes); },
            [&socket] { socket.end(); }) {}
  size_t receive(std::string_view bytes) override { return session_.receive(bytes); }
  void wake() override { session_.wake(); }
  void tick() override { session_.tick(serve::HttpSession::Clock::now()); }
  void finish() override { session_.finish(); }

 private:
  serve::HttpSession session_;
};

}  // namespace

WakeDescriptor::WakeDescriptor() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}
WakeDescriptor::~WakeDescriptor() { close(descriptor_); }

void WakeDescriptor::raise() const {
  const uint64_t one = 1;
  while (write(descriptor_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

RunSockets load_sockets(const std::string& verb) {
  return module_function<RunSockets>(multihead_run_sockets, kSocketsModule, kRunSockets, verb + " needs",
                                     "it is built where libevent is (Debian: libevent-dev)");
}

void run_http(RunSockets run, const HttpServer& server, const WakeDescriptor& wake) {
  const auto open = [&](Socket& socket, const std::string& peer) {
    return std::make_unique<Session>(server, socket, peer);
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
  throw InputError(problem == EADDRINUSE ? concat("port ", server.port, " on ", printable(server.host),
                                                  " is in use; --port 0 picks a free one")
                                         : concat("cannot listen on ", printable(server.host), " port ",
                                                  server.port, ": ", reason));
}

}  // namespace multihead::cli
