// Files that are read, and therefore replaced, together.
//
// A folder's manifest.json lists what this library wrote there. Only a file that is listed and unchanged
// since may be replaced or deleted. The first file of a set is its key: nothing loads without it. It is
// removed first and written last, so at every moment the set is the old one, the new one, or not loadable:
//
//   stage the new files | remove the key | remove the rest | new manifest | new files | new key
//
// Each step is synced before the next. From the first removal on all new files are there, and whoever comes
// next, to read or to write, takes the steps that are left (finish_files): a kill leaves the old set or the
// new one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/io/directory.h"

namespace multihead::io {

/// Names, the key first.
using FileSet = std::vector<std::string>;

inline const FileSet kModelFiles = {"config.json", "model.safetensors"};
inline const FileSet kTokenizerFiles = {"tokenizer.json", "tokenizer_config.json", "source_tokenizer.json"};
/// Files of a model with its tokenizers, of a sentence-transformers model, or of an adapter.
inline const FileSet kModelFolderFiles = {"config.json",
                                          "model.safetensors",
                                          "tokenizer.json",
                                          "tokenizer_config.json",
                                          "source_tokenizer.json",
                                          "modules.json",
                                          "sentence_bert_config.json",
                                          "config_sentence_transformers.json",
                                          "preprocessor_config.json",
                                          "adapter_config.json",
                                          "adapter_model.safetensors"};

/// Whether verbs read a file of this name from a folder: of a model, ours or somebody else's, or an image.
bool is_read_from_folders(std::string_view name);

inline constexpr const char* kGenerationFile = "generation_config.json";
/// The same with the defaults of generation, unless somebody else has put them into the folder: those stay.
FileSet model_folder_files(const std::string& folder);

/// A training run's options, beside the model; identifies the run's folder.
inline constexpr const char* kRunFile = "train_config.json";

enum class Look : uint8_t { sizes, bytes };
/// Files of a set (and manifest.json) that must not be touched, with reasons; empty if all are absent or
/// ours. `bytes` reads every byte, `sizes` is cheap.
std::vector<std::string> foreign_files(const std::string& folder, const FileSet& set, Look look);

/// Replaces the whole set by what `fill` writes; files it does not write are deleted. The caller holds the
/// FolderLock. `run`: as in Manifest.
/// Throws    ValueError if one of the files is foreign or `fill` writes one outside the set; IoError; what
///           `fill` throws. Nothing is changed then, unless the disk fails during the renames.
void replace_files(const std::string& folder, const FileSet& set, const FillFolder& fill,
                   const std::string& run = "");
/// Takes the steps that a killed or failed replace_files() has left. The caller holds the FolderLock. Throws
/// IoError, ValueError if one of the files that have to go is foreign by now.
void finish_files(const std::string& folder);
/// Deletes the set, key first, under the same rule.
void remove_files(const std::string& folder, const FileSet& set);

/// Creates a missing manifest, of no run, that lists the existing files of the set: for folders of earlier
/// versions. The caller knows that they are ours.
void adopt_files(const std::string& folder, const FileSet& set);

/// Locks the folder, ends what killed writers began, removes their leftovers, and replaces the set. Refuses
/// what `foreign_files` names before the first byte is written.
void save_files(const std::string& folder, const FileSet& set, const FillFolder& fill);

/// Whether the folder has a file of this name that we wrote, with other content.
bool holds_other(const std::string& folder, const std::string& name, std::string_view content);

/// Locks the folder. `check` runs before the first byte is written, unless the folder is already locked;
/// repeat it under the lock where it must hold. Throws what it and FolderLock throw.
std::unique_ptr<FolderLock> lock_folder(const std::string& folder, const std::function<void()>& check);

/// Throws ValueError "who: folder "x" holds …, …; move … away or choose another folder" unless empty.
void refuse_foreign(const char* who, const std::string& folder, const std::vector<std::string>& foreign);

/// Ends a save that was interrupted if `key` is missing. Throws, with advice, FormatError where it cannot, or
/// where `key` is missing for another reason that is known; IoError if there is no such folder or another
/// process is writing it.
void check_complete(const std::string& folder, const std::string& key);

}  // namespace multihead::io
