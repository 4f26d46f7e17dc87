// Models behind HTTP, in threads of this process.
#include <dlfcn.h>
#include <nanobind/stl/pair.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "multihead/models/files/adapter.h"
#include "multihead/serve/server.h"
#include "python/src/bindings.h"
#include "python/src/models/decoding.h"
#include "python/src/modules.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

// In a process that was forked there are no threads to wait for: what the other one runs is left alone.
class ServerHandle {
 public:
  explicit ServerHandle(std::unique_ptr<serve::Server> server) : server_(std::move(server)) {}
  ~ServerHandle() {
    if (getpid() != process_) {
      (void)server_.release();
    } else {
      unlocked([&] { return server_.reset(), 0; });
    }
  }
  ServerHandle(const ServerHandle&) = delete;
  ServerHandle& operator=(const ServerHandle&) = delete;

  int port() const { return server_->port(); }
  bool is_running() const { return getpid() == process_ && !server_->has_ended(); }
  void stop(double seconds) {
    if (getpid() == process_) unlocked([&] { return server_->stop(seconds), 0; });
  }

 private:
  std::unique_ptr<serve::Server> server_;
  pid_t process_ = getpid();
};

serve::RunSockets load_sockets(const Path& module) {
  void* loaded = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = loaded != nullptr ? dlsym(loaded, serve::kRunSockets) : nullptr;
  MH_CHECK(symbol != nullptr, IoError, "Server: ", dlerror());
  return reinterpret_cast<serve::RunSockets>(symbol);  // NOLINT(*-reinterpret-cast): as dlsym is meant
}

// A language model with its tokenizer and the folder of its defaults, or None.
serve::Writer to_writer(const std::string& name, const nb::tuple& parts) {
  serve::Writer writer = {{nb::cast<models::LanguageModel>(parts[0]), nb::cast<text::Tokenizer>(parts[1])},
                          {}};
  models::check_vocabulary(concat("Server: the model ", quote(name)), "tokenizer",
                           writer.tokenizer.plain_vocab_size(), writer.model.config().vocab_size);
  if (!parts[2].is_none()) writer.defaults = models::load_generation_config(nb::cast<Path>(parts[2]));
  return writer;
}

serve::Model to_served(const std::string& name, nb::handle what, std::optional<nn::WeightDtype> weights) {
  if (nb::isinstance<embed::SentenceEncoder>(what))
    return serve::named_model(name, nb::cast<embed::SentenceEncoder>(what));
  if (nb::isinstance<embed::TextClassifier>(what))
    return serve::named_model(name, nb::cast<embed::TextClassifier>(what));
  if (nb::isinstance<nb::tuple>(what))
    return serve::named_model(name, to_writer(name, nb::cast<nb::tuple>(what)));
  const auto path = nb::cast<Path>(what);
  return unlocked([&] { return serve::load_model(name, path, weights); });
}

}  // namespace

void bind_serve(nb::module_& m) {
  nb::class_<ServerHandle> c(m, "HttpServer", "What multihead.Server is made of.");
  c.def(
      "__init__",
      [](ServerHandle* self, const Path& sockets, const nb::list& models, const std::string& host,
         int64_t port, const std::optional<std::string>& weights, int64_t parallel, int64_t context,
         nb::handle cache_dtype, size_t cache_bytes, int64_t prompt_chunk, double timeout, int64_t max_queue,
         size_t max_body_bytes, int64_t max_inputs, int64_t max_tokens, int64_t max_connections,
         const std::vector<std::string>& api_keys, const std::vector<std::string>& allow_hosts) {
        std::optional<nn::WeightDtype> dtype;
        if (weights) dtype = kernels::parse_weight_dtype(*weights);
        serve::ServiceOptions service = {.parallel = parallel,
                                         .context = context,
                                         .cache_bytes = cache_bytes,
                                         .prompt_chunk = prompt_chunk,
                                         .max_queue = max_queue,
                                         .max_inputs = max_inputs,
                                         .max_tokens = max_tokens,
                                         .timeout = timeout,
                                         .api_keys = api_keys,
                                         .hosts = allow_hosts};
        if (!cache_dtype.is_none()) service.cache_dtype = to_cache_dtype(cache_dtype);
        serve::ServerOptions options = {.host = host, .port = port, .connections = max_connections};
        options.session.limits.body = max_body_bytes;
        const serve::RunSockets run = load_sockets(sockets);
        std::vector<serve::Model> loaded;
        for (nb::handle entry : models) {
          const auto [name, what] = nb::cast<std::pair<std::string, nb::object>>(entry);
          loaded.push_back(to_served(name, what, dtype));
        }
        new (self) ServerHandle(unlocked(
            [&] { return std::make_unique<serve::Server>(run, std::move(loaded), service, options); }));
      },
      "sockets"_a, "models"_a, nb::kw_only(), "host"_a, "port"_a, "weights"_a.none(), "parallel"_a,
      "context"_a, "cache_dtype"_a.none(), "cache_bytes"_a, "prompt_chunk"_a, "timeout"_a, "max_queue"_a,
      "max_body_bytes"_a, "max_inputs"_a, "max_tokens"_a, "max_connections"_a, "api_keys"_a, "allow_hosts"_a);
  c.def_prop_ro("port", &ServerHandle::port);
  c.def_prop_ro("is_running", &ServerHandle::is_running);
  c.def("stop", &ServerHandle::stop, "seconds"_a);
}

}  // namespace multihead::python
