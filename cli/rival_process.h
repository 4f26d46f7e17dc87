// A child process that measures another implementation, and the conversation with it over pipes.
#pragma once

#include <string>
#include <vector>

#include "multihead/core/json.h"
#include "multihead/core/tensor.h"

namespace multihead::cli {

/// A signal asked us to end.
struct Interrupted {};

struct RivalReply {
  Json message;
  std::vector<Tensor> tensors;  ///< f32, of the shapes in message["outputs"]
};

/// Runs attention_rivals.py; ends with this object, and with this process.
class RivalProcess {
 public:
  /// Throws UnsupportedError if `python` cannot be started or lacks the library.
  RivalProcess(const std::string& python, const std::string& rival, int threads);
  ~RivalProcess();
  RivalProcess(const RivalProcess&) = delete;
  RivalProcess& operator=(const RivalProcess&) = delete;

  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }

  /// Sends a message and the bytes of f32 tensors, waits for the answer. Throws Interrupted,
  /// std::runtime_error if the process died.
  RivalReply ask(const Json& message, const std::vector<Tensor>& tensors = {});

 private:
  void start(const std::string& python, int threads);
  void stop();
  void send(const void* data, size_t bytes);
  void receive(void* data, size_t bytes);
  RivalReply read_reply();
  [[noreturn]] void died();

  std::string name_, version_, buffer_;
  int to_ = -1, from_ = -1, errors_ = -1;
  int pid_ = -1;
};

}  // namespace multihead::cli
