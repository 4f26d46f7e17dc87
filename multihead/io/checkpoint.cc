#include "multihead/io/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "multihead/core/error.h"
#include "multihead/core/json.h"
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

bool is_safetensors(const std::string& name) { return name.ends_with(".safetensors"); }

CheckpointInfo inspect(int64_t step, const std::string& path) {
  CheckpointInfo info = {step, path, ""};
  try {
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

std::string save_checkpoint(const std::string& folder, int64_t step, const CheckpointContents& contents) {
  const std::string path = checkpoint_path(folder, step);
  for (const auto& [name, tensors] : contents.tensors)
    MH_CHECK(is_safetensors(name), ValueError, "checkpoint: tensors go to *.safetensors, got ", quote(name));
  for (const auto& [name, bytes] : contents.files)
    MH_CHECK(!is_safetensors(name), ValueError, "checkpoint: ", quote(name), " is a name for tensors");
  write_directory_atomically(path, [&](DirectoryWriter& writer) {
    for (const auto& [name, tensors] : contents.tensors)
      writer.write(name, [&tensors = tensors](FileWriter& file) { write_safetensors(file, tensors); });
    for (const auto& [name, bytes] : contents.files) writer.write(name, bytes);
  });
  return path;
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointInfo> checkpoints;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::optional<int64_t> step = step_of(it->path().filename().string());
    std::error_code ignored;
    if (!step || !fs::exists(it->path() / Manifest::kFile, ignored)) continue;
    checkpoints.push_back(inspect(*step, it->path().string()));
  }
  MH_CHECK(!error || error == std::errc::no_such_file_or_directory, IoError, "cannot list ",
           quote(folder, 400), ": ", error.message());
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.step < b.step; });
  return checkpoints;
}

std::optional<CheckpointInfo> newest_checkpoint(const std::string& folder, OnDamage damage) {
  std::vector<CheckpointInfo> checkpoints = list_checkpoints(folder);
  while (damage == OnDamage::fall_back && !checkpoints.empty() && !verifies(checkpoints.back()))
    checkpoints.pop_back();
  if (checkpoints.empty()) return std::nullopt;
  MH_CHECK(checkpoints.back().problem.empty(), FormatError, "checkpoint ",
           quote(checkpoints.back().path, 400), " is damaged: ", checkpoints.back().problem);
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
  std::erase_if(complete, [](const CheckpointInfo& info) { return !info.problem.empty(); });
  const auto surplus = static_cast<int64_t>(complete.size()) - options.keep_newest;
  std::vector<int64_t> deleted;
  for (int64_t i = 0; i < surplus; ++i) {
    const CheckpointInfo& info = complete[static_cast<size_t>(i)];
    if (std::find(options.steps.begin(), options.steps.end(), info.step) != options.steps.end()) continue;
    remove_directory_atomically(info.path);
    deleted.push_back(info.step);
  }
  return deleted;
}

}  // namespace multihead::io
