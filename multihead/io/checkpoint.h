// Checkpoints of a training run: folder/checkpoint-<step>, complete or absent.
//
//   checkpoint-250/
//     model.safetensors      optimizer.safetensors      trainer_state.json      …      manifest.json
//
// The trainer decides what goes into the files. Callers of functions that change the folder must hold its
// FolderLock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "multihead/io/directory.h"
#include "multihead/io/file_set.h"
#include "multihead/io/safetensors.h"

namespace multihead::io {

struct CheckpointContents {
  std::map<std::string, TensorMap> tensors = {};  ///< by file name: "model.safetensors"
  std::map<std::string, std::string> files = {};  ///< by file name: "trainer_state.json"
};

/// Tensors first. Throws ValueError (tensors outside *.safetensors, bytes in one), IoError.
void write_contents(DirectoryWriter& writer, const CheckpointContents& contents);
/// The same of a model's folder, whose set is of model_folder_files(): others' defaults of generation stay.
void write_model(DirectoryWriter& writer, const CheckpointContents& contents, const FileSet& set);

struct CheckpointInfo {
  int64_t step = 0;
  std::string path;
  std::string problem;   ///< empty: complete. Otherwise which file is missing or has the wrong size
  std::string run = {};  ///< the run that wrote it; empty: none, or a corrupt manifest
};

/// "folder/checkpoint-<step>"
std::string checkpoint_path(const std::string& folder, int64_t step);

/// Writes checkpoint-<step>, replacing one of the same step and run. Returns its path.
/// Throws    ValueError (also if something of that name is not this run's), IoError (disk full, read-only …);
///           older checkpoints stay intact
std::string save_checkpoint(const std::string& folder, int64_t step, const CheckpointContents& contents,
                            const std::string& run = "");

/// Checkpoints by ascending step, corrupt ones included; leftovers of killed runs and folders without a
/// manifest are ignored. Empty if there is no such folder. Checks manifests and sizes, not every byte.
std::vector<CheckpointInfo> list_checkpoints(const std::string& folder);

/// Names checkpoint-<step> that are not of this run, each with the reason: "\"checkpoint-3\" is a pipe, …".
std::vector<std::string> foreign_checkpoints(const std::string& folder, const std::string& run);

enum class OnDamage {
  fail,      ///< the newest checkpoint must be complete: FormatError names the file that is not
  fall_back  ///< the newest with every byte intact
};
/// The checkpoint to resume from, if any.
std::optional<CheckpointInfo> newest_checkpoint(const std::string& folder, OnDamage damage = OnDamage::fail);

/// Reads every byte. Throws FormatError naming the corrupt file, IoError.
void verify_checkpoint(const std::string& path);

/// Verifies, then loads. *.safetensors become tensors, other files bytes. Throws FormatError, IoError.
CheckpointContents load_checkpoint(const std::string& path);

struct PruneOptions {
  int64_t keep_newest = 2;          ///< at least 1
  std::vector<int64_t> steps = {};  ///< also kept, such as the best
  std::string run = {};             ///< whose checkpoints
};
/// Deletes the run's other complete checkpoints, oldest first; never corrupt ones, those of another run or
/// anything this library did not write. Returns the deleted steps. Throws ValueError,
/// IoError.
std::vector<int64_t> prune_checkpoints(const std::string& folder, const PruneOptions& options);

}  // namespace multihead::io
