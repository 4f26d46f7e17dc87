#include "multihead/train/tasks/reranker_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/models/files/adapter.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/data/targets.h"
#include "multihead/train/data/windows.h"
#include "multihead/train/scores.h"

namespace multihead::train {
namespace {

using models::EncoderHead;
using text::JudgedPairs;

std::vector<std::string> distinct_of(const std::vector<std::string>& texts) {
  std::set<std::string> seen;
  std::vector<std::string> all;
  for (const std::string& text : texts) {
    if (seen.insert(text).second) all.push_back(text);
  }
  return all;
}

// For each query the rows of documents, those to be tried first in front.
using Candidates = std::function<std::vector<int64_t>(size_t query, int64_t wanted)>;

Candidates nearest_documents(const std::vector<std::string>& queries,
                             const std::vector<std::string>& documents, const std::string& miner) {
  const embed::SentenceEncoder encoder = embed::SentenceEncoder::load(miner);
  const embed::EncodeTextOptions options = {.normalize = true};
  const Tensor from = encoder.for_task(embed::TextTask::query).encode(queries, options),
               to = encoder.for_task(embed::TextTask::document).encode(documents, options);
  return [from, to](size_t query, int64_t wanted) {
    const auto row = static_cast<int64_t>(query);
    std::vector<int64_t> rows;
    const auto found = embed::nearest(slice(from, 0, row, row + 1), to, wanted);
    for (const embed::Match& match : found[0]) rows.push_back(match.row);
    return rows;
  };
}

Candidates drawn_documents(int64_t count, int64_t seed) {
  return [count, seed](size_t query, int64_t wanted) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < std::min(wanted, count); ++i)
      rows.push_back(permuted(i, count, static_cast<uint64_t>(seed), query));
    return rows;
  };
}

void check_score(double score, const RerankerSettings& s, const std::string& where) {
  const bool is_pairs = s.ranking == RankingLoss::pairs;
  MH_CHECK(score >= 0 && (score <= 1 || !is_pairs), FormatError, where, ": a score must be ",
           is_pairs ? "in [0, 1], or give --ranking lists" : "at least 0", ", got ", score);
}

// Each query's documents with their scores, queries and documents in the order of their first.
class RankedLists {
 public:
  explicit RankedLists(const std::vector<std::string>& queries) : queries_(distinct_of(queries)) {
    for (size_t q = 0; q < queries_.size(); ++q) number_[queries_[q]] = q;
    lists_.resize(queries_.size());
  }

  // Of several scores of a document the largest counts. Whether it is the query's first one of this document.
  bool add(const std::string& query, const std::string& document, double score) {
    return add(lists_[number_.at(query)], document, static_cast<float>(score));
  }

  // Adds RerankerSettings::negatives documents of the pool to each query that are none of its own.
  void add_wrong(const std::vector<std::string>& pool, const RerankerSettings& s) {
    const Candidates candidates = s.miner.empty() ? drawn_documents(std::ssize(pool), s.seed)
                                                  : nearest_documents(queries_, pool, s.miner);
    for (size_t q = 0; q < queries_.size(); ++q) {
      List& list = lists_[q];
      const int64_t wanted = s.negatives + std::ssize(list.order);
      int64_t added = 0;
      for (const int64_t row : candidates(q, std::min(wanted, std::ssize(pool)))) {
        const std::string& document = pool[static_cast<size_t>(row)];
        if (added == s.negatives || list.scores.contains(document)) continue;
        add(list, document, 0);
        ++added;
      }
    }
  }

  RankedPairs pairs() const {
    RankedPairs all;
    for (size_t q = 0; q < queries_.size(); ++q) {
      for (const std::string& document : lists_[q].order) {
        all.queries.push_back(queries_[q]), all.documents.push_back(document);
        all.scores.push_back(lists_[q].scores.at(document));
      }
      all.begins.push_back(std::ssize(all.queries));
    }
    return all;
  }

 private:
  struct List {
    std::map<std::string, float> scores;
    std::vector<std::string> order;
  };

  static bool add(List& list, const std::string& document, float score) {
    const auto [place, is_new] = list.scores.emplace(document, score);
    if (is_new) list.order.push_back(document);
    place->second = std::max(place->second, score);
    return is_new;
  }

