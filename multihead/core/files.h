// Checked reads, atomic writes, folder locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/checksum.h"

namespace multihead {

/// The type of a directory entry; links are not followed.
enum class Node : uint8_t { absent, file, folder, link, pipe, socket, device };
/// Throws IoError if it cannot be determined.
Node node_at(const std::string& path);
/// "a file", "a symbolic link" …
const char* node_name(Node node);

enum class Links : uint8_t { follow, refuse };

/// A regular file open for random-access reading. Its bytes stay readable when the path is replaced.
class FileReader {
 public:
  /// Throws IoError if missing, unreadable, a directory, pipe or device, or a link where links are refused.
  explicit FileReader(std::string path, Links links = Links::follow);
  ~FileReader();
  FileReader(FileReader&& other) noexcept;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// For mmap; owned by the reader.
  int descriptor() const { return descriptor_; }
  /// Fills `bytes` bytes from `offset`; throws IoError, also if the file was truncated.
  void read(uint64_t offset, void* data, size_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// The whole file. Throws IoError, or FormatError if the file is larger than `limit` bytes.
std::string read_file(const std::string& path, uint64_t limit = uint64_t{1} << 32,
                      Links links = Links::follow);

/// Writes a new file sequentially. Every call is checked; an unfinished file is removed.
class FileWriter {
 public:
  /// Creates the file, with these permissions or the system's for new ones; throws IoError if it exists.
  explicit FileWriter(std::string path, std::optional<uint32_t> mode = {});
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Overwrites earlier bytes; checksum() and size() are unchanged. Throws IoError.
  void rewrite(uint64_t offset, std::string_view text);
  /// Syncs to disk. Later writes are appended, even if the file is moved. Throws IoError.
  void flush();
  /// Syncs to disk and closes. Throws IoError.
  void finish();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// Checksum of the bytes written so far.
  uint64_t checksum() const { return checksum_.value(); }

 private:
  std::string path_;
  int descriptor_ = -1;
  bool finished_ = false;
  uint64_t size_ = 0;
  Checksum checksum_;
};

/// Replaces or creates `path`: a temporary file beside it is filled, flushed and renamed. After a failure or
/// a crash at any point `path` holds the old content or the new, never a mixture. A symbolic link is
/// kept and its target replaced, with the permissions it had. Without commit the temporary file is removed.
/// Throws    IoError with path and the system's reason
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path) : AtomicFile(target_of(path)) {}
  FileWriter& contents() { return file_; }
  void commit();

 private:
  struct Target {
    std::string path;
    std::optional<uint32_t> mode;  // of the file that is replaced
  };
  static Target target_of(const std::string& path);
  explicit AtomicFile(Target target);

  std::string target_;
  FileWriter file_;
};

using FillFile = std::function<void(FileWriter&)>;

/// The same in one call. Also throws what `fill` throws.
void write_file_atomically(const std::string& path, const FillFile& fill);
void write_file_atomically(const std::string& path, std::string_view content);

/// Creates a folder and its parents, each synced in its own parent. Throws IoError.
void make_folder(const std::string& path);
/// Syncs a folder's entries to disk. Throws IoError.
void flush_folder(const std::string& path);
/// The names in a folder, sorted; none if it does not exist. Throws IoError.
std::vector<std::string> names_in(const std::string& path);
/// The parent folder; "." for a bare name.
std::string parent_of(const std::string& path);

/// Locks a folder for one process with its file .lock; released by the destructor or when the process ends.
class FolderLock {
 public:
  static constexpr const char* kFile = ".lock";
  /// Creates the folder if needed. Throws IoError "… is in use by process 1234", ValueError if .lock is a
  /// foreign file.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace multihead
