// Modules: shared libraries that are loaded when they are needed, so that nobody who does without them needs what they
// link with (MPI, libevent, libpng).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace multihead {

/// The files named `name` beside the program, beside the shared library (or Python extension) that holds this code or in
/// a folder `multihead` there, and where the program's prefix has its modules.
std::vector<std::filesystem::path> find_modules(const std::string& name);

/// The address of `function` in the module at `path`. Throws ValueError with the loader's words.
void* module_function(const std::filesystem::path& path, const char* function);

}  // namespace multihead
