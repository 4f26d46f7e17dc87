#include "multihead/train/tasks/embedder_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "multihead/autograd/recompute.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/shape.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/data/windows.h"
#include "multihead/train/scores.h"

namespace multihead::train {
namespace {

using embed::SentenceEncoder;
using embed::TextTask;

constexpr float kFar = -1e4F;  // exp() of it is 0

// Equal texts have equal numbers.
std::vector<int64_t> numbers_of(const Encodings& texts, const std::vector<int64_t>& rows) {
  std::map<std::vector<int32_t>, int64_t> known;
  std::vector<int64_t> numbers;
  for (const int64_t row : rows) {
    numbers.push_back(known.emplace(texts[static_cast<size_t>(row)].ids, std::ssize(known)).first->second);
  }
  return numbers;
}

// The bias of the scores that hides a query's other documents in this batch, and what belongs to it among the
// negatives, which stand behind the documents.
Tensor penalties(const TextPairs& pairs, const std::vector<int64_t>& rows) {
  const std::vector<int64_t> queries = numbers_of(pairs.queries, rows);
  Encodings candidates;
  for (const Encodings* texts : {&pairs.documents, &pairs.negatives}) {
    for (const int64_t row : rows) {
      if (!texts->empty()) candidates.push_back((*texts)[static_cast<size_t>(row)]);
    }
  }
  std::vector<int64_t> all(candidates.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> documents = numbers_of(candidates, all);
  std::set<std::pair<int64_t, int64_t>> answers;
  const size_t count = rows.size(), width = candidates.size();
  for (size_t i = 0; i < count; ++i) answers.emplace(queries[i], documents[i]);
  Tensor out = Tensor::zeros({std::ssize(rows), std::ssize(candidates)});
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < width; ++j) {
      if (i != j && answers.contains({queries[i], documents[j]})) out.data<float>()[i * width + j] = kFar;
    }
  }
  return out;
}

Tensor places(int64_t count) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(i);
  return Tensor::of<int64_t>({count}, all);
}

// The mean over queries of the share of their own documents that are among the `most` nearest ones.
double share_found(const std::vector<std::vector<embed::Match>>& found,
                   const std::vector<std::set<int64_t>>& own, size_t most) {
  double shares = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto end = found[i].begin() + static_cast<std::ptrdiff_t>(std::min(most, found[i].size()));
    const auto hits =
        std::count_if(found[i].begin(), end, [&](const embed::Match& m) { return own[i].contains(m.row); });
    shares += static_cast<double>(hits) / static_cast<double>(own[i].size());
  }
  return shares / static_cast<double>(std::max<size_t>(found.size(), 1));
}

// The first row of every number, in the numbers' order.
Tensor distinct_rows(const Tensor& rows, const std::vector<int64_t>& numbers) {
  std::vector<int64_t> first;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == std::ssize(first)) first.push_back(static_cast<int64_t>(i));
  }
  return embedding(rows, Tensor::of<int64_t>({std::ssize(first)}, first));
}

void compare_with_scores(const Tensor& queries, const Tensor& documents, const std::vector<float>& scores,
                         const std::vector<int64_t>& rows, RetrievalScore& found) {
  found.has_scores = true;
  if (rows.size() < 2) return;
  const std::vector<double> cosines = sum(mul(queries, documents), 1).to_vector<double>();
  std::vector<double> truth;
  for (const int64_t row : rows) truth.push_back(scores[static_cast<size_t>(row)]);
  found.pearson = pearson(cosines, truth), found.spearman = spearman(cosines, truth);
}

std::vector<int64_t> sizes_of(const EmbedderSettings& s, int64_t dim) {
  std::vector<int64_t> sizes = matryoshka_sizes(s);
  for (const int64_t size : sizes) {
    MH_CHECK(size < dim, ValueError, "train: the sizes of --matryoshka must be less than the ", dim,
             " columns of a vector, got ", size);
  }
  return sizes;
}

// The first columns, to length 1.
Tensor first_columns(const Tensor& vectors, int64_t size) {
  if (!vectors.defined()) return {};
  return embed::normalized_rows(contiguous(slice(vectors, 1, 0, size)));
}

void check_pairs(int64_t pairs, const EmbedderSettings& settings) {
  MH_CHECK(pairs >= settings.batch, ValueError, "train: there are ", pairs, " pairs, fewer than the ",
           settings.batch, " of a batch (--batch x --accumulate)");
}

}  // namespace