  std::vector<std::string> queries_;
  std::map<std::string, size_t> number_;
  std::vector<List> lists_;
};

models::Encoder reranker_model(const RerankerSettings& s, const std::string& init,
                               std::vector<std::string>& fresh) {
  // A head of one label is what is wanted, whatever the label is called.
  const bool has_head = s.model.head == EncoderHead::classification && s.model.labels.size() == 1;
  const std::vector<std::string> labels = has_head ? s.model.labels : std::vector<std::string>{"LABEL_0"};
  models::EncoderConfig config = models::with_head(s.model, EncoderHead::classification, labels);
  config.problem_type = models::ProblemType::unstated;
  return encoder_from(config, models::load_encoder(init, nn::WeightDtype::f32), s.seed, &fresh);
}

std::vector<int64_t> pairs_of(const RankedPairs& pairs, const std::vector<int64_t>& queries) {
  std::vector<int64_t> rows;
  for (const int64_t query : queries) {
    for (int64_t row = pairs.begins[static_cast<size_t>(query)];
         row < pairs.begins[static_cast<size_t>(query) + 1]; ++row) {
      rows.push_back(row);
    }
  }
  return rows;
}

Tensor pair_loss(const Tensor& logits, const RankedPairs& pairs, const std::vector<int64_t>& rows) {
  Tensor truth = Tensor::empty({std::ssize(rows), 1});
  for (size_t i = 0; i < rows.size(); ++i)
    truth.data<float>()[i] = pairs.scores[static_cast<size_t>(rows[i])];
  return head_loss(logits, truth, models::ProblemType::multi_label);
}

// The logits are those of pairs_of(queries).
Tensor list_loss(const Tensor& logits, const RankedPairs& pairs, const std::vector<int64_t>& queries) {
  constexpr float kFar = -1e4F;  // exp() of it is 0
  const auto begin = [&](int64_t query) { return pairs.begins[static_cast<size_t>(query)]; };
  int64_t width = 0;
  for (const int64_t query : queries) width = std::max(width, begin(query + 1) - begin(query));
  const int64_t count = std::ssize(queries), padding = logits.size(0);
  // Lists of one length: behind a query's documents stands a logit that is far below all.
  std::vector<int64_t> places(static_cast<size_t>(count * width), padding);
  Tensor wanted = Tensor::zeros({count, width});
  int64_t next = 0;
  for (int64_t q = 0; q < count; ++q) {
    const int64_t first = begin(queries[static_cast<size_t>(q)]),
                  size = begin(queries[static_cast<size_t>(q)] + 1) - first;
    const auto scores =
        std::span(pairs.scores).subspan(static_cast<size_t>(first), static_cast<size_t>(size));
    const float best = *std::ranges::max_element(scores);
    double total = 0;
    for (const float score : scores) total += std::exp(static_cast<double>(score - best));
    for (int64_t i = 0; i < size; ++i) {
      places[static_cast<size_t>(q * width + i)] = next++;
      wanted.data<float>()[q * width + i] =
          static_cast<float>(std::exp(static_cast<double>(scores[static_cast<size_t>(i)] - best)) / total);
    }
  }
  const Tensor all = concat({cast(logits, Dtype::f32), Tensor::full({1, 1}, kFar)}, 0);
  const Tensor lists = reshape(embedding(all, Tensor::of<int64_t>({count * width}, places)), {count, width});
  return scale(sum(mul(wanted, log_softmax(lists))), -1 / static_cast<double>(count));
}

Encodings encode(const RankedPairs& pairs, const text::Tokenizer& tokenizer, const RerankerSettings& s) {
  return encode_pair_texts(tokenizer, pairs.queries, pairs.documents, length_of(s), s.model.token_types > 1);
}

}  // namespace

