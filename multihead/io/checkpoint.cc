#include "multihead/io/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/io/directory.h"

namespace multihead::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";

// Only the spelling checkpoint_path() gives, so that one step has one folder.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || step < 0 || std::to_string(step) != digits) return std::nullopt;
  return step;
}

// Whatever bears the name of a checkpoint, by ascending step.
std::map<int64_t, std::string> checkpoint_names(const std::string& folder) {
  std::map<int64_t, std::string> names;
  for (const std::string& name : names_in(folder)) {
    if (const auto step = step_of(name)) names[*step] = join(folder, name);
  }
  return names;
}

bool is_safetensors(const std::string& name) { return name.ends_with(".safetensors"); }

CheckpointInfo inspect(int64_t step, const std::string& path) {
  CheckpointInfo info = {step, path, "", ""};
  try {
    info.run = read_manifest(path).run;
    verify_directory_sizes(path);
  } catch (const std::runtime_error& error) {
    info.problem = error.what();
  }
  return info;
}

bool verifies(const CheckpointInfo& info) {
  if (!info.problem.empty()) return false;
  try {
    verify_directory(info.path);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace

std::string checkpoint_path(const std::string& folder, int64_t step) {
  MH_CHECK(step >= 0, ValueError, "checkpoint: step must be >= 0, got ", step);
  return (fs::path(folder) / concat(kPrefix, step)).string();
}

void write_contents(DirectoryWriter& writer, const CheckpointContents& contents) {
  for (const auto& [name, tensors] : contents.tensors) {
    MH_CHECK(is_safetensors(name), ValueError, "checkpoint: tensors go to *.safetensors, got ", quote(name));
    writer.write(name, [&tensors = tensors](FileWriter& file) { write_safetensors(file, tensors); });
  }
  for (const auto& [name, bytes] : contents.files) {
    MH_CHECK(!is_safetensors(name), ValueError, "checkpoint: ", quote(name), " is a name for tensors");
    writer.write(name, bytes);
  }
}

void write_model(DirectoryWriter& writer, const CheckpointContents& contents, const FileSet& set) {
  CheckpointContents own = contents;
  std::erase_if(own.files, [&](const auto& file) {
    const bool may_be_others = file.first == kGenerationFile || file.first == "README.md";
    return may_be_others && std::ranges::find(set, file.first) == set.end();
  });
  write_contents(writer, own);
}

std::string save_checkpoint(const std::string& folder, int64_t step, const CheckpointContents& contents,
                            const std::string& run) {
  const std::string path = checkpoint_path(folder, step);
  write_directory_atomically(
      path, [&](DirectoryWriter& writer) { write_contents(writer, contents); }, run);
  return path;
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointInfo> checkpoints;
  for (const auto& [step, path] : checkpoint_names(folder)) {
    std::error_code ignored;
    if (fs::exists(fs::path(path) / Manifest::kFile, ignored)) checkpoints.push_back(inspect(step, path));
  }
  return checkpoints;
}

std::vector<std::string> foreign_checkpoints(const std::string& folder, const std::string& run) {
  std::vector<std::string> found;
  for (const auto& [step, path] : checkpoint_names(folder)) {
    const std::string reason = foreign_directory(path, run);
    if (!reason.empty()) found.push_back(concat(quote(concat(kPrefix, step)), " ", reason));
  }
  return found;
}

std::optional<CheckpointInfo> newest_checkpoint(const std::string& folder, OnDamage damage) {
  std::vector<CheckpointInfo> checkpoints = list_checkpoints(folder);
  while (damage == OnDamage::fall_back && !checkpoints.empty() && !verifies(checkpoints.back()))
    checkpoints.pop_back();
  if (checkpoints.empty()) return std::nullopt;
  MH_CHECK(checkpoints.back().problem.empty(), FormatError, "checkpoint ",
           quote(checkpoints.back().path, 400), " is corrupt: ", checkpoints.back().problem);
  return checkpoints.back();
}

void verify_checkpoint(const std::string& path) { verify_directory(path); }

CheckpointContents load_checkpoint(const std::string& path) {
  verify_directory(path);
  CheckpointContents contents;
  for (const ManifestEntry& entry : read_manifest(path).files) {
    const std::string file = (fs::path(path) / entry.name).string();
    if (is_safetensors(entry.name)) {
      contents.tensors[entry.name] = load_safetensors(file);
    } else {
      contents.files[entry.name] = read_file(file, entry.bytes);
    }
  }
  return contents;
}

std::vector<int64_t> prune_checkpoints(const std::string& folder, const PruneOptions& options) {
  MH_CHECK(options.keep_newest >= 1, ValueError, "checkpoint: keep_newest must be >= 1, got ",
           options.keep_newest);
  std::vector<CheckpointInfo> complete = list_checkpoints(folder);
  std::erase_if(complete, [&](const CheckpointInfo& info) {
    return !info.problem.empty() || !foreign_directory(info.path, options.run).empty();
  });
  const auto surplus = static_cast<int64_t>(complete.size()) - options.keep_newest;
  std::vector<int64_t> deleted;
  for (int64_t i = 0; i < surplus; ++i) {
    const CheckpointInfo& info = complete[static_cast<size_t>(i)];
    if (std::find(options.steps.begin(), options.steps.end(), info.step) != options.steps.end()) continue;
    remove_directory_atomically(info.path, options.run);
    deleted.push_back(info.step);
  }
  return deleted;
}

}  // namespace multihead::io