TextPairs encode_text_pairs(const SentenceEncoder& encoder, const text::JudgedPairs& texts, int64_t length) {
  const int64_t limit = std::min(length, encoder.max_length());
  TextPairs pairs = {.scores = {texts.scores.begin(), texts.scores.end()}};
  const auto encode = [&](const std::vector<std::string>& all, TextTask task) {
    Encodings encodings(all.size());
    parallel_for(std::ssize(all), [&](int64_t i, int) {
      encodings[static_cast<size_t>(i)].ids = encoder.tokens(all[static_cast<size_t>(i)], limit, task);
    });
    return encodings;
  };
  pairs.queries = encode(texts.queries, pairs.task(TextTask::query));
  pairs.documents = encode(texts.documents, pairs.task(TextTask::document));
  pairs.negatives = encode(texts.negatives, pairs.task(TextTask::document));
  return pairs;
}

EmbedderTask::EmbedderTask(const EmbedderSettings& settings, SentenceEncoder encoder,
                           const EmbedderData& data, const std::string& init)
    : ModelTask(
          settings, [&](const EmbedderSettings&, std::vector<std::string>&) { return std::move(encoder); },
          data_id("pairs", data.sums, encoder.tokenizer()), settings.eval_pairs),
      data_(data),
      init_(init),
      sizes_(sizes_of(settings, model_.dim())) {
  check_pairs(std::ssize(data.training.queries), settings);
}

// Whole batches of an epoch, so that no pair is twice in one.
std::vector<int64_t> EmbedderTask::rows_of(int64_t index) const {
  const int64_t count = std::ssize(data_.training.queries), per_epoch = count / settings_.batch;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < settings_.batch; ++i) {
    rows.push_back(permuted(index % per_epoch * settings_.batch + i, count,
                            static_cast<uint64_t>(settings_.seed), static_cast<uint64_t>(index / per_epoch)));
  }
  return rows;
}

