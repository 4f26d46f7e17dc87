#include "cli/module.h"

#include "cli/verb.h"
#include "multihead/core/modules-inl.h"

extern "C" [[gnu::weak]] int multihead_run_sockets(const multihead::serve::SocketLoop& loop);

namespace multihead::cli {

serve::RunSockets load_sockets(const std::string& verb) {
  if (multihead_run_sockets != nullptr) return multihead_run_sockets;
  const auto paths = find_modules(serve::kSocketsModule);
  if (paths.empty()) {
    throw UsageError(concat(verb, " needs ", serve::kSocketsModule,
                            " beside this program or in lib/multihead; it is built where libevent is "
                            "(Debian: libevent-dev, pkg-config)"));
  }
  return reinterpret_cast<serve::RunSockets>(  // NOLINT(*-reinterpret-cast): as dlsym is meant
      module_function(paths.front(), serve::kRunSockets));
}

}  // namespace multihead::cli
