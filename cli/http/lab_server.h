// The part of `lab` that speaks HTTP: a module that is loaded when it is needed, for its library brings
// others (TLS, compression) whose time and memory no other verb should pay.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace multihead::cli {

struct LabRequests {
  std::function<std::string()> page;
  /// The status and the JSON that answer a request's JSON.
  std::function<std::pair<int, std::string>(const std::string& body)> run;
  std::function<void(int port)> on_ready;
  std::function<bool()> should_stop;
};

/// Serves on 127.0.0.1 until should_stop(); port 0: any. False: the port is taken.
using ServeLab = bool (*)(int64_t port, const LabRequests& requests);
/// The module and its one function.
inline constexpr const char *kLabModule = "multihead_lab.so", *kServeLab = "multihead_serve_lab";

}  // namespace multihead::cli
