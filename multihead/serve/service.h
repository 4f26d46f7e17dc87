// Models behind HTTP requests, without sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "multihead/core/dtype.h"
#include "multihead/serve/http.h"
#include "multihead/serve/model.h"
#include "multihead/serve/reply.h"

namespace multihead::serve {

struct ServiceOptions {
  int64_t parallel = 8;  ///< sequences that a language model continues at the same time
  int64_t context = 0;   ///< tokens of a prompt and its continuation; 0: the model's, at most 4096
  std::optional<Dtype> cache_dtype = {};   ///< of keys and values
  size_t cache_bytes = size_t{512} << 20;  ///< of prompts that are kept for the next ones
  int64_t prompt_chunk = 512;  ///< tokens of prompts that are read between two steps of the others
  int64_t max_queue = 256;     ///< in [1, 2^30]: requests of a model that wait; more get 429
  int64_t max_inputs = 2048;   ///< texts of a request
  int64_t max_tokens = 0;      ///< new tokens of a choice; 0: what the context holds
  double timeout = 600;        ///< seconds for a request
  std::vector<std::string> api_keys = {};  ///< if there are any, requests must carry one
  std::vector<std::string> hosts = {};     ///< names by which clients may call the server, besides addresses
};

/// Throws ValueError for a number out of its range, a host with more than a name, and a key that no request can carry.
void check(const ServiceOptions& options);

/// A request's answer has the same bytes whatever else is asked meanwhile, but for ids and times.
class Service {
 public:
  /// The first model is the default where a dialect needs none. `wake` is called, in any thread, when a reply
  /// has something to take. Throws ValueError (names, options).
  Service(std::vector<Model> models, const ServiceOptions& options, std::function<void()> wake = {});
  /// Ends all work.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Begins to answer; never throws because of the request.
  std::shared_ptr<Reply> handle(const HttpRequest& request);
  /// From now on requests get 503.
  void close();
  /// Counts an answer that was sent, for /metrics.
  void count(int status);
  /// Requests that are being answered.
  int64_t active() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace multihead::serve
