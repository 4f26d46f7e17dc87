#include "multihead/io/file_set.h"

#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/json.h"
#include "multihead/core/threads/system-inl.h"
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

// Reads the folder's manifest; empty if there is none.
Manifest manifest_of(const std::string& folder) {
  return is_there(folder, Manifest::kFile) ? read_manifest(folder) : Manifest();
}

// The same; nothing of one that is foreign, or was being written.
Manifest readable_manifest(const std::string& folder) {
  try {
    return manifest_of(folder);
  } catch (const FormatError&) {
    return {};
  }
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

// Moves files out of a staging folder; then that is on the disk.
void publish_names(const std::string& staged, const std::string& folder,
                   const std::vector<std::string>& names) {
  for (const std::string& name : names) publish_staged(staged, name);
  if (!names.empty()) flush_folder(folder);
}

// The key first.
void remove_set(const std::string& folder, const FileSet& set) {
  if (set.empty()) return;
  remove_names(folder, {set.front()});
  remove_names(folder, {set.begin() + 1, set.end()});
}

bool contains(const FileSet& set, const std::string& name) {
  return std::find(set.begin(), set.end(), name) != set.end();
}

// The entries of a manifest that are not in a set.
Manifest others(Manifest manifest, const FileSet& set) {
  std::erase_if(manifest.files, [&](const ManifestEntry& entry) { return contains(set, entry.name); });
  return manifest;
}

// The files of a manifest that lie in a folder, in order.
std::vector<std::string> listed_in(const Manifest& manifest, const std::string& folder) {
  std::vector<std::string> names;
  for (const ManifestEntry& entry : manifest.files) {
    if (node_at(join(folder, entry.name)) == Node::file) names.push_back(entry.name);
  }
  return names;
}

// The complete new files of a staging folder take the place of the old ones, from whichever step on.
// Manifests list the key first.
void take_place(const std::string& folder, const std::string& staged) {
  if (is_there(staged, Manifest::kFile)) {
    const Manifest before = manifest_of(folder), after = read_manifest(staged);
    FileSet old = listed_in(before, folder);
    std::erase_if(old, [&](const std::string& name) {
      return after.find(name) != nullptr && !is_there(staged, name);  // of another set
    });
    // The key of the new files is the key of the old ones, wherever a manifest of earlier versions lists it.
    std::stable_partition(old.begin(), old.end(),
                          [&](const std::string& name) { return name == after.files.front().name; });
    // Whatever lies under these names is listed by the manifest beside it, at every moment.
    remove_set(folder, old);
    publish_names(staged, folder, {Manifest::kFile});
  }
  std::vector<std::string> names = listed_in(manifest_of(folder), staged);
  if (names.empty()) return;
  publish_names(staged, folder, {names.begin() + 1, names.end()});
  publish_names(staged, folder, {names.front()});
}

// Whether an interrupted save has left files in `staged` that, with those that are in place, are all that its
// manifest lists. A manifest that was being written is not one.
bool is_unfinished(const std::string& folder, const std::string& staged) {
  const Manifest manifest = readable_manifest(is_there(staged, Manifest::kFile) ? staged : folder);
  const auto left = listed_in(manifest, staged).size(), placed = listed_in(manifest, folder).size();
  return left > 0 &&
         std::all_of(manifest.files.begin(), manifest.files.end(),
                     [&](const ManifestEntry& e) {
                       return node_at(join(staged, e.name)) == Node::file ||
                              node_at(join(folder, e.name)) == Node::file;
                     }) &&
         placed < manifest.files.size();
}

// The staging folder of a save that was interrupted after the first removal; empty: none.
std::string unfinished_save(const std::string& folder) {
  const Manifest before = readable_manifest(folder);
  if (!before.files.empty() && listed_in(before, folder).size() == before.files.size()) return "";
  for (const std::string& name : find_leftovers(folder)) {
    if (is_unfinished(folder, join(folder, name))) return join(folder, name);
  }
  return "";
}

// Ends an interrupted save of the folder, if this process may write there.
void try_to_finish(const std::string& folder) {
  try {
    if (unfinished_save(folder).empty()) return;
    const FolderLock lock(folder);
    finish_files(folder);
    remove_leftovers(folder);
  } catch (const std::exception&) {
    // Whoever asked says what is missing.
  }
}

// Why a folder with a manifest, or with files that were to be put in place, lacks the file `key`.
std::string reason_of_absence(const std::string& folder, const std::string& key) {
  if (const std::string staged = unfinished_save(folder); !staged.empty()) {
    return concat("saving it was interrupted; the complete new files are in ", quote(staged, 400),
                  ", save it again or move them from there");
  }
  const bool was_there = readable_manifest(folder).find(key) != nullptr;
  if (!was_there && key == kTokenizerFiles.front() && is_there(folder, kModelFiles.front())) {
    return concat("it holds a model and no tokenizer; save one there, tokenizer.save(folder), or copy ", key);
  }
  if (!was_there && key == kModelFiles.front() && is_there(folder, kTokenizerFiles.front())) {
    return "it holds a tokenizer and no model; save one there, model.save(folder)";
  }
  return "saving it was interrupted; save it again";
}

}  // namespace

