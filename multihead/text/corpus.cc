#include "multihead/text/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/rng.h"
#include "multihead/text/file-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

// Tells the batches of one seed from the dropout and weights drawn under it.
constexpr uint64_t kDataStream = 0x6461746162617463u;  // "databatc"
constexpr size_t kChunk = size_t{1} << 24;

/// "offset 17 (line 3)".
std::string place(std::string_view text, size_t offset) {
  return concat("offset ", offset, " (line ", 1 + std::count(text.begin(), text.begin() + offset, '\n'), ")");
}

size_t character_start(std::string_view text, size_t at) {
  for (size_t back = 0; back < 4 && back <= at && at < text.size(); ++back)
    if ((text[at - back] & 0xC0) != 0x80) return at - back;
  return at;  // not UTF-8 here: no character to keep whole
}

}  // namespace

std::string read_text(const std::filesystem::path& path, const ReadOptions& options) {
  std::string text = read_file(path);
  const std::string name = path.string();
  MH_CHECK(!text.empty(), FormatError, name, ": the file is empty");
  MH_CHECK(!text.starts_with("\xFF\xFE") && !text.starts_with("\xFE\xFF"), FormatError, name,
           ": this is UTF-16; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)");
  if (const size_t nul = text.find('\0'); nul != text.npos)
    throw FormatError(concat(name, ": this is not text: NUL byte at ", place(text, nul)));
  if (options.require_utf8) {
    if (const size_t bad = find_invalid_utf8(text); bad != text.npos)
      throw FormatError(concat(name, ": not valid UTF-8: byte ",
                               in_quotes(std::string_view(text).substr(bad, 1)), " at ", place(text, bad)));
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.erase(0, 3);
    MH_CHECK(!text.empty(), FormatError, name, ": the file is empty but for a byte order mark");
  }
  return text;
}

ParallelText read_pairs(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  ParallelText pairs;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++line_number;
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    MH_CHECK(tabs == 1, FormatError, path.string(), ": line ", line_number,
             " must have two columns, source TAB target, got ", line.empty() ? 0 : tabs + 1);
    const size_t tab = line.find('\t');
    MH_CHECK(tab > 0 && tab + 1 < line.size(), FormatError, path.string(), ": line ", line_number,
             " has an empty column");
    pairs.source.emplace_back(line.substr(0, tab));
    pairs.target.emplace_back(line.substr(tab + 1));
    begin = end + 1;
  }
  return pairs;
}

TextSplit split_corpus(std::string_view text, const SplitOptions& options) {
  MH_CHECK(options.validation > 0 && options.validation < 1, ValueError,
           "split_corpus: validation must be a share in (0, 1), got ", options.validation);
  MH_CHECK(options.blocks >= 1, ValueError, "split_corpus: blocks must be >= 1, got ", options.blocks);
  TextSplit split;
  const auto size = static_cast<double>(text.size()), blocks = static_cast<double>(options.blocks);
  const auto cut = [&](double position) {
    return character_start(text, std::min(text.size(), static_cast<size_t>(std::llround(position))));
  };
  for (int64_t i = 0; i < options.blocks; ++i) {
    const auto block = static_cast<double>(i);
    const size_t begin = cut(size * block / blocks);
    const size_t middle = cut(size * (block + 1 - options.validation) / blocks);
    const size_t end = cut(size * (block + 1) / blocks);
    if (middle > begin) split.train.push_back(text.substr(begin, middle - begin));
    if (end > middle) split.validation.push_back(text.substr(middle, end - middle));
  }
  const auto count = static_cast<size_t>(options.blocks);
  MH_CHECK(split.train.size() == count && split.validation.size() == count, ValueError,
           "split_corpus: a text of ", text.size(), " bytes is too short for ", options.blocks,
           " blocks with a validation share of ", options.validation);
  return split;
}

