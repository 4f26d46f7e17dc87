// A complete embedder run: texts that belong together, in-batch negatives, or pairs with scores.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "multihead/embed/sentence_encoder.h"
#include "multihead/text/corpus/judged.h"
#include "multihead/train/tasks/encoder_parts.h"
#include "multihead/train/tasks/model_task.h"

namespace multihead::train {

/// text::JudgedPairs as tokens.
struct TextPairs {
  Encodings queries = {}, documents = {}, negatives = {};
  std::vector<float> scores = {};
  /// Queries and documents have the folder's prompts for them; texts with scores have its default prompt.
  embed::TextTask task(embed::TextTask of_pairs) const {
    return scores.empty() ? of_pairs : embed::TextTask::none;
  }
};
TextPairs encode_text_pairs(const embed::SentenceEncoder& encoder, const text::JudgedPairs& texts,
                            int64_t length);

struct EmbedderData {
  TextPairs training, validation;
  DataSums sums = {};
  std::string shared = {};  ///< a warning of pairs on both sides of the split
};

/// How well documents are found, or scores are met.
struct RetrievalScore {
  double nats = 0;  ///< in batches as in training
  int64_t pairs = 0;
  double recall_at_1 = 0, recall_at_10 = 0;  ///< among all these documents
  bool has_scores = false;                   ///< then cosines are compared with them:
  double pearson = std::numeric_limits<double>::quiet_NaN(), spearman = pearson;
  double loss() const { return nats / static_cast<double>(pairs); }
};
Json to_json(const RetrievalScore& score);

/// The model of a folder, to be trained on. Throws IoError, FormatError.
void start_from(EmbedderSettings& settings, const std::string& init);

struct EmbedderSummary : ScoredSummary<RetrievalScore> {
  int64_t pairs = 0;
  Json counts() const { return Json::object({{"pairs", pairs}}); }
};

/// The training task of an embedder: of the documents of a batch, a query is to choose its own.
///
///   loss = cross_entropy(cos(query i, document j) / temperature, i)
///
/// Documents that belong to an equal query, and those equal to them, are no alternatives to its own. Negatives of
/// the data are further documents, of all queries of the batch. Of pairs with scores the order is learned: with
/// c = cos(query, document) / temperature of each pair,
///
///   loss = log(1 + sum of exp(c i - c j) over the pairs i whose score is less than that of pair j)
///
/// With Matryoshka sizes the loss is the sum of those of all columns and of the first columns, as many as each says.
///
/// Source    Su 2022 (CoSENT); Kusupati et al. 2022, arXiv:2205.13147 (Matryoshka); van den Oord et al. 2018 (InfoNCE); Henderson et al. 2017 (in-batch negatives). `chunk` texts
///           are computed at a time and again in the backward: Gao et al. 2021, arXiv:2101.06983 (gradient
///           caching)
class EmbedderTask : public ModelTask<EmbedderSettings, embed::SentenceEncoder, RetrievalScore> {
 public:
  struct Data {
    embed::SentenceEncoder encoder;
    EmbedderData pairs;
  };
  using Summary = EmbedderSummary;
  /// `data` must outlive the task. Throws ValueError: fewer training pairs than a batch has.
  EmbedderTask(const EmbedderSettings& settings, embed::SentenceEncoder encoder, const EmbedderData& data,
               const std::string& init);

  static const Kind& kind();
  static EmbedderSettings preset(const std::string&) { return {}; }
  static Run computed(Run run);
  static Data read(const Run& run);
  static constexpr double kRate = 1.5e-5;
  static int64_t pass(const EmbedderSettings& s, const Data& data) {
    return std::ssize(data.pairs.training.queries) / s.batch;
  }
  static EmbedderTask make(const Run& run, Data& data) {
    return {run.settings, data.encoder, data.pairs, run.init};
  }

  Loss loss(int64_t index) override;
  double targets(int64_t index) const override;
  std::optional<RetrievalScore> score(int64_t most, const Sharing& sharing = {}) const override;
  void save(io::CheckpointContents& contents) override;
  void remove_modules(const RunFolder& folder) const { remove_module_folders(model_, folder); }
  void write_modules(const RunFolder& folder) const { write_module_folders(model_, folder); }
  std::vector<std::string> warnings() const;
  void describe(EmbedderSummary& summary) const { summary.pairs = std::ssize(data_.training.queries); }

 private:
  /// The vectors of a batch.
  struct Vectors {
    Tensor queries, documents, negatives;  // the last undefined without any
  };
  std::vector<int64_t> rows_of(int64_t index) const;
  Vectors batch_vectors(const TextPairs& pairs, const std::vector<int64_t>& rows, const Rng* rng) const;
  Tensor vectors_of(const Encodings& texts, embed::TextTask task, const std::vector<int64_t>& rows,
                    const Rng* rng) const;
  Tensor loss_of(const TextPairs& pairs, const std::vector<int64_t>& rows, const Vectors& vectors) const;
  Tensor choice_loss(const TextPairs& pairs, const std::vector<int64_t>& rows, const Vectors& vectors) const;
  Tensor order_loss(const TextPairs& pairs, const std::vector<int64_t>& rows, const Vectors& vectors) const;

  const EmbedderData& data_;
  std::string init_;
  std::vector<int64_t> sizes_;  // of Matryoshka, without all columns
};

/// `data` and `valid` are tables of queries and documents (text::read_judged).
using EmbedderRun = RunOf<EmbedderSettings>;
/// See train_task(). The result is a folder of sentence-transformers.
EmbedderSummary train_embedder(const EmbedderRun& run);

}  // namespace multihead::train
