#include "multihead/serve/service.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/quiet_thread-inl.h"
#include "multihead/serve/dialects/dialects-inl.h"
#include "multihead/serve/service-inl.h"

namespace multihead::serve {
namespace {

constexpr int64_t kDefaultContext = 4096;

// The longest context that both the model and the option allow.
int64_t context_of(const Model& model, int64_t asked) {
  if (const auto* encoder = std::get_if<embed::SentenceEncoder>(&model.any)) return encoder->max_length();
  if (const auto* classifier = std::get_if<embed::TextClassifier>(&model.any))
    return classifier->max_length();
  const models::LanguageModel& writer = std::get<Writer>(model.any).model;
  MH_CHECK(asked <= writer.longest(), ValueError, "context must be at most ", writer.longest(),
           " for the model ", model.name, ", got ", asked);
  return asked > 0 ? asked : std::min({writer.longest(), writer.config().context, kDefaultContext});
}

std::unique_ptr<Lane> lane_of(const Model& model, int64_t limit, const ServiceOptions& options) {
  if (const auto* encoder = std::get_if<embed::SentenceEncoder>(&model.any))
    return std::make_unique<TasksLane>(*encoder);
  if (const auto* classifier = std::get_if<embed::TextClassifier>(&model.any))
    return std::make_unique<ScoreLane>(*classifier);
  GeneratorOptions own;
  own.max_batch = options.parallel;
  own.capacity = limit;
  own.cache_dtype = options.cache_dtype;
  own.cached_prompts = options.cache_bytes > 0 ? 64 : 0;
  own.prompt_cache_bytes = options.cache_bytes;
  own.prompt_chunk = options.prompt_chunk;
  return std::make_unique<LanguageLane>(std::get<Writer>(model.any), own, limit);
}

// Whether both texts are equal, in a time that does not tell where they differ.
bool is_same_secret(std::string_view a, std::string_view b) {
  unsigned differences = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    differences |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return differences == 0;
}

void check_key(const HttpRequest& request, const ServiceOptions& options) {
  if (options.api_keys.empty()) return;
  const std::string& given = request.header("authorization");
  const bool is_bearer = in_lower_case(given.substr(0, 7)) == "bearer ";
  const std::string_view key = is_bearer ? std::string_view(given).substr(7) : "";
  bool fits = false;
  for (const std::string& known : options.api_keys) fits |= is_same_secret(key, known);
  if (fits) return;
  throw ApiError(
      401, given.empty() ? "the header \"Authorization: Bearer KEY\" is missing" : "the API key is wrong", "",
      "invalid_api_key");
}

// In lower case, without the dot that may end it.
std::string plain_name(std::string_view host) {
  std::string name(host.substr(0, host.size() - (host.ends_with('.') ? 1 : 0)));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

// Without its port.
std::string host_name(std::string_view host) {
  return plain_name(host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.find(':')));
}

bool is_address(std::string_view name) {
  return name.starts_with('[') ||
         (!name.empty() && name.find_first_not_of("0123456789.") == std::string_view::npos);
}

bool is_loopback(std::string_view name) {
  return name == "[::1]" || (is_address(name) && name.starts_with("127."));
}

// A page that the browser believes to come from a name can read what that name answers, even if the name points here
// (DNS rebinding); an address cannot be turned so. Pages come from this machine or from the address that is called.
void check_caller(const HttpRequest& request, const ServiceOptions& options) {
  const auto is_known = [&](std::string_view name) {
    return name == "localhost" || is_loopback(name) ||
           (!name.empty() && std::ranges::find(options.hosts, name, plain_name) != options.hosts.end());
  };
  const std::string& host = request.header("host");
  const std::string called = host_name(host);
  if (!host.empty() && !is_known(called) && !is_address(called)) {
    throw ApiError(403, concat("this server is not called ", quote(called), "; --allow-host names it so"));
  }
  const std::string& origin = request.header("origin");
  const size_t scheme = origin.find("://");
  const std::string caller =
      scheme == std::string::npos ? "" : host_name(std::string_view(origin).substr(scheme + 3));
  if (!origin.empty() && !is_known(caller) && (caller != called || !is_address(caller)))
    throw ApiError(403, concat("pages of ", quote(origin), " may not use this server"));
}

bool fits_path(const Route& route, std::string_view path) {
  const std::string_view own = route.path;
  if (!own.ends_with('*')) return own == path;
  return path.size() >= own.size() && path.starts_with(own.substr(0, own.size() - 1));
}

// HEAD is a GET, of whose answer the session leaves out the body.
bool fits_method(const Route& route, std::string_view method) {
  return method == route.method || (method == "HEAD" && std::string_view(route.method) == "GET");
}

void dispatch(const Call& call) {
  const HttpRequest& request = call.request;
  const Route* found = nullptr;
  Enumeration methods;
  for (const Route& route : routes()) {
    if (!fits_path(route, request.path)) continue;
    if (!found) call.reply->set_errors(*route.errors);
    if (fits_method(route, request.method)) found = &route;
    methods.add(route.method);
    if (fits_method(route, "HEAD")) methods.add("HEAD");
  }
  if (methods.empty() && request.path.starts_with("/api/")) call.reply->set_errors(kOllamaErrors);
  check_caller(request, call.service.options);
  if (found == nullptr || !found->is_open) check_key(request, call.service.options);
  if (methods.empty())
    throw ApiError(404, concat("there is nothing at ", quote(request.path)), "", "unknown_path");
  if (found == nullptr) {
    throw ApiError(405, concat(quote(request.path), " takes ", methods, ", got ", quote(request.method)))
        .allowing(methods.text());
  }
  if (call.service.closed) throw ApiError(503, "the server is shutting down");
  found->handle(call);
}

// Without brackets, as an address to listen at is given.
bool is_ipv6(std::string_view host) {
  return std::ranges::count(host, ':') > 1 &&
         host.substr(0, host.find('%')).find_first_not_of("0123456789abcdefABCDEF:.") ==
             std::string_view::npos;
}

}  // namespace

void check(const ServiceOptions& options) {
  MH_CHECK(options.context >= 0, ValueError, "Service: context must not be negative, got ", options.context);
  constexpr int64_t kMostWaiting = int64_t{1} << 30;
  MH_CHECK(options.max_queue > 0 && options.max_queue <= kMostWaiting, ValueError,
           "Service: max_queue must be in [1, ", kMostWaiting, "], got ", options.max_queue);
  for (const std::string& host : options.hosts) {
    const bool is_plain = host.starts_with('[') || is_ipv6(host) || host.find(':') == std::string::npos;
    MH_CHECK(is_plain && host.find_first_of("/* \t") == std::string::npos, ValueError,
             "Service: an allowed host must be a name without port, path, blanks or *, got ", quote(host));
  }
  // The values of headers have no blanks around them.
  for (const std::string& key : options.api_keys) {
    MH_CHECK(!key.empty() && trimmed(key, " \t") == key && !has_controls(key), ValueError,
             "Service: an API key must not be empty, have blanks around it or hold control characters");
  }
}

ServedModel::ServedModel(Model loaded, const ServiceOptions& options)
    : model(std::move(loaded)),
      limit(context_of(model, options.context)),
      lane(lane_of(model, limit, options)) {
  if (const auto* own = std::get_if<Writer>(&model.any)) chat_template = own->tokenizer.chat_template();
}

const Writer& ServedModel::writer() const {
  if (const auto* own = std::get_if<Writer>(&model.any)) return *own;
  throw ApiError(400, concat("the model ", quote(model.name), " (", model.kind(), ") does not write texts"),
                 "model");
}

const embed::SentenceEncoder& ServedModel::encoder() const {
  if (const auto* own = std::get_if<embed::SentenceEncoder>(&model.any)) return *own;
  throw ApiError(400, concat("the model ", quote(model.name), " (", model.kind(), ") does not embed texts"),
                 "model");
}

const embed::TextClassifier& ServedModel::classifier() const {
  if (const auto* own = std::get_if<embed::TextClassifier>(&model.any)) return *own;
  throw ApiError(400, concat("the model ", quote(model.name), " (", model.kind(), ") does not score texts"),
                 "model");
}

Service::Impl::Impl(std::vector<Model> loaded, const ServiceOptions& given, std::function<void()> wake_up)
    : options(given), wake(std::move(wake_up)) {
  MH_CHECK(!loaded.empty(), ValueError, "Service: there is no model");
  check(given);
  for (Model& model : loaded) {
    for (const ServedModel& other : models) {
      MH_CHECK(other.model.name != model.name, ValueError, "Service: two models are called ",
               quote(model.name), "; give one another name with NAME=PATH");
    }
    models.emplace_back(std::move(model), options);
  }
  worker_ = quiet_thread([this] { work(); });
}

Service::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

ServedModel& Service::Impl::find(const std::string& name) {
  Enumeration known;
  for (ServedModel& model : models) {
    if (model.model.name == name) return model;
    known.add(model.model.name);
  }
  throw ApiError(404, concat("there is no model ", quote(name), "; there is ", known), "model",
                 "model_not_found");
}

template <class LaneOf, class Job>
void Service::Impl::enqueue(ServedModel& model, Job job) {
  auto& lane = static_cast<LaneOf&>(*model.lane);
  const int64_t most = options.max_queue + (std::is_same_v<LaneOf, LanguageLane> ? options.parallel : 0);
  if (model.jobs >= most) {
    throw ApiError(429,
                   concat(model.jobs.load(), " requests are being answered by the model ",
                          quote(model.model.name), " or wait for it; try again later"),
                   "", "queue_full");
  }
  ++model.jobs, ++active;
  job.ticket = std::shared_ptr<void>(nullptr, [this, &model](void*) { --model.jobs, --active; });
  const auto kept = std::make_shared<Job>(std::move(job));  // std::function wants to be copied
  const std::lock_guard lock(mutex_);
  inbox_.emplace_back([&lane, kept] { lane.add(std::move(*kept)); });
  changed_.notify_all();
}

void Service::Impl::submit(ServedModel& model, GenerationJob job) {
  model.writer();
  enqueue<LanguageLane>(model, std::move(job));
}
void Service::Impl::submit(ServedModel& model, EmbedJob job) {
  model.encoder();
  enqueue<TasksLane>(model, std::move(job));
}
void Service::Impl::submit(ServedModel& model, ScoreJob job) {
  model.classifier();
  enqueue<ScoreLane>(model, std::move(job));
}

void Service::Impl::work() {
  bool is_busy = false;
  while (true) {
    std::vector<std::function<void()>> fresh;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stops_ || is_busy || !inbox_.empty(); });
      if (stops_) return;
      fresh.swap(inbox_);
    }
    for (const auto& add : fresh) add();
    fresh.clear();
    const auto now = Reply::Clock::now();
    is_busy = false;
    for (ServedModel& model : models) {
      model.lane->drop_unwanted(now);
      is_busy |= model.lane->step();
    }
  }
}

