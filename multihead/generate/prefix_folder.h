// Prompts that were read before, in a folder: their keys and values outlive the process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "multihead/models/language_model.h"

namespace multihead {

/// One file per prompt (models/files/state_file.h), named by the checksums of the model and of the tokens, so that
/// several models may share a folder. Files that are not such prompts are left alone. A folder that cannot be
/// read or written is done without.
class PrefixFolder {
 public:
  using OnProblem = std::function<void(const std::string& message)>;

  /// Creates the folder. The oldest prompts, by use, go when all of them together exceed `bytes`. The
  /// checksum of the model is computed once, here. The first time that the folder fails, `on_problem` hears
  /// why; after that, nothing is written any more.
  PrefixFolder(const std::string& folder, const models::LanguageModel& model,
               uint64_t bytes = uint64_t{1} << 30, OnProblem on_problem = {});

  /// Row `row` becomes what the longest common beginning of `prompt` and a file gives, if that is longer than
  /// `least` tokens; of the prompt all but the last token at most. Returns its length, or 0. A file that
  /// cannot be read or holds a cache of another dtype does not count.
  int64_t recall(const std::vector<int32_t>& prompt, int64_t least, nn::DecodeState& state, int64_t row);
  /// Writes the row, whose first tokens are the prompt, unless a file begins with it already; files of which
  /// the prompt is a continuation go. Rings are not written.
  void remember(const std::vector<int32_t>& prompt, const nn::DecodeState& state, int64_t row);

 private:
  struct Entry {
    std::string path;
    std::vector<int32_t> tokens;
  };
  std::vector<Entry> entries(const nn::DecodeState& like) const;
  void write(const std::vector<int32_t>& prompt, const nn::DecodeState& state, int64_t row) const;
  void trim() const;
  void fail(const std::string& message);

  std::string folder_, checksum_;  // of the model
  models::LanguageModel model_;
  uint64_t bytes_;
  OnProblem on_problem_;
  bool has_failed_ = false;
};

}  // namespace multihead
