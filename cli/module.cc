#include "cli/module.h"

#include <dlfcn.h>

#include <filesystem>

#include "cli/verb.h"

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

}  // namespace multihead::cli
