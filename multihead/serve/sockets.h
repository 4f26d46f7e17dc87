// Sockets behind a loop of events in one thread: a module that is loaded when it is needed, so that nothing else
// starts with its library.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace multihead::serve {

/// The way to a client.
class Socket {
 public:
  virtual ~Socket() = default;
  virtual void send(std::string_view bytes) = 0;
  /// Once everything has been sent, the connection ends.
  virtual void end() = 0;
};

/// A conversation with a client; it ends with the connection.
class Connection {
 public:
  virtual ~Connection() = default;
  /// Takes bytes from the front and returns how many; the others are offered again after the next wake().
  virtual size_t receive(std::string_view bytes) = 0;
  /// Another thread has something to send, perhaps to this client.
  virtual void wake() = 0;
  /// Comes ten times a second.
  virtual void tick() = 0;
  /// The program wants to end.
  virtual void finish() = 0;
  /// The program ends: the last chance to send something.
  virtual void break_off() = 0;
};

struct SocketLoop {
  enum class Phase { serve, finish, stop };

  std::string host;
  int64_t port = 0;     ///< 0: any
  int64_t most = 1024;  ///< connections; further clients wait
  double patience =
      60;  ///< seconds without a byte taken after which a client that is sent something has gone
  int wake_descriptor = 0;  ///< an eventfd
  std::function<std::unique_ptr<Connection>(Socket& socket, const std::string& peer)> open;
  std::function<void(int port)> on_ready;
  /// Asked ten times a second. finish: no new connections, until none is left; stop: breaks off
  /// what is left.
  std::function<Phase()> phase;
};

/// Runs until phase() says stop, or finish and nobody is connected. Returns 0, or why the address cannot be
/// had: an errno, or -1 for a host that is not known.
using RunSockets = int (*)(const SocketLoop& loop);
/// The module and its one function.
inline constexpr const char *kSocketsModule = "multihead_sockets.so", *kRunSockets = "multihead_run_sockets";

}  // namespace multihead::serve
