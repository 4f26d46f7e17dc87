#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verbs/eval_encoders.h"
#include "multihead/core/files.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/ops/shape.h"
#include "multihead/text/corpus/judged.h"
#include "multihead/train/scores.h"

namespace multihead::cli {
namespace {

using text::JudgedPairs;

// Vectors of the distinct texts, of length 1 if they are compared by cosines, and the row of each text.
struct DistinctVectors {
  Tensor vectors;
  std::vector<int64_t> rows;
};

DistinctVectors encode(const embed::SentenceEncoder& loaded, embed::TextTask task,
                       const std::vector<std::string>& texts, embed::Similarity by,
                       const CommonOptions& common) {
  const embed::SentenceEncoder encoder = reading([&] { return loaded.for_task(task); });
  std::map<std::string, int64_t> rows;
  std::vector<std::string> distinct;
  DistinctVectors all;
  for (const std::string& text : texts) {
    const auto [row, is_new] = rows.emplace(text, std::ssize(distinct));
    if (is_new) distinct.push_back(text);
    all.rows.push_back(row->second);
  }
  TextMeter meter(common.quiet);
  all.vectors =
      encoder.encode(distinct, {.normalize = by == embed::Similarity::cosine,
                                .progress = [&](int64_t done, int64_t total) { meter(done, total); }});
  return all;
}

Tensor compare(const Tensor& a, const Tensor& b, embed::Similarity by) {
  return embed::similarities(a, b, by == embed::Similarity::cosine ? embed::Similarity::dot : by);
}

Tensor row_of(const DistinctVectors& all, size_t text) {
  return slice(all.vectors, 0, all.rows[text], all.rows[text] + 1);
}

int report_scores(const JudgedPairs& pairs, const DistinctVectors& a, const DistinctVectors& b,
                  embed::Similarity by, const EncoderTest& test, const CommonOptions& common) {
  if (pairs.scores.size() < 2) throw InputError(concat(test.data, ": it has one row, at least 2 are needed"));
  std::vector<double> alike;
  std::string lines = concat("score\t", word_of(by), "\tsource\ttarget\n");
  for (size_t i = 0; i < pairs.scores.size(); ++i) {
    alike.push_back(compare(row_of(a, i), row_of(b, i), by).data<float>()[0]);
    check_number(test.folder, "a similarity", alike.back());
    lines += fmt::format("{}\t{:.6f}\t{}\t{}\n", pairs.scores[i], alike[i], cell(pairs.queries[i]),
                         cell(pairs.documents[i]));
  }
  if (!test.predictions.empty()) write_file_atomically(test.predictions, lines);
  const double ranks = train::spearman(alike, pairs.scores), plain = train::pearson(alike, pairs.scores);
  if (common.json) {
    put_json(Json::object({{"spearman", number_or_null(ranks)},
                           {"pearson", number_or_null(plain)},
                           {"pairs", pairs.scores.size()}}));
    return kDone;
  }
  fmt::print("Spearman  {:.4f}\nPearson   {:.4f}\nover      {} pairs\n", ranks, plain, pairs.scores.size());
  return kDone;
}

int report_retrieval(const JudgedPairs& pairs, const DistinctVectors& queries,
                     const DistinctVectors& documents, embed::Similarity by, const EncoderTest& test,
                     const CommonOptions& common) {
  const int64_t count = queries.vectors.size(0), pool = documents.vectors.size(0);
  std::map<int64_t, std::vector<double>> gains;  // of a query: of each document
  std::vector<size_t> text_of_query(static_cast<size_t>(count)), text_of_document(static_cast<size_t>(pool));
  for (size_t i = 0; i < pairs.queries.size(); ++i) {
    std::vector<double>& own = gains[queries.rows[i]];
    own.resize(static_cast<size_t>(pool));
    own[static_cast<size_t>(documents.rows[i])] = 1;
    text_of_query[static_cast<size_t>(queries.rows[i])] = i;
    text_of_document[static_cast<size_t>(documents.rows[i])] = i;
  }
  train::RankingScore score;
  std::string lines = "rank\tquery\tnearest\n";
  for (int64_t row = 0; row < count; ++row) {
    const Tensor scores = compare(slice(queries.vectors, 0, row, row + 1), documents.vectors, by);
    const std::span all(scores.data<float>(), static_cast<size_t>(pool));
    for (const float one : all) check_number(test.folder, "a similarity", one);
    const int64_t rank = score.add(all, gains.at(row));
    const auto best = static_cast<size_t>(std::max_element(all.begin(), all.end()) - all.begin());
    lines += concat(rank, "\t", cell(pairs.queries[text_of_query[static_cast<size_t>(row)]]), "\t",
                    cell(pairs.documents[text_of_document[best]]), "\n");
    gains.erase(row);
  }
  if (!test.predictions.empty()) write_file_atomically(test.predictions, lines);
  if (common.json) {
    Json json = to_json(score);
    json["documents"] = pool;
    put_json(json);
    return kDone;
  }
  fmt::print(
      "recall@1   {:.4f}\nrecall@3   {:.4f}\nrecall@10  {:.4f}\nMRR        {:.4f}\nNDCG@10    {:.4f}\n"
      "over       {} queries among {} documents\n",
      score.recall(1), score.recall(3), score.recall(10), score.mrr(), score.ndcg_at_10(), score.queries(),
      pool);
  return kDone;
}

}  // namespace

int eval_embedder(const EncoderTest& test, const CommonOptions& common) {
  const auto encoder = reading([&] { return embed::SentenceEncoder::load(test.folder); });
  const JudgedPairs pairs = reading([&] { return text::read_judged(test.data, test.format); });
  const embed::Similarity by = reading([&] { return encoder.similarity(); });
  using enum embed::TextTask;
  const bool is_search = pairs.scores.empty();
  const DistinctVectors first = encode(encoder, is_search ? query : none, pairs.queries, by, common),
                        second = encode(encoder, is_search ? document : none, pairs.documents, by, common);
  return is_search ? report_retrieval(pairs, first, second, by, test, common)
                   : report_scores(pairs, first, second, by, test, common);
}

}  // namespace multihead::cli