std::vector<int32_t> encode_all(const Tokenizer& tokenizer, std::span<const std::string_view> texts) {
  std::vector<int32_t> all;
  for (std::string_view text : texts) {
    std::vector<int32_t> ids = tokenizer.encode(text, {.add_template = false});
    if (all.empty()) {
      all = std::move(ids);
    } else {
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  return all;
}

int64_t write_tokens(const std::filesystem::path& path, std::string_view text, const Tokenizer& tokenizer) {
  MH_CHECK(!text.empty(), ValueError, "write_tokens: text must not be empty");
  TokenFileWriter writer(path, tokenizer.vocab_size(), tokenizer.fingerprint());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.size() - begin <= kChunk ? text.size() : tokenizer.safe_cut(text, begin + kChunk);
    writer.append(tokenizer.encode(text.substr(begin, end - begin), {.add_template = false}));
    begin = end;
  }
  return writer.finish();
}

TokenDataset::TokenDataset(TokenView tokens, const DatasetOptions& options)
    : tokens_(tokens), options_(options) {
  MH_CHECK(options.batch >= 1, ValueError, "TokenDataset: batch must be >= 1, got ", options.batch);
  MH_CHECK(options.context >= 1, ValueError, "TokenDataset: context must be >= 1, got ", options.context);
  MH_CHECK(options.batch <= (int64_t{1} << 40) / options.context, ValueError, "TokenDataset: batch ",
           options.batch, " x context ", options.context, " is too large");
  MH_CHECK(tokens.size() > options.context, ValueError, "TokenDataset: the text has ", tokens.size(),
           " tokens; one window of context ", options.context, " needs ", options.context + 1);
}

void TokenDataset::check_room(std::span<int32_t> tokens, std::span<int32_t> targets) const {
  const auto need = static_cast<size_t>(options_.batch * options_.context);
  MH_CHECK(tokens.size() == need && targets.size() == need, ValueError,
           "TokenDataset: tokens and targets must hold batch x context = ", need, " ids, got ", tokens.size(),
           " and ", targets.size());
}

int64_t TokenDataset::random(int64_t step, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  check_room(tokens, targets);
  MH_CHECK(step >= 0, ValueError, "TokenDataset: step must be >= 0, got ", step);
  const auto windows = static_cast<uint64_t>(tokens_.size() - options_.context);
  const RandomStream stream{.seed = options_.seed, .stream = kDataStream};
  for (int64_t row = 0; row < options_.batch; ++row) {
    const auto draw = stream.block(static_cast<uint64_t>(step) * static_cast<uint64_t>(options_.batch) + row);
    // 64 random bits scaled to the number of windows: uniform to 1 part in 2^64 / windows.
    const uint64_t bits = uint64_t{draw[1]} << 32 | draw[0];
    const auto begin = static_cast<int64_t>(static_cast<unsigned __int128>(bits) * windows >> 64);
    tokens_.copy(begin, tokens.subspan(row * options_.context, options_.context));
    tokens_.copy(begin + 1, targets.subspan(row * options_.context, options_.context));
  }
  return options_.batch;
}

int64_t TokenDataset::sequential_batches() const {
  const int64_t per_batch = options_.batch * options_.context;
  return (tokens_.size() - 2) / per_batch + 1;  // size - 1 targets, rounded up
}

int64_t TokenDataset::sequential(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  check_room(tokens, targets);
  MH_CHECK(index >= 0 && index < sequential_batches(), ValueError,
           "TokenDataset: batch index must be in [0, ", sequential_batches(), "), got ", index);
  const int64_t context = options_.context;
  const int64_t first = index * options_.batch * context;
  const int64_t left = std::min(tokens_.size() - 1 - first, options_.batch * context);
  const int64_t rows = (left - 1) / context + 1;
  tokens_.copy(first, tokens.first(left));
  tokens_.copy(first + 1, targets.first(left));
  std::fill(tokens.begin() + left, tokens.end(), 0);
  std::fill(targets.begin() + left, targets.end(), kIgnoreTarget);
  return rows;
}

namespace {

template <class Fill>
TokenBatch make_batch(const DatasetOptions& options, Fill fill) {
  TokenBatch batch;
  batch.context = options.context;
  batch.tokens.resize(options.batch * options.context);
  batch.targets.resize(batch.tokens.size());
  batch.rows = fill(batch.tokens, batch.targets);
  batch.tokens.resize(batch.rows * options.context);
  batch.targets.resize(batch.tokens.size());
  return batch;
}

}  // namespace

TokenBatch TokenDataset::random(int64_t step) const {
  return make_batch(options_, [&](auto& tokens, auto& targets) { return random(step, tokens, targets); });
}
TokenBatch TokenDataset::sequential(int64_t index) const {
  return make_batch(options_,
                    [&](auto& tokens, auto& targets) { return sequential(index, tokens, targets); });
}

}  // namespace multihead::text
