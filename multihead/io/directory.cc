#include "multihead/io/directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/core/threads/system-inl.h"
#include "multihead/core/version.h"
#include "multihead/io/names-inl.h"
#include "multihead/io/staging.h"

namespace multihead::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "multihead-manifest";

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Json to_json(const Manifest& manifest) {
  Json files = Json::array();
  for (const ManifestEntry& entry : manifest.files) {
    files.push_back(Json::object(
        {{"name", entry.name}, {"bytes", entry.bytes}, {"crc64", checksum_text(entry.checksum)}}));
  }
  Json json = Json::object({{"format", kFormat},
                            {"version", Manifest::kVersion},
                            {"program", concat("multihead ", version())},
                            {"files", files}});
  if (!manifest.run.empty()) json["run"] = manifest.run;
  json["crc64"] = checksum_text(checksum(json.dump()));
  return json;
}

ManifestEntry entry_from_json(const Json& json) {
  ManifestEntry entry;
  entry.name = json.at("name").as_string();
  const int64_t bytes = json.at("bytes").as_int();
  const std::string& digits = json.at("crc64").as_string();
  std::from_chars(digits.data(), digits.data() + digits.size(), entry.checksum, 16);
  MH_CHECK(is_plain_file_name(entry.name), FormatError, "name ", quote(entry.name),
           " is not a plain file name");
  MH_CHECK(bytes >= 0, FormatError, "negative size of ", quote(entry.name));
  MH_CHECK(checksum_text(entry.checksum) == digits, FormatError, "checksum of ", quote(entry.name),
           " is not 16 hexadecimal digits");
  entry.bytes = static_cast<uint64_t>(bytes);
  return entry;
}

Manifest manifest_from_json(Json json) {
  const Json* format = json.find("format");
  MH_CHECK(format != nullptr && *format == Json(kFormat), FormatError, "not a multihead manifest");
  const int64_t version = json.at("version").as_int();
  MH_CHECK(version == Manifest::kVersion, FormatError, "format version ", version, ", this program reads ",
           Manifest::kVersion);
  const std::string sum = json.at("crc64").as_string();
  json.erase("crc64");
  MH_CHECK(checksum_text(checksum(json.dump())) == sum, FormatError, "its own checksum is wrong");
  Manifest manifest;
  if (const Json* run = json.find("run")) manifest.run = run->as_string();
  std::set<std::string> names;
  for (const Json& item : json.at("files").items()) {
    manifest.files.push_back(entry_from_json(item));
    const std::string& name = manifest.files.back().name;
    MH_CHECK(names.insert(name).second, FormatError, "lists ", quote(name), " twice");
  }
  return manifest;
}

FileReader open_listed(const std::string& folder, const ManifestEntry& entry) {
  FileReader file(join(folder, entry.name));
  MH_CHECK(file.size() == entry.bytes, FormatError, "file ", quote(file.path(), 400), " has ", file.size(),
           " bytes, its manifest says ", entry.bytes);
  return file;
}

uint64_t checksum_of(const FileReader& file) {
  Checksum sum;
  std::vector<char> buffer(static_cast<size_t>(std::min<uint64_t>(file.size(), 1 << 18)));
  for (uint64_t at = 0; at < file.size();) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(buffer.size(), file.size() - at));
    file.read(at, buffer.data(), bytes);
    sum.update(buffer.data(), bytes);
    at += bytes;
  }
  return sum.value();
}

// Puts the finished folder in its place; what was there takes its place in the staging folder.
void publish(const Staging& staging, const std::string& name, const std::string& path) {
  const std::string temporary = staging / name;
  if (node_at(path) == Node::absent) {
    if (system_calls().rename(temporary.c_str(), path.c_str()) != 0) fail("rename folder to", path, errno);
  } else if (system_calls().exchange(temporary.c_str(), path.c_str()) != 0) {
    // Not every file system can exchange two names. A crash between the two renames leaves no folder at
    // `path`, but a complete one in the staging folder.
    if (errno != EINVAL && errno != ENOSYS) fail("replace folder", path, errno);
    const std::string old = staging / (name + ".old");
    if (system_calls().rename(path.c_str(), old.c_str()) != 0) fail("move folder", path, errno);
    if (system_calls().rename(temporary.c_str(), path.c_str()) != 0) {
      const int reason = errno;
      system_calls().rename(old.c_str(), path.c_str());
      fail("rename folder to", path, reason);
    }
  }
  flush_folder(parent_of(path));
}

void check_ours(const std::string& path, const std::string& run) {
  const std::string foreign = foreign_directory(path, run);
  MH_CHECK(foreign.empty(), ValueError, "cannot replace ", quote(path, 400), ": it ", foreign,
           "; move it away or choose another folder");
}

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

}  // namespace

