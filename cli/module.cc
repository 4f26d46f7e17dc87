#include "cli/module.h"

#include "cli/verb.h"
#include "multihead/core/modules-inl.h"

extern "C" [[gnu::weak]] int multihead_run_sockets(const multihead::serve::SocketLoop& loop);

namespace multihead::cli {

void* module_symbol(const char* module, const char* function, const std::string& who,
                    const std::string& remedy) {
  const auto paths = find_modules(module);
  if (paths.empty()) throw UsageError(concat(who, " ", module, " beside this program; ", remedy));
  return module_function(paths.front(), function);
}

serve::RunSockets load_sockets(const std::string& verb) {
  return held_or_loaded<serve::RunSockets>(multihead_run_sockets, serve::kSocketsModule, serve::kRunSockets,
                                           verb + " needs",
                                           "it is built where libevent is (Debian: libevent-dev)");
}

}  // namespace multihead::cli
