// Checkpoints of a training run: folder/checkpoint-<step>, complete or absent.
//
//   checkpoint-250/
//     model.safetensors      optimizer.safetensors      trainer_state.json      …      manifest.json
//
// What goes into the files is the trainer's business. The functions that change the folder expect the caller
// to hold its FolderLock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "multihead/io/directory.h"
#include "multihead/io/safetensors.h"

namespace multihead::io {

struct CheckpointContents {
  std::map<std::string, TensorMap> tensors = {};  ///< by file name: "model.safetensors"
  std::map<std::string, std::string> files = {};  ///< by file name: "trainer_state.json"
};

/// Tensors first. Throws ValueError (tensors that do not go to *.safetensors, bytes that do), IoError.
void write_contents(DirectoryWriter& writer, const CheckpointContents& contents);

struct CheckpointInfo {
  int64_t step = 0;
  std::string path;
  std::string problem;   ///< empty: complete. Otherwise which file is missing or has the wrong size
  std::string run = {};  ///< the run that wrote it; empty: none, or its manifest is damaged
};

/// "folder/checkpoint-<step>"
std::string checkpoint_path(const std::string& folder, int64_t step);

/// Writes checkpoint-<step>, replacing one of the same step and run. Returns its path.
/// Throws    ValueError (also if something of that name is not this run's), IoError (disk full, read-only …);
///           older checkpoints are untouched then
std::string save_checkpoint(const std::string& folder, int64_t step, const CheckpointContents& contents,
                            const std::string& run = "");

/// Checkpoints by ascending step, also damaged ones; leftovers of killed runs and folders without a manifest
/// are passed over. Empty if there is no such folder. Looks at manifests and sizes, not at every byte.
std::vector<CheckpointInfo> list_checkpoints(const std::string& folder);

/// Names checkpoint-<step> that are not of this run, each with the reason: "\"checkpoint-3\" is a pipe, …".
std::vector<std::string> foreign_checkpoints(const std::string& folder, const std::string& run);

enum class OnDamage {
  fail,      ///< the newest checkpoint must be complete: FormatError names the file that is not
  fall_back  ///< the newest whose every byte is right, past damaged ones
};
/// The checkpoint to resume from; none if there is none at all.
std::optional<CheckpointInfo> newest_checkpoint(const std::string& folder, OnDamage damage = OnDamage::fail);

/// Reads every byte. Throws FormatError naming the damaged file, IoError.
void verify_checkpoint(const std::string& path);

/// Verifies, then loads. *.safetensors become tensors, all else bytes. Throws FormatError, IoError.
CheckpointContents load_checkpoint(const std::string& path);

struct PruneOptions {
  int64_t keep_newest = 2;          ///< at least 1
  std::vector<int64_t> steps = {};  ///< kept besides, such as the best
  std::string run = {};             ///< whose checkpoints
};
/// Deletes the other complete checkpoints of the run, oldest first; never damaged ones, never those of
/// another run and never anything this library did not write. Returns the deleted steps. Throws ValueError,
/// IoError.
std::vector<int64_t> prune_checkpoints(const std::string& folder, const PruneOptions& options);

}  // namespace multihead::io
