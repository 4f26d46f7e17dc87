// Atomically created folders with a manifest of sizes and checksums.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/files.h"

namespace multihead::io {

/// folder/name
std::string join(const std::string& folder, const std::string& name);
/// "is a symbolic link, not a file"; empty: a file, or nothing there.
std::string not_a_file(const std::string& path);

struct ManifestEntry {
  std::string name;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

/// Lists the files that this library wrote into a folder, in order; identifies a folder or a file as ours.
struct Manifest {
  static constexpr int kVersion = 1;
  static constexpr const char* kFile = "manifest.json";
  std::vector<ManifestEntry> files;
  std::string run = {};  ///< the training run that wrote it; empty: none

  /// Null if not listed.
  const ManifestEntry* find(std::string_view name) const;
};

/// Fills a folder and lists the files.
class DirectoryWriter {
 public:
  /// `replaced`: new files have the permissions of those of the same name there, from the first byte on.
  explicit DirectoryWriter(std::string folder, std::string replaced = "")
      : folder_(std::move(folder)), replaced_(std::move(replaced)) {}
  /// One file of the folder. Throws ValueError (not a plain, new name), IoError.
  void write(const std::string& name, const FillFile& fill);
  void write(const std::string& name, std::string_view content);
  /// Writes the manifest and syncs the folder. It lists the file `first` first, if that was written; entries
  /// of `kept` for files that were not written stay in it.
  void finish(const std::string& run, const Manifest& kept = {}, const std::string& first = "");

  const Manifest& manifest() const { return manifest_; }

 private:
  std::optional<uint32_t> permissions(const std::string& name) const;

  std::string folder_, replaced_;
  Manifest manifest_;
};

using FillFolder = std::function<void(DirectoryWriter&)>;

/// Creates or replaces the folder `path`: files are written and synced in a Staging beside it, then the
/// manifest, then one rename. A crash at any point leaves the old folder or the new one, and perhaps a
/// leftover to ignore. A replaced folder must carry a manifest of the same run. One writer at a time: hold a
/// FolderLock.
/// Throws    ValueError if the existing folder is foreign; IoError with path and reason; what `fill` throws.
///           The existing folder is untouched then.
void write_directory_atomically(const std::string& path, const FillFolder& fill, const std::string& run = "");

/// Renames the folder away, then deletes it. Throws ValueError unless it carries a manifest
/// of this run, IoError.
void remove_directory_atomically(const std::string& path, const std::string& run = "");

/// Why a run must not touch the folder `path`: "is a symbolic link", "belongs to another run" … Empty if it
/// does not exist or carries a manifest of this run.
std::string foreign_directory(const std::string& path, const std::string& run);

/// Reads the manifest. Throws IoError, FormatError (corrupt, or of another format version).
Manifest read_manifest(const std::string& path);
/// Checks manifest and sizes: cheap, detects what a crash can leave. Throws FormatError naming the file.
void verify_directory_sizes(const std::string& path);
/// Reads every byte. Throws FormatError naming the file.
void verify_directory(const std::string& path);
/// A file as a manifest lists it. Throws IoError.
ManifestEntry entry_of(const std::string& folder, const std::string& name);
/// The text of manifest.json.
std::string manifest_text(const Manifest& manifest);
/// Whether a file matches the manifest, every byte read. Throws IoError.
bool is_unchanged(const std::string& path, const ManifestEntry& entry);

}  // namespace multihead::io