Tensor EmbedderTask::vectors_of(const Encodings& texts, TextTask task, const std::vector<int64_t>& rows,
                                const Rng* rng) const {
  const int64_t count = std::ssize(rows), chunk = settings_.chunk > 0 ? settings_.chunk : count;
  std::vector<Tensor> parts;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const auto first = rows.begin() + begin, last = rows.begin() + std::min(count, begin + chunk);
    const models::TokenRows tokens = token_rows(texts, {first, last});
    std::optional<Rng> stream;  // of this chunk
    if (rng != nullptr) stream = Rng(rng->seed(), rng->drawn() + static_cast<uint64_t>(begin / chunk) * 1024);
    const auto compute = [this, tokens, stream, task]() {
      std::optional<Rng> own = stream;
      return model_.vectors(tokens, true, own ? &*own : nullptr, task);
    };
    parts.push_back(chunk < count ? checkpoint(compute) : compute());
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

EmbedderTask::Vectors EmbedderTask::batch_vectors(const TextPairs& pairs, const std::vector<int64_t>& rows,
                                                  const Rng* rng) const {
  const auto compute = [&](const Encodings& texts, TextTask of_pairs, uint64_t part) -> Tensor {
    if (texts.empty()) return {};
    const TextTask task = pairs.task(of_pairs);
    if (rng == nullptr) return vectors_of(texts, task, rows, nullptr);
    const Rng own(rng->seed(), rng->drawn() + (part << 18));
    return vectors_of(texts, task, rows, &own);
  };
  return {compute(pairs.queries, TextTask::query, 0), compute(pairs.documents, TextTask::document, 2),
          compute(pairs.negatives, TextTask::document, 3)};
}

Tensor EmbedderTask::choice_loss(const TextPairs& pairs, const std::vector<int64_t>& rows,
                                 const Vectors& vectors) const {
  const Tensor candidates =
      vectors.negatives.defined() ? concat({vectors.documents, vectors.negatives}, 0) : vectors.documents;
  const Tensor scores =
      add(scale(linear(vectors.queries, candidates), 1 / settings_.temperature), penalties(pairs, rows));
  const Tensor own = places(std::ssize(rows)), forward = cross_entropy(scores, own);
  if (!settings_.symmetric) return forward;
  const Tensor back = slice(scores, 1, 0, std::ssize(rows));
  return scale(add(forward, cross_entropy(contiguous(transpose(back, 0, 1)), own)), 0.5);
}

Tensor EmbedderTask::order_loss(const TextPairs& pairs, const std::vector<int64_t>& rows,
                                const Vectors& vectors) const {
  const int64_t count = std::ssize(rows);
  const Tensor cosines = scale(sum(mul(vectors.queries, vectors.documents), 1), 1 / settings_.temperature);
  Tensor hidden = Tensor::empty({count, count});
  for (int64_t i = 0; i < count * count; ++i) {
    const auto score = [&](int64_t at) {
      return pairs.scores[static_cast<size_t>(rows[static_cast<size_t>(at)])];
    };
    hidden.data<float>()[i] = score(i / count) < score(i % count) ? 0 : kFar;
  }
  const Tensor differences = add(sub(reshape(cosines, {count, 1}), reshape(cosines, {1, count})), hidden);
  const Tensor terms = concat({Tensor::zeros({1, 1}), reshape(differences, {1, count * count})}, 1);
  return cross_entropy(terms, Tensor::of<int64_t>({1}, {0}));
}

Tensor EmbedderTask::loss_of(const TextPairs& pairs, const std::vector<int64_t>& rows,
                             const Vectors& vectors) const {
  const auto one = [&](const Vectors& own) {
    return pairs.scores.empty() ? choice_loss(pairs, rows, own) : order_loss(pairs, rows, own);
  };
  Tensor loss = one(vectors);
  for (const int64_t size : sizes_) {
    loss = add(loss, one({first_columns(vectors.queries, size), first_columns(vectors.documents, size),
                          first_columns(vectors.negatives, size)}));
  }
  return loss;
}

Task::Loss EmbedderTask::loss(int64_t index) {
  const std::vector<int64_t> rows = rows_of(index);
  const Rng rng = dropout_rng(settings_, index);
  const TextPairs& pairs = data_.training;
  const Vectors vectors = batch_vectors(pairs, rows, &rng);
  int64_t tokens = 0;
  for (const Encodings* texts : {&pairs.queries, &pairs.documents, &pairs.negatives}) {
    for (const int64_t row : rows) {
      if (!texts->empty()) tokens += std::ssize((*texts)[static_cast<size_t>(row)].ids);
    }
  }
  return {loss_of(pairs, rows, vectors), tokens};
}

double EmbedderTask::targets(int64_t) const { return static_cast<double>(settings_.batch); }

std::optional<RetrievalScore> EmbedderTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.queries.empty()) return std::nullopt;
  const NoTape silent;
  const std::vector<int64_t> all = spread_rows(std::ssize(data_.validation.queries), most);
  // A batch's numbers: its loss, then the vectors of its queries, then those of its documents.
  const int64_t dim = model_.dim(), half = settings_.batch * dim, width = 1 + 2 * half;
  const auto measure = [&](const std::vector<int64_t>& rows, std::span<double> numbers) {
    const Vectors vectors = batch_vectors(data_.validation, rows, nullptr);
    numbers[0] = loss_of(data_.validation, rows, vectors).item() * static_cast<double>(rows.size());
    std::copy_n(vectors.queries.data<float>(), vectors.queries.numel(), numbers.begin() + 1);
    std::copy_n(vectors.documents.data<float>(), vectors.documents.numel(), numbers.begin() + 1 + half);
  };
  const std::vector<double> numbers = measure_rows(sharing, all, settings_.batch, width, measure);
  const Tensor queries = Tensor::empty({std::ssize(all), dim}), documents = empty_like(queries);
  RetrievalScore score = {.pairs = std::ssize(all)};
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    const double* const batch = numbers.data() + i / settings_.batch * width;
    const int64_t at = i % settings_.batch * dim;
    if (at == 0) score.nats += batch[0];
    std::copy_n(batch + 1 + at, dim, queries.data<float>() + i * dim);
    std::copy_n(batch + 1 + half + at, dim, documents.data<float>() + i * dim);
  }
  if (!std::isfinite(score.nats)) return score;  // NaN has no place in an order; the loss tells of it
  if (!data_.validation.scores.empty()) {
    compare_with_scores(queries, documents, data_.validation.scores, all, score);
    return score;
  }
  const std::vector<int64_t> query = numbers_of(data_.validation.queries, all),
                             document = numbers_of(data_.validation.documents, all);
  const std::vector<std::vector<embed::Match>> found =
      embed::nearest(distinct_rows(queries, query), distinct_rows(documents, document), 10);
  std::vector<std::set<int64_t>> own(found.size());
  for (size_t i = 0; i < query.size(); ++i) own[static_cast<size_t>(query[i])].insert(document[i]);
  score.recall_at_1 = share_found(found, own, 1);
  score.recall_at_10 = share_found(found, own, 10);
  return score;
}

