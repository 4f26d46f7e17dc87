#include "multihead/io/staging.h"

#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/core/threads/system-inl.h"

namespace multihead::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStagingPrefix = ".multihead-";

bool is_staging_name(std::string_view name) {
  return name.starts_with(kStagingPrefix) && is_id(name.substr(kStagingPrefix.size()));
}

std::string mark_in(const fs::path& staging) { return (staging / staging.filename()).string(); }

// The mark goes last: what a kill leaves of it is still recognised. Returns what kept something from going.
std::error_code remove_staging(const std::string& path) {
  std::error_code error, ignored;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename() != fs::path(path).filename()) fs::remove_all(it->path(), error);
    if (error) return error;
  }
  system_calls().unlink(mark_in(path).c_str());
  if (!error && system_calls().rmdir(path.c_str()) != 0 && errno != ENOENT) {
    error.assign(errno, std::generic_category());
  }
  return error;
}

}  // namespace

std::string random_id() {
  std::random_device random;
  return checksum_text(uint64_t{random()} << 32 | random());
}

bool is_id(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// The mark is not forced to the disk, which would cost a flush per save: should a power cut lose it, a folder
// stays that is never deleted.
Staging::Staging(const std::string& folder)
    : path_((fs::path(folder) / concat(kStagingPrefix, random_id())).string()) {
  const bool made = system_calls().mkdir(path_.c_str(), 0777) == 0;
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  const int mark = made ? system_calls().open(mark_in(path_).c_str(), flags, 0666) : -1;
  if (mark < 0) {
    const int error = errno;
    if (made) system_calls().rmdir(path_.c_str());
    fail("create folder", path_, error);
  }
  system_calls().close(mark);
}

Staging::~Staging() {
  if (!is_kept_) remove_staging(path_);
}

void Staging::publish(const std::string& name) const { publish_staged(path_, name); }

void publish_staged(const std::string& staging, const std::string& name) {
  const std::string target = (fs::path(staging).parent_path() / name).string();
  if (system_calls().rename((fs::path(staging) / name).c_str(), target.c_str()) != 0) {
    fail("replace", target, errno);
  }
}

void write_staged(const std::string& folder, const std::string& name, std::string_view content) {
  const Staging staging(folder);
  FileWriter file(staging / name);
  file.write(content);
  file.finish();
  staging.publish(name);
  flush_folder(folder);
}

std::vector<std::string> find_leftovers(const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& name : names_in(folder)) {
    const fs::path path = fs::path(folder) / name;
    if (!is_staging_name(name) || node_at(path.string()) != Node::folder) continue;
    // An empty one was to be marked next.
    std::error_code unreadable;
    if (node_at(mark_in(path)) == Node::file || fs::is_empty(path, unreadable)) found.push_back(name);
  }
  return found;
}

std::vector<std::string> remove_leftovers(const std::string& folder) {
  const std::vector<std::string> found = find_leftovers(folder);
  for (const std::string& name : found) {
    const std::string path = (fs::path(folder) / name).string();
    const std::error_code error = remove_staging(path);
    if (error) fail("remove", path, error.value());
  }
  return found;
}

}  // namespace multihead::io
