// Folders that appear complete or not at all, with a manifest of sizes and checksums.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/files.h"

namespace multihead::io {

struct ManifestEntry {
  std::string name;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

/// What a folder written by write_directory_atomically() holds, in the order it was written.
struct Manifest {
  static constexpr int kVersion = 1;
  static constexpr const char* kFile = "manifest.json";
  std::vector<ManifestEntry> files;
};

class DirectoryWriter {
 public:
  /// One file of the folder. Throws ValueError (not a plain, new name), IoError.
  void write(const std::string& name, const FillFile& fill);
  void write(const std::string& name, std::string_view content);

 private:
  friend void write_directory_atomically(const std::string&, const std::function<void(DirectoryWriter&)>&);
  explicit DirectoryWriter(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
  Manifest manifest_;
};

/// Creates or replaces the folder `path`: files go to `path`.tmp and to disk, then the manifest, then one
/// rename. A crash at any point leaves the old folder or the new one, and perhaps a `*.tmp` to be ignored.
/// One writer at a time: hold a FolderLock.
/// Throws    IoError with path and reason; what `fill` throws. The old folder is untouched then.
void write_directory_atomically(const std::string& path, const std::function<void(DirectoryWriter&)>& fill);

/// Moves the folder out of sight in one step, then deletes it. Throws IoError.
void remove_directory_atomically(const std::string& path);

/// Reads the manifest. Throws IoError, FormatError (damaged, or of another format version).
Manifest read_manifest(const std::string& path);
/// Manifest and sizes: cheap, finds what a crash can leave. Throws FormatError naming the file.
void verify_directory_sizes(const std::string& path);
/// Reads every byte. Throws FormatError naming the file.
void verify_directory(const std::string& path);

}  // namespace multihead::io
