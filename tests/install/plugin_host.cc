// Opens and closes the plugin that it is given, from a thread of its own and from its first one.
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace {

bool computes(const char* path) {
  void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), false;
  const auto compute = reinterpret_cast<int (*)()>(dlsym(plugin, "compute"));
  const bool is_right = compute != nullptr && compute() == 64 * 63 / 2;
  dlclose(plugin);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // by then the workers sleep
  return is_right;
}

}  // namespace

int main(int, char** arguments) {
  for (int i = 0; i < 5; ++i) {
    bool in_thread = false;
    std::thread([&] { in_thread = computes(arguments[1]); }).join();
    if (!in_thread || !computes(arguments[1])) return 1;
  }
  std::puts("a plugin comes and goes");
}
