// Files that are read together and therefore change together.
//
// A folder's manifest.json lists what this library wrote there. Only a file that is listed and unchanged
// since may be replaced or deleted. The first file of a set is its key: nothing loads without it. It goes
// first and comes back last, so at every moment the set is the old one, the new one, or not to be loaded:
//
//   stage the new files | remove the key | remove the rest | new manifest | new files | new key
//
// and each "|" is on the disk before the next step begins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "multihead/io/directory.h"

namespace multihead::io {

/// Names; the key in front.
using FileSet = std::vector<std::string>;

inline const FileSet kModelFiles = {"config.json", "model.safetensors"};
inline const FileSet kTokenizerFiles = {"tokenizer.json", "tokenizer_config.json", "source_tokenizer.json"};
/// A model with its tokenizers.
inline const FileSet kModelFolderFiles = {"config.json", "model.safetensors", "tokenizer.json",
                                          "tokenizer_config.json", "source_tokenizer.json"};

/// The file with what a training run was asked for, beside the model: the mark of its folder.
inline constexpr const char* kRunFile = "train_config.json";

enum class Look : uint8_t { sizes, bytes };
/// What of a set (and manifest.json) must not be touched, each with the reason; empty: all is absent or ours.
/// `bytes` reads every one, `sizes` is cheap.
std::vector<std::string> foreign_files(const std::string& folder, const FileSet& set, Look look);

/// Replaces the whole set by what `fill` writes: files of it that are not written go, too. The caller holds
/// the FolderLock. `run`: as in Manifest. Throws    ValueError if one of the files is somebody else's, or
/// `fill` writes one outside the set; IoError;
///           what `fill` throws. Nothing is changed then, unless the disk fails in the middle of the renames.
void replace_files(const std::string& folder, const FileSet& set, const FillFolder& fill,
                   const std::string& run = "");
/// Deletes the set, key first, under the same rule.
void remove_files(const std::string& folder, const FileSet& set);

/// Lists the files of the set that are there in a manifest of no run, unless there is one: for folders of
/// earlier versions, which had none. The caller knows that they are ours.
void adopt_files(const std::string& folder, const FileSet& set);

/// Locks the folder, removes what killed writers left there, and replaces the set. What `foreign_files` names
/// is refused before the first byte is written.
void save_files(const std::string& folder, const FileSet& set, const FillFolder& fill);

/// Holds the folder. `check` is asked before the first byte is written, unless somebody holds it already; ask
/// again what must be sure, now that nobody else writes. Throws what it and FolderLock throw.
std::unique_ptr<FolderLock> lock_folder(const std::string& folder, const std::function<void()>& check);

/// Throws ValueError "who: folder "x" holds …, …; move … away or choose another folder" unless empty.
void refuse_foreign(const char* who, const std::string& folder, const std::vector<std::string>& foreign);

/// Throws FormatError if `key` is missing where an interrupted save or run has left its traces; says what to
/// do.
void check_complete(const std::string& folder, const std::string& key);

}  // namespace multihead::io
