#include "multihead/train/data/pairs.h"

#include <algorithm>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/text/languages.h"
#include "multihead/train/data/windows.h"

namespace multihead::train {
namespace {

Tensor padded(int64_t rows, int64_t length, int64_t value) {
  return Tensor::full({rows, length}, static_cast<double>(value), Dtype::i32);
}

}  // namespace

std::vector<TokenPair> encode_pairs(const text::ParallelText& text, const text::Tokenizer& source,
                                    const text::Tokenizer& target, const PairTokens& tokens) {
  std::vector<TokenPair> pairs;
  for (size_t i = 0; i < text.source.size(); ++i) {
    pairs.push_back({text::encode_source(source, text.source[i], tokens.eos),
                     text::encode_target(target, text.target[i], tokens.eos)});
  }
  return pairs;
}

PairBatch make_pair_batch(const std::vector<TokenPair>& pairs, const std::vector<int64_t>& rows,
                          const models::Seq2SeqConfig& config) {
  size_t source_length = 1, target_length = 1;
  for (const int64_t row : rows) {
    const TokenPair& pair = pairs[static_cast<size_t>(row)];
    source_length = std::max(source_length, pair.source.size());
    target_length = std::max(target_length, pair.target.size());
  }
  const auto count = static_cast<int64_t>(rows.size());
  PairBatch batch;
  batch.source.tokens = padded(count, static_cast<int64_t>(source_length), config.pad_id);
  batch.input.tokens = padded(count, static_cast<int64_t>(target_length), config.pad_id);
  batch.labels = padded(count, static_cast<int64_t>(target_length), text::kIgnoreTarget);
  for (size_t r = 0; r < rows.size(); ++r) {
    const TokenPair& pair = pairs[static_cast<size_t>(rows[r])];
    std::copy(pair.source.begin(), pair.source.end(),
              batch.source.tokens.data<int32_t>() + r * source_length);
    int32_t* input = batch.input.tokens.data<int32_t>() + r * target_length;
    input[0] = static_cast<int32_t>(config.decoder_start_id);
    std::copy(pair.target.begin(), pair.target.end() - 1, input + 1);
    std::copy(pair.target.begin(), pair.target.end(), batch.labels.data<int32_t>() + r * target_length);
    batch.source.lengths.push_back(static_cast<int64_t>(pair.source.size()));
    batch.tokens += static_cast<int64_t>(pair.target.size());
  }
  return batch;
}

PairBatches::PairBatches(const std::vector<TokenPair>& pairs, const PairBatchOptions& options)
    : options_(options), sorted_(pairs.size()) {
  MH_CHECK(!pairs.empty(), ValueError, "batches: no sentence pairs");
  MH_CHECK(options.batch_tokens > 0 && options.bucket > 0, ValueError,
           "batches: batch_tokens and bucket must be positive, got ", options.batch_tokens, " and ",
           options.bucket);
  const auto width = [&](int64_t i) {
    const int64_t longest = pairs[static_cast<size_t>(sorted_[static_cast<size_t>(i)])].longest();
    return (longest + options_.bucket - 1) / options_.bucket * options_.bucket;
  };
  std::iota(sorted_.begin(), sorted_.end(), 0);
  std::stable_sort(sorted_.begin(), sorted_.end(), [&](int64_t a, int64_t b) {
    const auto bucket = [&](int64_t i) {
      return (pairs[static_cast<size_t>(i)].longest() + options_.bucket - 1) / options_.bucket;
    };
    return bucket(a) < bucket(b);
  });
  // Widths grow, so the last pair of a batch decides how wide it is. Where batches are cut depends on the
  // widths alone: every epoch has as many.
  const auto count = static_cast<int64_t>(sorted_.size());
  cuts_ = {0};
  for (int64_t i = 0; i < count; ++i) {
    if (i == 0 || width(i) != width(i - 1)) buckets_.push_back({i, 0});
    ++buckets_.back().size;
    bucket_of_.push_back(buckets_.size() - 1);
    if (i > cuts_.back() && (i + 1 - cuts_.back()) * width(i) > options_.batch_tokens) cuts_.push_back(i);
  }
  cuts_.push_back(count);
}

std::vector<int64_t> PairBatches::rows(int64_t index) const {
  // Even rounds of permutations shuffle the batches, odd ones the pairs of the buckets.
  const auto round = 2 * static_cast<uint64_t>(index / batches_per_epoch());
  const int64_t batch = permuted(index % batches_per_epoch(), batches_per_epoch(), options_.seed, round);
  std::vector<int64_t> rows;
  for (int64_t i = cuts_[static_cast<size_t>(batch)]; i < cuts_[static_cast<size_t>(batch) + 1]; ++i) {
    const Bucket& bucket = buckets_[bucket_of_[static_cast<size_t>(i)]];
    const int64_t place = bucket.begin + permuted(i - bucket.begin, bucket.size, options_.seed, round + 1);
    rows.push_back(sorted_[static_cast<size_t>(place)]);
  }
  return rows;
}

}  // namespace multihead::train
