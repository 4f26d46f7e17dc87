// Tokenized sentence pairs, and batches of pairs of similar length.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/models/seq2seq.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::train {

/// One sentence pair; each side ends with the end token.
struct TokenPair {
  std::vector<int32_t> source, target;
  int64_t longest() const { return static_cast<int64_t>(std::max(source.size(), target.size())); }
};

/// Special ids, the same on both sides.
struct PairTokens {
  int32_t pad = 0, eos = 0;
};

/// Throws ValueError if a tokenizer cannot encode a sentence (a character tokenizer without <unk>).
std::vector<TokenPair> encode_pairs(const text::ParallelText& text, const text::Tokenizer& source,
                                    const text::Tokenizer& target, const PairTokens& tokens);

/// Inputs and labels of a batch: `input` is the target shifted right after the start token; `labels` are -100
/// after the end.
struct PairBatch {
  models::TokenBatch source, input;
  Tensor labels;
  int64_t tokens = 0;  ///< labels not ignored
};
PairBatch make_pair_batch(const std::vector<TokenPair>& pairs, const std::vector<int64_t>& rows,
                          const models::Seq2SeqConfig& config);

struct PairBatchOptions {
  int64_t batch_tokens = 2048;  ///< rows · padded length of the longer side, at most (one row may exceed it)
  int64_t bucket = 4;           ///< lengths are rounded up to a multiple of it when pairs are grouped
  uint64_t seed = 0;
};

/// Epochs of batches. Each epoch visits every pair once, batched within its length bucket and reshuffled.
/// Batch `index` is a function of the index only.
class PairBatches {
 public:
  /// `pairs` must outlive this. Throws ValueError (no pairs, options).
  PairBatches(const std::vector<TokenPair>& pairs, const PairBatchOptions& options);

  int64_t batches_per_epoch() const { return static_cast<int64_t>(cuts_.size()) - 1; }
  /// Indices of the pairs of a batch.
  std::vector<int64_t> rows(int64_t index) const;

 private:
  struct Bucket {
    int64_t begin, size;  // in sorted_
  };
  PairBatchOptions options_;
  std::vector<int64_t> sorted_;  // pairs by bucket
  std::vector<int64_t> cuts_;    // where batches begin in sorted_
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  // of each place in sorted_
};

}  // namespace multihead::train
