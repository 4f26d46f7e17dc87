// A complete reranker run: an encoder of a folder, a head that says how well a document answers a query.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "multihead/text/corpus/judged.h"
#include "multihead/train/tasks/encoder_parts.h"
#include "multihead/train/tasks/model_task.h"

namespace multihead::train {

/// What a reranker learns: of each pair alone, or of all documents of a query.
enum class RankingLoss { pairs, lists };
constexpr auto enum_words(RankingLoss) { return std::to_array<std::string_view>({"pairs", "lists"}); }

struct RerankerSettings : EncoderSettings {
  RankingLoss ranking = RankingLoss::pairs;
  int64_t negatives = 0;     ///< documents of other queries that are set against a query's own
  std::string miner = {};    ///< the embedder's folder by which they are the nearest; empty: any
  int64_t eval_queries = 0;  ///< validation queries per evaluation, evenly spread; 0: all. The last takes all
};
std::vector<Field> fields(RerankerSettings& settings);
/// Throws ValueError naming the first invalid setting.
void check(const RerankerSettings& settings);

/// Queries with their documents: those of query q are [begins[q], begins[q + 1]).
struct RankedPairs {
  std::vector<std::string> queries = {}, documents = {};  // of each pair
  std::vector<float> scores = {};
  std::vector<int64_t> begins = {0};
  int64_t repeated = 0;  // lines without negatives whose query and document an earlier one has
  int64_t count() const { return std::ssize(begins) - 1; }
};
/// Pairs by query, in the order of its first, each once, with its largest score; without a score a document is right
/// (1), a negative one is wrong (0), as are `negatives` others of the file that no line gives to the query: drawn by
/// `seed`, or the nearest by the embedder in `miner`. Throws FormatError (scores that are no shares for
/// RankingLoss::pairs, or negative; nothing that is wrong).
RankedPairs ranked_pairs(const text::JudgedPairs& pairs, const RerankerSettings& settings, const char* which);

struct RerankerData {
  text::Tokenizer tokenizer;
  RankedPairs training, validation;
  Encodings texts = {}, validation_texts = {};  ///< the pairs as tokens
  DataSums sums = {};
  std::vector<std::string> notes = {}, warnings = {};
};

/// How well documents are ranked.
struct RankedScore {
  double nats = 0;
  int64_t queries = 0, pairs = 0, targets = 0;
  /// Over queries with several documents, one of them right; NaN if there is none.
  double mrr = std::numeric_limits<double>::quiet_NaN(), ndcg_at_10 = mrr;
  double loss() const { return nats / static_cast<double>(targets); }
};
Json to_json(const RankedScore& score);

struct RerankerSummary : ScoredSummary<RankedScore> {
  int64_t queries = 0, pairs = 0;
  Json counts() const { return Json::object({{"queries", queries}, {"pairs", pairs}}); }
};

/// The training task of a reranker, one logit x for a pair with score y:
///
///   pairs    the mean of log(1 + e^x) - x y: the binary cross-entropy
///   lists    the mean over queries of -sum(softmax(y) log softmax(x)) over the query's documents
///
/// A micro-batch has `batch` pairs, or the documents of as many queries.
///
/// Source    Cao et al. 2007 (ListNet)
class RerankerTask : public ModelTask<RerankerSettings, models::Encoder, RankedScore> {
 public:
  using Data = RerankerData;
  using Summary = RerankerSummary;
  /// `data` must outlive the task.
  RerankerTask(const RerankerSettings& settings, const RerankerData& data, const std::string& init);

  static const Kind& kind();
  static RerankerSettings preset(const std::string&) { return {}; }
  static Data read(const Run& run);
  static int64_t pass(const RerankerSettings& s, const Data& data) {
    const int64_t count = s.ranking == RankingLoss::pairs ? std::ssize(data.texts) : data.training.count();
    return (count + s.batch - 1) / s.batch;
  }
  static RerankerTask make(const Run& run, const Data& data) { return {run.settings, data, run.init}; }

  Loss loss(int64_t index) override;
  double targets(int64_t) const override { return static_cast<double>(settings_.batch); }
  std::optional<RankedScore> score(int64_t most, const Sharing& sharing = {}) const override;
  void save(io::CheckpointContents& contents) override;
  void describe(RerankerSummary& summary) const;
  std::vector<std::string> notes() const { return data_.notes; }
  std::vector<std::string> warnings() const { return data_.warnings; }

 private:
  const RerankerData& data_;
  std::string init_;
};

/// `data` and `valid` are tables of queries and documents (text::read_judged).
using RerankerRun = RunOf<RerankerSettings>;
/// See train_task(). TextClassifier::load() reads the result, and so does sentence-transformers' CrossEncoder.
RerankerSummary train_reranker(const RerankerRun& run);

}  // namespace multihead::train
