#include "multihead/core/modules-inl.h"

#include <dlfcn.h>

#include <system_error>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"

namespace multihead {

namespace fs = std::filesystem;

std::vector<fs::path> find_modules(const std::string& name) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<fs::path> folders = {program};
  Dl_info info;
  // A program's own code is said to be in argv[0], which without a slash is no path.
  if (dladdr(reinterpret_cast<void*>(&find_modules), &info) != 0 && info.dli_fname != nullptr) {
    const fs::path library = info.dli_fname;
    if (library.has_parent_path()) {
      folders.push_back(fs::absolute(library, ignored).parent_path());
      folders.push_back(folders.back() / "multihead");  // where a shared library is installed
    }
  }
  folders.push_back(program.parent_path() / MULTIHEAD_MODULES);
  std::vector<fs::path> found;
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / name, ignored)) found.push_back(folder / name);
  }
  return found;
}

void* module_function(const fs::path& path, const char* function) {
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* address = module != nullptr ? dlsym(module, function) : nullptr;
  MH_CHECK(address != nullptr, ValueError, path.filename().string(), ": ", quote(dlerror(), 400));
  return address;
}

}  // namespace multihead
