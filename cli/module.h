// Modules of this program that are loaded when they are needed. A static program holds them instead.
#pragma once

#include <string>

#include "multihead/serve/sockets.h"

namespace multihead::cli {

/// The address of a function of a module. Throws ValueError (it cannot be loaded), UsageError: `who` MODULE beside this
/// program; `remedy`.
void* module_symbol(const char* module, const char* function, const std::string& who,
                    const std::string& remedy);

/// `held` is the function itself, where it is declared weak: null unless the module is linked into this program.
template <class Function>
Function held_or_loaded(Function held, const char* module, const char* function, const std::string& who,
                        const std::string& remedy) {
  if (held != nullptr) return held;
  return reinterpret_cast<Function>(  // NOLINT(*-reinterpret-cast): as dlsym is meant
      module_symbol(module, function, who, remedy));
}

/// The function of the module of sockets. Throws UsageError: `verb` needs it.
serve::RunSockets load_sockets(const std::string& verb);

}  // namespace multihead::cli
