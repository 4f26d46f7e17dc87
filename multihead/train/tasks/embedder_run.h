// A complete embedder run: pairs of texts that belong together, in-batch negatives.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "multihead/embed/sentence_encoder.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/run.h"
#include "multihead/train/tasks/encoder_parts.h"

namespace multihead::train {

/// Queries and their documents as tokens: queries[i] belongs to documents[i].
struct TextPairs {
  Encodings queries, documents;
};
TextPairs encode_text_pairs(const embed::SentenceEncoder& encoder, const text::ParallelText& texts,
                            int64_t length);

struct EmbedderData {
  TextPairs training, validation;
  uint64_t checksum = 0;  ///< of the training texts
};

/// How well documents are found.
struct RetrievalScore {
  double loss = 0;  ///< in batches as in training
  int64_t pairs = 0;
  double recall_at_1 = 0, recall_at_10 = 0;  ///< among all these documents
};

/// The model of a folder, to be trained on. Throws IoError, FormatError.
void start_from(EmbedderSettings& settings, const std::string& init);

/// The training task of an embedder: of the documents of a batch, a query is to choose its own.
///
///   loss = cross_entropy(cos(query i, document j) / temperature, i)
///
/// Documents that belong to an equal query, and those equal to them, are no alternatives to its own.
///
/// Source    van den Oord et al. 2018 (InfoNCE); Henderson et al. 2017 (in-batch negatives). `chunk` texts
///           are computed at a time and again in the backward: Gao et al. 2021, arXiv:2101.06983 (gradient
///           caching)
class EmbedderTask : public Task {
 public:
  /// `data` must outlive the task. Throws ValueError: fewer training pairs than a batch has.
  EmbedderTask(const EmbedderSettings& settings, embed::SentenceEncoder encoder, const EmbedderData& data,
               const std::string& init);

  Loss loss(int64_t index) override;
  int64_t targets(int64_t index) const override;
  std::optional<double> evaluate(const Sharing& sharing) override;
  std::vector<std::pair<std::string, double>> metrics() const override;
  void save(io::CheckpointContents& contents) override;
  void load(const std::string& path) override;
  Json identity() const override;

  /// Over `pairs` validation pairs, evenly spread; 0: all.
  RetrievalScore score(int64_t pairs, const Sharing& sharing = {}) const;
  embed::SentenceEncoder& model() { return encoder_; }

 private:
  std::vector<int64_t> rows_of(int64_t index) const;
  Tensor vectors_of(const Encodings& texts, const std::vector<int64_t>& rows, const Rng* rng) const;
  Tensor loss_of(const TextPairs& pairs, const std::vector<int64_t>& rows, const Tensor& queries,
                 const Tensor& documents) const;

  EmbedderSettings settings_;
  const EmbedderData& data_;
  std::string init_;
  embed::SentenceEncoder encoder_;
  RetrievalScore latest_;
};

/// `data` is a two-column file: query TAB document.
struct EmbedderRun : RunRequest {
  EmbedderSettings settings = {};
  std::string valid = {};  ///< another; may be empty
};

struct EmbedderSummary : RunSummary {
  std::optional<RetrievalScore> validation;  ///< of the kept model, over all validation pairs
  int64_t pairs = 0;
};

/// Throws IoError, FormatError (data, checkpoints), ValueError (settings), NumericError. An interrupted run
/// leaves a checkpoint and no model. The folder is one of sentence-transformers.
EmbedderSummary train_embedder(const EmbedderRun& run);

Json to_json(const EmbedderSummary& summary);

}  // namespace multihead::train
