// The service as dialects see it. Private to serve/.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "multihead/serve/lanes-inl.h"
#include "multihead/serve/service.h"

namespace multihead::serve {

struct ServedModel {
  ServedModel(Model loaded, const ServiceOptions& options);

  Model model;
  int64_t limit = 0;               ///< tokens of a prompt and its continuation, or of an input
  std::string chat_template = {};  ///< of a language model; empty: none
  std::unique_ptr<Lane> lane;
  std::atomic<int64_t> jobs = 0;  ///< that wait or are worked on
  std::atomic<int64_t> prompt_tokens = 0, new_tokens = 0;

  /// Throws ApiError naming the model unless it can do this.
  const Writer& writer() const;
  const embed::SentenceEncoder& encoder() const;
  const embed::TextClassifier& classifier() const;
};

struct Service::Impl {
  Impl(std::vector<Model> loaded, const ServiceOptions& given, std::function<void()> wake_up);
  ~Impl();

  /// Throws ApiError 404.
  ServedModel& find(const std::string& name);
  /// Throw ApiError: 400 for a model of another kind, 429 where too many wait.
  void submit(ServedModel& model, GenerationJob job);
  void submit(ServedModel& model, EmbedJob job);
  void submit(ServedModel& model, ScoreJob job);

  std::atomic<int64_t> active = 0;
  ServiceOptions options;
  std::function<void()> wake;
  std::list<ServedModel> models;
  std::atomic<bool> closed = false;
  std::array<std::atomic<int64_t>, 6> statuses = {};  ///< answers, by the first digit of their status

 private:
  template <class LaneOf, class Job>
  void enqueue(ServedModel& model, Job job);
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> inbox_;
  bool stops_ = false;
  std::thread worker_;
};

/// A request on its way through a dialect.
struct Call {
  Service::Impl& service;
  const HttpRequest& request;
  std::shared_ptr<Reply> reply;

  /// The model that the request's member names. Throws ApiError.
  ServedModel& model_named(const std::string& name) const { return service.find(name); }
};

struct Route {
  const char* method;
  const char* path;  ///< ending in '*': everything that begins so
  const ErrorStyle* errors;
  void (*handle)(const Call& call);  ///< throws ApiError
  bool is_open = false;              ///< needs no key
};
std::span<const Route> routes();

/// "chatcmpl-…".
std::string fresh_id(const char* prefix);
int64_t seconds_now();

}  // namespace multihead::serve
