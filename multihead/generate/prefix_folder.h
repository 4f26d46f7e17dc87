// Prompts that were read before, in a folder: their keys and values outlive the process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/models/language_model.h"

namespace multihead {

/// One file per prompt (models/state_file.h), named by the checksums of the model's weights and of the
/// tokens, so that several models may share a folder. Files that are not such prompts are left alone.
class PrefixFolder {
 public:
  /// Creates the folder. The oldest prompts, by use, go when all of them together exceed `bytes`. The
  /// checksum of the weights is computed once, here. Throws IoError.
  PrefixFolder(const std::string& folder, const models::LanguageModel& model,
               uint64_t bytes = uint64_t{1} << 30);

  /// Row `row` becomes what the longest common beginning of `prompt` and a file gives, if that is longer than
  /// `least` tokens; of the prompt all but the last token at most. Returns its length, or 0. A file that
  /// cannot be read or holds a cache of another dtype does not count.
  int64_t recall(const std::vector<int32_t>& prompt, int64_t least, nn::DecodeState& state, int64_t row);
  /// Writes the row, whose first tokens are the prompt, unless a file begins with it already; files of which
  /// the prompt is a continuation go. Rings are not written. Throws IoError.
  void remember(const std::vector<int32_t>& prompt, const nn::DecodeState& state, int64_t row);

 private:
  struct Entry {
    std::string path;
    std::vector<int32_t> tokens;
  };
  std::vector<Entry> entries(const nn::DecodeState& like) const;
  void trim() const;

  std::string folder_, weights_;
  models::LanguageModel model_;
  uint64_t bytes_;
};

}  // namespace multihead
