// Whole files, in and out. Private to text/.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace multihead::text {

/// The bytes of a regular file. Throws IoError, naming the path and the reason.
std::string read_file(const std::filesystem::path& path);

/// A file that appears under its name only when it is complete: written beside it, synced, renamed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  // without commit(): removes what was written
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  void rewrite(size_t offset, std::string_view bytes);
  void commit();

 private:
  void fail(const char* what) const;

  std::filesystem::path path_, temporary_;
  int file_ = -1;
};

/// The system's message for an errno value.
std::string reason(int error);

}  // namespace multihead::text
