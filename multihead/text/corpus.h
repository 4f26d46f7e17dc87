// Text for training: read it, split it, keep its tokens in a file, draw batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/text/token_file.h"
#include "multihead/text/tokenizer.h"

namespace multihead::text {

struct ReadOptions {
  /// Byte-level BPE takes any bytes; then a file need not be UTF-8.
  bool require_utf8 = true;
};

/// The text of a file, without a UTF-8 byte order mark.
/// Throws: IoError (missing, a directory, unreadable); FormatError (empty, NUL bytes, UTF-16, not UTF-8: with
/// the offset and line).
std::string read_text(const std::filesystem::path& path, const ReadOptions& options = {});

/// Sentence pairs, source[i] with target[i].
struct ParallelText {
  std::vector<std::string> source, target;
};

/// A two-column file: source TAB target on every line ("\r\n" is taken too). Neither side may be empty.
/// Throws: what read_text throws; FormatError naming the line that has another number of columns or an empty
/// one.
ParallelText read_pairs(const std::filesystem::path& path);

struct SplitOptions {
  double validation = 0.1;  // share of the text, in (0, 1)
  /// 1: the last part of the text. n: the text is cut into n equal blocks and the last part of each is held
  /// out, for corpora whose end differs from their beginning.
  int64_t blocks = 1;
};

struct TextSplit {
  std::vector<std::string_view> train, validation;  // views of the text, in its order
};

/// Training and validation text by whole stretches, never by line: neighbouring lines tell of each other.
/// Cuts fall between characters. Throws ValueError if the options are out of range or a side would be empty.
TextSplit split_corpus(std::string_view text, const SplitOptions& options = {});

/// encode() over several stretches, one behind the other.
std::vector<int32_t> encode_all(const Tokenizer& tokenizer, std::span<const std::string_view> texts);

/// Encodes a text of any size into a token file, piece by piece in little memory: the ids are those of
/// encode() over the whole text without template. Returns the number of tokens. Throws: IoError, and what
/// read_text throws for bad text.
int64_t write_tokens(const std::filesystem::path& path, std::string_view text, const Tokenizer& tokenizer);

/// What a padded target is marked with; cross-entropy ignores it.
inline constexpr int32_t kIgnoreTarget = -100;

struct DatasetOptions {
  int64_t batch = 16;
  int64_t context = 64;
  uint64_t seed = 0;  // random() only
};

/// One batch: `rows` x `context` tokens and, for each, the token that follows it.
struct TokenBatch {
  int64_t rows = 0, context = 0;
  std::vector<int32_t> tokens, targets;
};

/// Windows of a token sequence; a batch is a function of (options, step) alone, so resuming needs the step
/// only. The tokens must outlive the dataset.
class TokenDataset {
 public:
  /// Throws: ValueError if batch or context is not positive, or the tokens are fewer than context + 1.
  TokenDataset(TokenView tokens, const DatasetOptions& options);

  /// Every row starts at an independent, uniformly drawn offset: Philox under (seed, step, row).
  TokenBatch random(int64_t step) const;
  /// For evaluation: row after row in order, every token but the first the target exactly once. The last
  /// batch may have fewer rows, and its last row is filled with token 0 and target kIgnoreTarget.
  TokenBatch sequential(int64_t index) const;
  /// Batches sequential() has.
  int64_t sequential_batches() const;

  /// As above into memory of the caller (batch x context each); returns the rows.
  int64_t random(int64_t step, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  int64_t sequential(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const;

  const DatasetOptions& options() const { return options_; }
  int64_t size() const { return tokens_.size(); }

 private:
  void check_room(std::span<int32_t> tokens, std::span<int32_t> targets) const;

  TokenView tokens_;
  DatasetOptions options_;
};

}  // namespace multihead::text