RankedPairs ranked_pairs(const JudgedPairs& pairs, const RerankerSettings& s, const char* which) {
  RankedLists lists(pairs.queries);
  int64_t repeated = 0;
  for (size_t row = 0; row < pairs.queries.size(); ++row) {
    const double score = pairs.scores.empty() ? 1 : pairs.scores[row];
    check_score(score, s, concat("train: line ", pairs.lines[row], " of the ", which, " data"));
    repeated += lists.add(pairs.queries[row], pairs.documents[row], score) ? 0 : 1;
    if (!pairs.negatives.empty()) lists.add(pairs.queries[row], pairs.negatives[row], 0);
  }
  if (s.negatives > 0) lists.add_wrong(distinct_of(pairs.documents), s);
  RankedPairs all = lists.pairs();
  if (pairs.negatives.empty())
    all.repeated = repeated;  // else each negative has a line with its right document
  MH_CHECK(
      pairs.queries.empty() || std::ranges::any_of(all.scores, [&](float x) { return x != all.scores[0]; }),
      FormatError, "train: all pairs of the ", which, " data have the score ", all.scores[0],
      ", so that there is nothing to rank: give a column \"score\" or \"negative\", or --negatives 4, which "
      "takes documents of other queries");
  return all;
}

RerankerTask::RerankerTask(const RerankerSettings& settings, const RerankerData& data,
                           const std::string& init)
    : ModelTask(
          settings,
          [&](const RerankerSettings& s, std::vector<std::string>& fresh) {
            return reranker_model(s, init, fresh);
          },
          data_id("pairs", data.sums, data.tokenizer), settings.eval_queries),
      data_(data),
      init_(init) {}

Task::Loss RerankerTask::loss(int64_t index) {
  const RankedPairs& pairs = data_.training;
  const bool is_pairs = settings_.ranking == RankingLoss::pairs;
  const int64_t count = is_pairs ? std::ssize(data_.texts) : pairs.count();
  const std::vector<int64_t> taken =
      batch_rows(index, settings_.batch, count, static_cast<uint64_t>(settings_.seed));
  const models::TokenRows tokens = token_rows(data_.texts, is_pairs ? taken : pairs_of(pairs, taken));
  Rng rng = dropout_rng(settings_, index);
  const Tensor logits = model_.logits(tokens, &rng);
  return {is_pairs ? pair_loss(logits, pairs, taken) : list_loss(logits, pairs, taken),
          tokens.tokens.numel()};
}

std::optional<RankedScore> RerankerTask::score(int64_t most, const Sharing& sharing) const {
  const RankedPairs& pairs = data_.validation;
  if (pairs.count() == 0) return std::nullopt;
  const NoTape silent;
  const std::vector<int64_t> queries = spread_rows(pairs.count(), most), rows = pairs_of(pairs, queries);
  const std::vector<double> numbers =
      measure_rows(sharing, rows, settings_.batch, settings_.batch,
                   [&](const std::vector<int64_t>& own, std::span<double> scores) {
                     const Tensor logits = model_.logits(token_rows(data_.validation_texts, own));
                     std::copy_n(logits.data<float>(), logits.numel(), scores.begin());
                   });
  const Tensor logits = Tensor::empty({std::ssize(rows), 1});
  std::copy_n(numbers.begin(), rows.size(), logits.data<float>());
  const bool is_pairs = settings_.ranking == RankingLoss::pairs;
  RankedScore score = {.queries = std::ssize(queries), .pairs = std::ssize(rows)};
  score.targets = is_pairs ? score.pairs : score.queries;
  const Tensor loss = is_pairs ? pair_loss(logits, pairs, rows) : list_loss(logits, pairs, queries);
  score.nats = loss.item() * static_cast<double>(score.targets);
  RankingScore ranking;
  const float* next = logits.data<float>();
  for (const int64_t query : queries) {
    const auto begin = static_cast<size_t>(pairs.begins[static_cast<size_t>(query)]),
               size = static_cast<size_t>(pairs.begins[static_cast<size_t>(query) + 1]) - begin;
    const std::vector<double> gains(pairs.scores.begin() + static_cast<std::ptrdiff_t>(begin),
                                    pairs.scores.begin() + static_cast<std::ptrdiff_t>(begin + size));
    if (size > 1) ranking.add({next, size}, gains);
    next += size;
  }
  if (ranking.queries() > 0) score.mrr = ranking.mrr(), score.ndcg_at_10 = ranking.ndcg_at_10();
  return score;
}

void RerankerTask::save(io::CheckpointContents& contents) {
  save_encoder_files(model_, data_.tokenizer, init_, length_of(settings_), contents);
}

