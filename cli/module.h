// Modules of this program that are loaded when they are needed.
#pragma once

#include <string>

namespace multihead::cli {

/// The address of a function of a module, beside the program or where it was installed. Throws InputError (it
/// cannot be loaded), UsageError: `who` MODULE beside this program; `remedy`.
void* module_symbol(const char* module, const char* function, const std::string& who,
                    const std::string& remedy);

template <class Function>
Function module_function(const char* module, const char* function, const std::string& who,
                         const std::string& remedy) {
  return reinterpret_cast<Function>(  // NOLINT(*-reinterpret-cast): as dlsym is meant
      module_symbol(module, function, who, remedy));
}

}  // namespace multihead::cli
