#include "cli/module.h"

#include <dlfcn.h>

#include <filesystem>

#include "cli/verb.h"

extern "C" [[gnu::weak]] int multihead_run_sockets(const multihead::serve::SocketLoop& loop);

namespace multihead::cli {

void* module_symbol(const char* module, const char* function, const std::string& who,
                    const std::string& remedy) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& path : {folder / module, folder.parent_path() / MULTIHEAD_LIBDIR / module}) {
    if (!std::filesystem::exists(path)) continue;
    void* loaded = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* symbol = loaded != nullptr ? dlsym(loaded, function) : nullptr;
    if (symbol == nullptr) throw InputError(concat(module, ": ", dlerror()));
    return symbol;
  }
  throw UsageError(concat(who, " ", module, " beside this program; ", remedy));
}

serve::RunSockets load_sockets(const std::string& verb) {
  return module_function<serve::RunSockets>(multihead_run_sockets, serve::kSocketsModule, serve::kRunSockets,
                                            verb + " needs",
                                            "it is built where libevent is (Debian: libevent-dev)");
}

}  // namespace multihead::cli