Service::Service(std::vector<Model> models, const ServiceOptions& options, std::function<void()> wake)
    : impl_(std::make_unique<Impl>(std::move(models), options, std::move(wake))) {}

Service::~Service() = default;

std::shared_ptr<Reply> Service::handle(const HttpRequest& request) {
  constexpr double kLongest = 1e9;
  const auto seconds = std::chrono::duration<double>(std::min(impl_->options.timeout, kLongest));
  const auto deadline = Reply::Clock::now() + std::chrono::duration_cast<Reply::Clock::duration>(seconds);
  auto reply = std::make_shared<Reply>(impl_->wake, deadline);
  try {
    as_request([&] { dispatch({*impl_, request, reply}); });
  } catch (...) {
    fail_with_current_exception(*reply);
  }
  return reply;
}

void Service::count(int status) { ++impl_->statuses.at(static_cast<size_t>(status / 100)); }
void Service::close() { impl_->closed = true; }
int64_t Service::active() const { return impl_->active; }

std::string fresh_id(const char* prefix) {
  static std::mutex mutex;
  static std::mt19937_64 random{std::random_device{}()};
  const std::lock_guard lock(mutex);
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += "0123456789abcdefghijklmnopqrstuv"[random() % 32];
  return id;
}

int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace multihead::serve
