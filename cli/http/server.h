// Verbs that answer HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cli/http/sockets.h"
#include "multihead/serve/session.h"

namespace multihead::cli {

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
  serve::HttpSession::Handler handle;
  serve::SessionOptions session = {};
  std::function<void(int port)> on_ready;
  std::function<SocketLoop::Phase()> phase;
};

/// The function of the module. Throws UsageError: `verb` needs it.
RunSockets load_sockets(const std::string& verb);
/// Answers until phase() says that it is over. Throws InputError if the address cannot be had.
void run_http(RunSockets run, const HttpServer& server, const WakeDescriptor& wake);

}  // namespace multihead::cli