RerankerData RerankerTask::read(const Run& run) {
  const auto [training, validation] = read_files<JudgedPairs>(run, text::read_judged);
  const RerankerSettings& s = run.settings;
  RerankerData data = {.tokenizer = text::Tokenizer::load(models::tokenizer_folder(run.init)),
                       .training = ranked_pairs(training, s, "training"),
                       .validation = ranked_pairs(validation, s, "validation")};
  data.texts = encode(data.training, data.tokenizer, s);
  data.validation_texts = encode(data.validation, data.tokenizer, s);
  const auto columns = [](const RankedPairs& pairs) -> std::vector<std::vector<std::string>> {
    return {pairs.queries, pairs.documents, column_of(pairs.scores)};
  };
  data.sums = sums_of_columns(columns(data.training), columns(data.validation));
  const auto right = std::ranges::count_if(data.training.scores, [](float score) { return score > 0; });
  data.notes.push_back(concat(data.training.count(), " training queries with ", std::ssize(data.texts),
                              " documents, of which ", right, " are right"));
  if (data.training.repeated > 0)
    data.notes.push_back(concat(
        data.training.repeated,
        " training lines repeat a query and its document: a pair counts once, with its largest score"));
  const auto cut = std::ranges::count_if(
      data.texts, [&](const auto& pair) { return std::ssize(pair.ids) >= length_of(s); });
  if (cut > 0)
    data.notes.push_back(
        concat(cut, " pairs have ", length_of(s), " tokens or more and are cut (--max-length)"));
  const std::string shared =
      text::shared_rows({training.queries, training.documents}, {validation.queries, validation.documents});
  if (!shared.empty()) data.warnings.push_back(shared);
  return data;
}

void RerankerTask::describe(RerankerSummary& summary) const {
  summary.queries = data_.training.count(), summary.pairs = std::ssize(data_.texts);
}

const Kind& RerankerTask::kind() {
  static const Kind kind = {
      .name = "reranker",
      .about = "fine-tune an encoder to say how well documents answer a query",
      .examples =
          {{"multihead train reranker --init bert --data train.tsv --valid valid.tsv --out model",
            "query TAB document TAB score (1 right, 0 wrong, or between), or TAB a wrong document"},
           {"multihead train reranker --init bert --data pairs.tsv --out model --negatives 4 --miner "
            "all-MiniLM-L6-v2",
            "query TAB document: four documents of other queries are wrong, the nearest by an embedder"},
           {"multihead train reranker --data train.tsv --out model --resume", "continue an interrupted run"},
           {"multihead rerank model --query \"…\" --data documents.txt", "use it"}},
      .tag = "text-ranking",
      .unit = "pair (lists: query)",
      .data =
          "training pairs: query and document, with a score or a negative document or --negatives, as TSV, "
          "CSV "
          "or JSON Lines",
      .valid = "validation pairs; without them there is no evaluation",
      .has_columns = true,
      .make = TaskRun<RerankerTask>::make};
  return kind;
}

RerankerSummary train_reranker(const RerankerRun& run) { return train_task<RerankerTask>(run); }

std::vector<Field> fields(RerankerSettings& s) {
  std::vector<Field> list;
  add_encoder_fields(list, s);
  list.push_back(
      {"ranking", "what is learned: of each pair alone, or of all documents of a query", choice(s.ranking)});
  list.push_back(
      {"negatives", "documents of other queries to set against each query's own", &s.negatives, 0});
  list.push_back({"miner", "--negatives: the nearest by this embedder, a folder (default: any)", &s.miner});
  list.push_back({"eval-queries", "validation queries per evaluation (0: all)", &s.eval_queries, 0});
  add_training_fields(list, s);
  add_report_fields(list, s);
  return list;
}

void check(const RerankerSettings& settings) {
  RerankerSettings s = settings;
  check_encoder(s, fields(s));
  MH_CHECK(s.label_smoothing == 0, ValueError, "train: a reranker does not support --label-smoothing, got ",
           s.label_smoothing);
  MH_CHECK(s.miner.empty() || s.negatives > 0, ValueError,
           "train: --miner has an effect only with --negatives");
}

Json to_json(const RankedScore& score) {
  return Json::object({{"loss", number_or_null(score.loss())},
                       {"mrr", number_or_null(score.mrr)},
                       {"ndcg_at_10", number_or_null(score.ndcg_at_10)},
                       {"queries", score.queries},
                       {"pairs", score.pairs}});
}

}  // namespace multihead::train