std::string join(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

std::string not_a_file(const std::string& path) {
  const Node node = node_at(path);
  return node == Node::absent || node == Node::file ? "" : concat("is ", node_name(node), ", not a file");
}

const ManifestEntry* Manifest::find(std::string_view name) const {
  for (const ManifestEntry& entry : files) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::optional<uint32_t> DirectoryWriter::permissions(const std::string& name) const {
  struct stat status = {};
  if (replaced_.empty() || ::lstat(join(replaced_, name).c_str(), &status) != 0) return {};
  return status.st_mode & 0777;
}

void DirectoryWriter::write(const std::string& name, const FillFile& fill) {
  MH_CHECK(is_plain_file_name(name), ValueError, "directory: ", quote(name), " is not a plain file name");
  MH_CHECK(name != Manifest::kFile, ValueError, "directory: the name ", Manifest::kFile, " is taken");
  for (const ManifestEntry& entry : manifest_.files)
    MH_CHECK(entry.name != name, ValueError, "directory: ", quote(name), " written twice");
  FileWriter file(join(folder_, name), permissions(name));
  fill(file);
  file.finish();
  manifest_.files.push_back({name, file.size(), file.checksum()});
}

void DirectoryWriter::write(const std::string& name, std::string_view content) {
  write(name, [&](FileWriter& file) { file.write(content); });
}

void DirectoryWriter::finish(const std::string& run, const Manifest& kept, const std::string& first) {
  manifest_.run = run;
  std::stable_partition(manifest_.files.begin(), manifest_.files.end(),
                        [&](const ManifestEntry& entry) { return entry.name == first; });
  for (const ManifestEntry& entry : kept.files) {
    if (manifest_.find(entry.name) == nullptr) manifest_.files.push_back(entry);
  }
  FileWriter file(join(folder_, Manifest::kFile), permissions(Manifest::kFile));
  file.write(manifest_text(manifest_));
  file.finish();
  flush_folder(folder_);
}

void write_directory_atomically(const std::string& raw_path, const FillFolder& fill, const std::string& run) {
  const std::string path = without_slash(raw_path), name = name_of(path);
  check_ours(path, run);
  make_folder(parent_of(path));
  const Staging staging(parent_of(path));
  const std::string temporary = staging / name;
  if (system_calls().mkdir(temporary.c_str(), 0777) != 0) fail("create folder", temporary, errno);
  DirectoryWriter writer(temporary);
  fill(writer);
  writer.finish(run);
  publish(staging, name, path);
}

void remove_directory_atomically(const std::string& raw_path, const std::string& run) {
  const std::string path = without_slash(raw_path);
  check_ours(path, run);
  const Staging staging(parent_of(path));
  const std::string temporary = staging / name_of(path);
  if (system_calls().rename(path.c_str(), temporary.c_str()) != 0) fail("remove folder", path, errno);
  flush_folder(parent_of(path));
}

std::string foreign_directory(const std::string& path, const std::string& run) {
  const Node node = node_at(path);
  if (node == Node::absent) return "";
  if (node != Node::folder) return concat("is ", node_name(node), ", not a folder");
  const Node manifest = node_at(join(path, Manifest::kFile));
  if (manifest == Node::absent) return "was not written by multihead";
  if (manifest != Node::file) return concat("has ", node_name(manifest), " for a ", Manifest::kFile);
  try {
    const std::string theirs = read_manifest(path).run;
    return theirs == run ? "" : theirs.empty() ? "belongs to no run" : "belongs to another run";
  } catch (const FormatError& error) {
    return concat("cannot be identified as multihead's: ", error.what());
  }
}

Manifest read_manifest(const std::string& path) {
  const std::string file = join(path, Manifest::kFile);
  const std::string text = read_file(file, uint64_t{16} << 20, Links::refuse);
  try {
    return manifest_from_json(Json::parse(text));
  } catch (const FormatError& error) {
    throw FormatError(concat("file ", quote(file, 400), " is corrupt: ", error.what()));
  }
}

void verify_directory_sizes(const std::string& path) {
  for (const ManifestEntry& entry : read_manifest(path).files) open_listed(path, entry);
}

void verify_directory(const std::string& path) {
  for (const ManifestEntry& entry : read_manifest(path).files) {
    const FileReader file = open_listed(path, entry);
    MH_CHECK(checksum_of(file) == entry.checksum, FormatError, "file ", quote(file.path(), 400),
             " is corrupt: its checksum does not match the manifest");
  }
}

std::string manifest_text(const Manifest& manifest) { return to_json(manifest).dump(2) + "\n"; }

ManifestEntry entry_of(const std::string& folder, const std::string& name) {
  const FileReader file(join(folder, name), Links::refuse);
  return {name, file.size(), checksum_of(file)};
}

bool is_unchanged(const std::string& path, const ManifestEntry& entry) {
  const FileReader file(path, Links::refuse);
  return file.size() == entry.bytes && checksum_of(file) == entry.checksum;
}

}  // namespace multihead::io
