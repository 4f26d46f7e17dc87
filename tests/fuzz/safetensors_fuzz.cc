// Any file loads and survives a round trip, or gives a FormatError; anything else ends the program.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/io/safetensors.h"

namespace {

namespace io = multihead::io;
namespace fs = std::filesystem;

std::string file_in_memory(const char* suffix) {
  const fs::path folder = fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  return (folder / multihead::concat("multihead-fuzz-", ::getpid(), suffix)).string();
}

// What the header alone says, without a file: cheap, and it must agree with the reader.
bool header_is_good(std::string_view bytes) {
  uint64_t length = 0;
  if (bytes.size() < 8) return false;
  std::memcpy(&length, bytes.data(), 8);
  if (length > bytes.size() - 8) return false;
  try {
    io::parse_safetensors_header(bytes.substr(8, length), bytes.size() - 8 - length, "fuzz");
    return true;
  } catch (const multihead::FormatError&) {
    return false;
  }
}

// Removes its file whatever happens.
struct FileInMemory {
  explicit FileInMemory(const char* suffix) : path(file_in_memory(suffix)) {}
  ~FileInMemory() { ::unlink(path.c_str()); }
  std::string path;
};

bool same_bits(const multihead::Tensor& a, const multihead::Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.numel() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

void check_file(std::string_view bytes, bool good) {
  const FileInMemory in(".in"), out(".out");
  const std::string &path = in.path, &copy = out.path;
  multihead::write_file_atomically(path, bytes);
  io::TensorMap loaded;
  bool opened = false;
  try {
    const io::SafetensorsFile file(path);
    opened = true;
    for (const std::string& name : file.names()) {
      try {
        loaded.emplace(name, file.load(name));
      } catch (const multihead::FormatError&) {  // a dtype, rank or bool that is not held
      }
    }
    io::save_safetensors(copy, loaded, file.metadata());
  } catch (const multihead::FormatError&) {
  }
  if (opened != good) std::abort();
  if (!opened) return;
  const io::TensorMap again = io::load_safetensors(copy);
  if (again.size() != loaded.size()) std::abort();
  for (const auto& [name, tensor] : loaded) {
    if (!same_bits(tensor, again.at(name))) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool good = header_is_good(bytes);
  // Refused headers are by far the most; one in sixteen of them goes through a file too.
  if (good || size % 16 == 0) check_file(bytes, good);
  return 0;
}
