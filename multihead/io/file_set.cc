#include "multihead/io/file_set.h"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "multihead/core/error.h"
#include "multihead/core/json.h"
#include "multihead/core/system-inl.h"
#include "multihead/io/staging.h"

namespace multihead::io {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& folder, const std::string& name) {
  return node_at(join(folder, name)) != Node::absent;
}

// Whether some process holds the folder's lock. Changes nothing.
bool is_held(const std::string& folder) {
  const int descriptor =
      ::open(join(folder, FolderLock::kFile).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool held = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return held;
}

// What the folder's manifest lists; nothing if there is none.
Manifest manifest_of(const std::string& folder) {
  return is_there(folder, Manifest::kFile) ? read_manifest(folder) : Manifest();
}

// Empty: absent, or listed and unchanged.
std::string foreign_file(const std::string& path, const ManifestEntry* entry, Look look) {
  if (node_at(path) != Node::file) return not_a_file(path);
  if (entry == nullptr) return "was not written by multihead";
  const bool same = look == Look::bytes ? is_unchanged(path, *entry)
                                        : FileReader(path, Links::refuse).size() == entry->bytes;
  return same ? "" : "was changed since multihead wrote it";
}

// Deletes those of the names that are there; then that is on the disk.
void remove_names(const std::string& folder, const std::vector<std::string>& names) {
  bool any = false;
  for (const std::string& name : names) {
    const std::string path = join(folder, name);
    if (node_at(path) == Node::absent) continue;
    if (system_calls().unlink(path.c_str()) != 0) fail("remove", path, errno);
    any = true;
  }
  if (any) flush_folder(folder);
}

// Moves files out of the staging folder; then that is on the disk.
void publish_names(const Staging& staging, const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) staging.publish(name);
  if (!names.empty()) flush_folder(folder);
}

// The key first.
void remove_set(const std::string& folder, const FileSet& set) {
  remove_names(folder, {set.front()});
  remove_names(folder, {set.begin() + 1, set.end()});
}

bool contains(const FileSet& set, const std::string& name) {
  return std::find(set.begin(), set.end(), name) != set.end();
}

// What a manifest lists besides a set.
Manifest others(Manifest manifest, const FileSet& set) {
  std::erase_if(manifest.files, [&](const ManifestEntry& entry) { return contains(set, entry.name); });
  return manifest;
}

std::string interrupted_save(const std::string& folder) {
  for (const std::string& name : find_leftovers(folder)) {
    if (is_there(join(folder, name), Manifest::kFile)) {
      return concat("; the complete new files are in ", quote(join(folder, name), 400));
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> foreign_files(const std::string& folder, const FileSet& set, Look look) {
  std::vector<std::string> foreign;
  Manifest manifest;
  const std::string path = join(folder, Manifest::kFile);
  try {
    if (node_at(path) == Node::file) manifest = read_manifest(folder);
  } catch (const FormatError&) {
    foreign.push_back(concat(quote(Manifest::kFile), " is not multihead's, or damaged"));
  }
  if (const std::string reason = not_a_file(path); !reason.empty()) {
    foreign.push_back(concat(quote(Manifest::kFile), " ", reason));
  }
  for (const std::string& name : set) {
    const std::string reason = foreign_file(join(folder, name), manifest.find(name), look);
    if (!reason.empty()) foreign.push_back(concat(quote(name), " ", reason));
  }
  return foreign;
}

void replace_files(const std::string& folder, const FileSet& set, const FillFolder& fill,
                   const std::string& run) {
  refuse_foreign("save", folder, foreign_files(folder, set, Look::bytes));
  const Staging staging(folder);
  DirectoryWriter writer(staging.path());
  fill(writer);
  std::vector<std::string> written;
  for (const ManifestEntry& entry : writer.manifest().files) {
    MH_CHECK(contains(set, entry.name), ValueError, "save: ", quote(entry.name),
             " is not a file of this set");
    if (entry.name != set.front()) written.push_back(entry.name);
  }
  MH_CHECK(writer.manifest().find(set.front()) != nullptr, ValueError, "save: ", set.front(), " is missing");
  writer.finish(run, others(manifest_of(folder), set));
  // Whatever lies under these names is listed by the manifest beside it, at every moment.
  remove_set(folder, set);
  publish_names(staging, folder, {Manifest::kFile});
  publish_names(staging, folder, written);
  publish_names(staging, folder, {set.front()});
}

void remove_files(const std::string& folder, const FileSet& set) {
  refuse_foreign("remove", folder, foreign_files(folder, set, Look::bytes));
  const bool last = others(manifest_of(folder), set).files.empty();
  remove_set(folder, set);
  if (last) remove_names(folder, {Manifest::kFile});
}

void adopt_files(const std::string& folder, const FileSet& set) {
  if (is_there(folder, Manifest::kFile)) return;
  Manifest manifest;
  for (const std::string& name : set) {
    if (is_there(folder, name)) manifest.files.push_back(entry_of(folder, name));
  }
  if (!manifest.files.empty()) write_staged(folder, Manifest::kFile, manifest_text(manifest));
}

void save_files(const std::string& folder, const FileSet& set, const FillFolder& fill) {
  const auto lock =
      lock_folder(folder, [&] { refuse_foreign("save", folder, foreign_files(folder, set, Look::sizes)); });
  remove_leftovers(folder);
  replace_files(folder, set, fill);
}

std::unique_ptr<FolderLock> lock_folder(const std::string& folder, const std::function<void()>& check) {
  // Whoever holds the folder may be writing: a half-written folder would look like a foreign one.
  if (!is_held(folder)) check();
  return std::make_unique<FolderLock>(folder);
}

void refuse_foreign(const char* who, const std::string& folder, const std::vector<std::string>& foreign) {
  if (foreign.empty()) return;
  constexpr size_t kShown = 3;
  std::string list;
  for (size_t i = 0; i < std::min(foreign.size(), kShown); ++i)
    list += concat(i == 0 ? "" : ", ", foreign[i]);
  if (foreign.size() > kShown) list += concat(" and ", foreign.size() - kShown, " more");
  throw ValueError(concat(who, ": nothing was written to folder ", quote(folder, 400), ", because ", list,
                          "; move ", foreign.size() == 1 ? "it" : "them", " away or choose another folder"));
}

void check_complete(const std::string& folder, const std::string& key) {
  std::error_code error;
  MH_CHECK(
      node_at(folder) != Node::absent, IoError, "there is no folder ", quote(folder, 400),
      ": models are read from the disk, and nothing is downloaded; get the files of a model of the Hugging "
      "Face hub with 'hf download OWNER/NAME --local-dir FOLDER' and pass FOLDER");
  if (!fs::is_directory(folder, error) || is_there(folder, key)) return;
  const std::string what = concat("folder ", quote(folder, 400), " has no ", key, ": ");
  MH_CHECK(!is_there(folder, kRunFile), FormatError, what,
           "the training run in it is unfinished; continue with --resume");
  const std::string staged = interrupted_save(folder);
  MH_CHECK(!is_there(folder, Manifest::kFile) && staged.empty(), FormatError, what,
           "saving it was interrupted; save it again", staged);
}

}  // namespace multihead::io