bool is_read_from_folders(std::string_view name) {
  constexpr auto kEndings = std::to_array<std::string_view>(
      {".safetensors", ".json", ".bin", ".model", ".jinja", ".png", ".ppm", "vocab.txt", "merges.txt"});
  return std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

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
  Staging staging(folder);
  DirectoryWriter writer(staging.path(), folder);
  fill(writer);
  for (const ManifestEntry& entry : writer.manifest().files) {
    MH_CHECK(contains(set, entry.name), ValueError, "save: ", quote(entry.name),
             " is not a file of this set");
  }
  MH_CHECK(writer.manifest().find(set.front()) != nullptr, ValueError, "save: ", set.front(), " is missing");
  writer.finish(run, others(manifest_of(folder), set), set.front());
  staging.keep(true);
  take_place(folder, staging.path());
  staging.keep(false);
}

void finish_files(const std::string& folder) {
  const std::string staged = unfinished_save(folder);
  if (staged.empty()) return;
  refuse_foreign("save", folder, foreign_files(folder, listed_in(manifest_of(folder), folder), Look::sizes));
  take_place(folder, staged);
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
  finish_files(folder);
  remove_leftovers(folder);
  replace_files(folder, set, fill);
}

FileSet model_folder_files(const std::string& folder) {
  FileSet set = kModelFolderFiles;
  for (const char* name : {kGenerationFile, "README.md"}) {
    if (foreign_files(folder, {name}, Look::bytes).empty()) set.emplace_back(name);
  }
  return set;
}

bool holds_other(const std::string& folder, const std::string& name, std::string_view content) {
  if (!is_there(folder, name) || !foreign_files(folder, {name}, Look::sizes).empty()) return false;
  return read_file(join(folder, name), uint64_t{1} << 32, Links::refuse) != content;
}

std::unique_ptr<FolderLock> lock_folder(const std::string& folder, const std::function<void()>& check) {
  // Whoever holds the folder may be writing: a half-written folder would look like a foreign one.
  if (!is_held(folder)) check();
  return std::make_unique<FolderLock>(folder);
}

void refuse_foreign(const char* who, const std::string& folder, const std::vector<std::string>& foreign) {
  if (foreign.empty()) return;
  throw ValueError(concat(who, ": nothing was written to folder ", quote(folder, 400), ", because ",
                          Enumeration(foreign, 3), "; move ", foreign.size() == 1 ? "it" : "them",
                          " away or choose another folder"));
}

void check_complete(const std::string& folder, const std::string& key) {
  std::error_code error;
  MH_CHECK(node_at(folder) != Node::absent, IoError, "there is no folder ", quote(folder, 400),
           ": models are read from the disk, and nothing is downloaded; get the files of a model of the "
           "Hugging Face hub with 'hf download OWNER/NAME --local-dir FOLDER' and pass FOLDER");
  if (!fs::is_directory(folder, error) || is_there(folder, key)) return;
  const std::string what = concat("folder ", quote(folder, 400), " has no ", key, ": ");
  MH_CHECK(!is_held(folder), IoError, what, "another process is writing it");
  try_to_finish(folder);
  if (is_there(folder, key)) return;
  MH_CHECK(!is_there(folder, kRunFile), FormatError, what,
           "the training run in it is unfinished; continue with --resume");
  MH_CHECK(!is_there(folder, Manifest::kFile) && unfinished_save(folder).empty(), FormatError, what,
           reason_of_absence(folder, key));
}

}  // namespace multihead::io
