// A hidden folder for unfinished files and folders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace multihead::io {

/// Sixteen random hexadecimal digits.
std::string random_id();
bool is_id(std::string_view text);

/// The hidden folder `.multihead-<16 random hexadecimal digits>` inside `folder`, for unfinished or obsolete
/// files; the destructor deletes it. Renames out of it are atomic: same file system. An empty file of its own
/// name inside marks it as ours, so that leftovers of killed processes can be identified.
class Staging {
 public:
  /// Throws IoError.
  explicit Staging(const std::string& folder);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Moves a finished file to its name in the folder; a link of that name is replaced, not followed. Throws
  /// IoError. flush_folder() the folder then.
  void publish(const std::string& name) const;
  /// Whether the destructor leaves the folder: from where its files are needed to end what was begun.
  void keep(bool kept) { is_kept_ = kept; }

 private:
  std::string path_;
  bool is_kept_ = false;
};

/// The same of a staging folder that another process has left.
void publish_staged(const std::string& staging, const std::string& name);

/// Atomically creates or replaces a file of the folder and syncs it; a link of that name is replaced, not
/// followed. Throws IoError.
void write_staged(const std::string& folder, const std::string& name, std::string_view content);

/// Marked hidden folders left in `folder` by killed processes.
std::vector<std::string> find_leftovers(const std::string& folder);
/// Deletes them. Call it while holding the folder's lock. Returns their names. Throws IoError.
std::vector<std::string> remove_leftovers(const std::string& folder);

}  // namespace multihead::io