void EmbedderTask::save(io::CheckpointContents& contents) {
  save_sentence_files(model_, init_, length_of(settings_), contents);
}

// The micro-batches of a shard as one batch, whose texts are computed as many at a time as one of them has:
// the negatives of a query are all of them.
EmbedderRun EmbedderTask::computed(EmbedderRun run) {
  EmbedderSettings& s = run.settings;
  if (s.accumulate == 1) return run;
  s.chunk = s.chunk > 0 ? std::min(s.chunk, s.batch) : s.batch;
  s.batch *= s.accumulate;
  s.accumulate = 1;
  check(s);
  return run;
}

EmbedderTask::Data EmbedderTask::read(const Run& run) {
  const auto [training, validation] = read_files(run, text::read_judged);
  check_pairs(std::ssize(training.queries), run.settings);
  MH_CHECK(validation.queries.empty() || validation.scores.empty() == training.scores.empty(), FormatError,
           "train: only the ", training.scores.empty() ? "validation" : "training", " data has scores");
  MH_CHECK(training.scores.empty() || !run.settings.symmetric, ValueError,
           "train: --symmetric has no effect on pairs with scores");
  SentenceEncoder encoder = SentenceEncoder::load_to_train(run.init);
  sizes_of(run.settings, encoder.dim());
  encoder.encoder() = encoder_from(run.settings.model, encoder.encoder(), run.settings.seed);  // its dropout
  const int64_t length = length_of(run.settings);
  MH_CHECK(!is_given(run, "max-length") || length <= encoder.max_length(), ValueError,
           "train: a --max-length of ", length, " tokens is more than the folder's max_seq_length, ",
           encoder.max_length());
  const auto columns = [](const text::JudgedPairs& pairs) -> std::vector<std::vector<std::string>> {
    return {pairs.queries, pairs.documents, pairs.negatives, column_of(pairs.scores)};
  };
  EmbedderData pairs = {
      encode_text_pairs(encoder, training, length), encode_text_pairs(encoder, validation, length),
      sums_of_columns(columns(training), columns(validation)),
      text::shared_rows({training.queries, training.documents}, {validation.queries, validation.documents})};
  return {std::move(encoder), std::move(pairs)};
}

std::vector<std::string> EmbedderTask::warnings() const {
  if (data_.shared.empty()) return {};
  return {data_.shared};
}

const Kind& EmbedderTask::kind() {
  static const Kind kind = {
      .name = "embedder",
      .about = "fine-tune an encoder to embed texts",
      .examples =
          {{"multihead train embedder --init all-MiniLM-L6-v2 --data train.tsv --valid valid.tsv --out model",
            "query TAB document on every line; the other documents of a batch are negatives"},
           {"multihead train embedder --init bert --data train.tsv --out model --batch 512 --chunk 32",
            "large batches in the memory of small ones (gradient caching)"},
           {"multihead train embedder --init all-MiniLM-L6-v2 --data triplets.tsv --out model --matryoshka "
            "256,128,64",
            "a third column is a wrong document, or a number, the pair's score; vectors that can be cut"},
           {"multihead train embedder --data train.tsv --out model --resume", "continue an interrupted run"},
           {"multihead embed model --data texts.txt --out vectors.npy", "use it"}},
      .tag = "sentence-similarity",
      .unit = "query",
      .data =
          "training pairs: query and document, with a negative document or a score or neither, as TSV, CSV "
          "or "
          "JSON Lines",
      .valid = "validation pairs; without them there is no evaluation",
      .has_columns = true,
      .make = TaskRun<EmbedderTask>::make};
  return kind;
}

void start_from(EmbedderSettings& settings, const std::string& init) {
  const SentenceEncoder encoder = SentenceEncoder::load_to_train(init);
  settings.model = encoder.encoder().config();
  set_fine_tuning(settings);
  settings.max_length = std::min(encoder.max_length(), kReadTokens);
}

EmbedderSummary train_embedder(const EmbedderRun& run) { return train_task<EmbedderTask>(run); }

Json to_json(const RetrievalScore& score) {
  Json json = Json::object({{"loss", number_or_null(score.loss())}});
  if (score.has_scores) {
    json["pearson"] = number_or_null(score.pearson);
    json["spearman"] = number_or_null(score.spearman);
  } else {
    json["recall_at_1"] = score.recall_at_1;
    json["recall_at_10"] = score.recall_at_10;
  }
  json["pairs"] = score.pairs;
  return json;
}

}  // namespace multihead::train
