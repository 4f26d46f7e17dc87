#include "multihead/train/tasks/embedder_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "multihead/autograd/recompute.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/directory.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/shape.h"
#include "multihead/train/data/windows.h"
#include "multihead/train/lora.h"

namespace multihead::train {
namespace {

using embed::SentenceEncoder;

uint64_t checksum_of_pairs(const text::ParallelText& texts) {
  std::string joined;
  for (size_t i = 0; i < texts.source.size(); ++i) joined += texts.source[i] + "\t" + texts.target[i] + "\n";
  return checksum(joined);
}

// Equal texts have equal numbers.
std::vector<int64_t> numbers_of(const Encodings& texts, const std::vector<int64_t>& rows) {
  std::map<std::vector<int32_t>, int64_t> known;
  std::vector<int64_t> numbers;
  for (const int64_t row : rows) {
    numbers.push_back(known.emplace(texts[static_cast<size_t>(row)].ids, std::ssize(known)).first->second);
  }
  return numbers;
}

// What is added to the scores: other documents that a query has in this batch are far away.
Tensor penalties(const TextPairs& pairs, const std::vector<int64_t>& rows) {
  constexpr float kFar = -1e4F;  // exp() of it is 0
  const std::vector<int64_t> queries = numbers_of(pairs.queries, rows),
                             documents = numbers_of(pairs.documents, rows);
  std::set<std::pair<int64_t, int64_t>> answers;
  const size_t count = rows.size();
  for (size_t i = 0; i < count; ++i) answers.emplace(queries[i], documents[i]);
  Tensor out = Tensor::zeros({std::ssize(rows), std::ssize(rows)});
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i != j && answers.contains({queries[i], documents[j]})) out.data<float>()[i * count + j] = kFar;
    }
  }
  return out;
}

Tensor places(int64_t count) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(i);
  return Tensor::of<int64_t>({count}, all);
}

double share_found(const std::vector<std::vector<embed::Match>>& found, size_t most) {
  int64_t hits = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto end = found[i].begin() + static_cast<std::ptrdiff_t>(std::min(most, found[i].size()));
    hits += std::any_of(found[i].begin(), end,
                        [&](const embed::Match& match) { return match.row == static_cast<int64_t>(i); });
  }
  return static_cast<double>(hits) / static_cast<double>(std::max<size_t>(found.size(), 1));
}

// Those of sentence-transformers that lie in folders of their own; they do not change in a run.
void write_modules(const SentenceEncoder& encoder, const RunFolder& folder) {
  for (const auto& [name, contents] : encoder.module_files()) {
    if (name.empty()) continue;
    const io::CheckpointContents& files = contents;
    io::write_directory_atomically(
        io::join(folder.path(), name),
        [&](io::DirectoryWriter& writer) { io::write_contents(writer, files); }, folder.run());
  }
}

// Those of the run that a new one takes the place of. Refuses those of others before anything is written.
void remove_modules(const SentenceEncoder& encoder, const RunFolder& folder) {
  std::vector<std::string> paths, foreign;
  for (const auto& [name, contents] : encoder.module_files()) {
    const std::string path = io::join(folder.path(), name);
    if (name.empty() || node_at(path) == Node::absent) continue;
    const std::string reason = io::foreign_directory(path, folder.run());
    reason.empty() ? paths.push_back(path) : foreign.push_back(concat(quote(name), " ", reason));
  }
  io::refuse_foreign("train", folder.path(), foreign);
  for (const std::string& path : paths) io::remove_directory_atomically(path, folder.run());
}

// The micro-batches of a shard as one batch, whose texts are computed as many at a time as one of them has:
// the negatives of a query are all of them.
EmbedderRun in_one_batch(EmbedderRun run) {
  EmbedderSettings& s = run.settings;
  if (s.accumulate == 1) return run;
  s.chunk = s.chunk > 0 ? std::min(s.chunk, s.batch) : s.batch;
  s.batch *= s.accumulate, s.accumulate = 1;
  check(s);
  return run;
}

SentenceEncoder load_encoder(const EmbedderRun& run) {
  SentenceEncoder encoder = SentenceEncoder::load(run.init, std::nullopt);
  encoder.encoder() = encoder_from(run.settings.model, encoder.encoder(), run.settings.seed);  // its dropout
  return encoder;
}

}  // namespace

TextPairs encode_text_pairs(const SentenceEncoder& encoder, const text::ParallelText& texts, int64_t length) {
  const int64_t limit = std::min(length, encoder.max_length());
  const auto encode = [&](const std::vector<std::string>& all) {
    Encodings encodings(all.size());
    parallel_for(std::ssize(all), [&](int64_t i, int) {
      encodings[static_cast<size_t>(i)].ids = encoder.tokens(all[static_cast<size_t>(i)], limit);
    });
    return encodings;
  };
  return {encode(texts.source), encode(texts.target)};
}

EmbedderTask::EmbedderTask(const EmbedderSettings& settings, SentenceEncoder encoder,
                           const EmbedderData& data, const std::string& init)
    : settings_(settings), data_(data), init_(init), encoder_(std::move(encoder)) {
  const int64_t pairs = std::ssize(data.training.queries);
  MH_CHECK(pairs >= settings.batch, ValueError, "train: there are ", pairs, " pairs, fewer than the ",
           settings.batch, " of a batch (--batch x --accumulate)");
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

Tensor EmbedderTask::vectors_of(const Encodings& texts, const std::vector<int64_t>& rows,
                                const Rng* rng) const {
  const int64_t count = std::ssize(rows), chunk = settings_.chunk > 0 ? settings_.chunk : count;
  std::vector<Tensor> parts;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const auto first = rows.begin() + begin, last = rows.begin() + std::min(count, begin + chunk);
    const models::TokenRows tokens = token_rows(texts, {first, last});
    std::optional<Rng> stream;  // of this chunk
    if (rng != nullptr) stream = Rng(rng->seed(), rng->drawn() + static_cast<uint64_t>(begin / chunk) * 1024);
    const auto compute = [this, tokens, stream]() {
      std::optional<Rng> own = stream;
      return encoder_.vectors(tokens, true, own ? &*own : nullptr);
    };
    parts.push_back(chunk < count ? recomputed(compute) : compute());
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

Tensor EmbedderTask::loss_of(const TextPairs& pairs, const std::vector<int64_t>& rows, const Tensor& queries,
                             const Tensor& documents) const {
  const Tensor scores =
      add(scale(linear(queries, documents), 1 / settings_.temperature), penalties(pairs, rows));
  const Tensor own = places(std::ssize(rows)), forward = cross_entropy(scores, own);
  if (!settings_.symmetric) return forward;
  return scale(add(forward, cross_entropy(contiguous(transpose(scores, 0, 1)), own)), 0.5);
}

Task::Loss EmbedderTask::loss(int64_t index) {
  const std::vector<int64_t> rows = rows_of(index);
  const Rng rng = dropout_rng(settings_, index), other(rng.seed(), rng.drawn() + (uint64_t{1} << 19));
  const Tensor queries = vectors_of(data_.training.queries, rows, &rng),
               documents = vectors_of(data_.training.documents, rows, &other);
  int64_t tokens = 0;
  for (const int64_t row : rows) {
    tokens += std::ssize(data_.training.queries[static_cast<size_t>(row)].ids) +
              std::ssize(data_.training.documents[static_cast<size_t>(row)].ids);
  }
  return {loss_of(data_.training, rows, queries, documents), tokens};
}

int64_t EmbedderTask::targets(int64_t) const { return settings_.batch; }

RetrievalScore EmbedderTask::score(int64_t pairs, const Sharing& sharing) const {
  const NoTape silent;
  const std::vector<int64_t> all = spread_rows(std::ssize(data_.validation.queries), pairs);
  // Of a batch: its loss, its queries' vectors, its documents'.
  const int64_t width = encoder_.dim(), half = settings_.batch * width;
  const auto measure = [&](int64_t batch, std::span<double> numbers) {
    const std::vector<int64_t> rows = part_of(all, batch, settings_.batch);
    const Tensor queries = vectors_of(data_.validation.queries, rows, nullptr),
                 documents = vectors_of(data_.validation.documents, rows, nullptr);
    numbers[0] =
        loss_of(data_.validation, rows, queries, documents).item() * static_cast<double>(rows.size());
    std::copy_n(queries.data<float>(), queries.numel(), numbers.begin() + 1);
    std::copy_n(documents.data<float>(), documents.numel(), numbers.begin() + 1 + half);
  };
  const std::vector<double> numbers =
      measure_batches(sharing, parts_of(all, settings_.batch), 1 + 2 * half, measure);
  const Tensor queries = Tensor::empty({std::ssize(all), width}), documents = empty_like(queries);
  double sum = 0;
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    const double* const batch = numbers.data() + i / settings_.batch * (1 + 2 * half);
    const int64_t at = i % settings_.batch * width;
    if (at == 0) sum += batch[0];
    std::copy_n(batch + 1 + at, width, queries.data<float>() + i * width);
    std::copy_n(batch + 1 + half + at, width, documents.data<float>() + i * width);
  }
  // Of weights that hold NaN, the loss says so.
  std::vector<std::vector<embed::Match>> found;
  if (std::isfinite(sum)) found = embed::nearest(queries, documents, 10);
  return {.loss = sum / static_cast<double>(all.size()),
          .pairs = std::ssize(all),
          .recall_at_1 = share_found(found, 1),
          .recall_at_10 = share_found(found, 10)};
}

std::optional<double> EmbedderTask::evaluate(const Sharing& sharing) {
  if (data_.validation.queries.empty()) return std::nullopt;
  latest_ = score(settings_.eval_pairs, sharing);
  return latest_.loss;
}

std::vector<std::pair<std::string, double>> EmbedderTask::metrics() const {
  return {{"recall_at_1", latest_.recall_at_1}, {"recall_at_10", latest_.recall_at_10}};
}

void EmbedderTask::save(io::CheckpointContents& contents) {
  save_encoder_files(encoder_.encoder(), encoder_.tokenizer(), init_, contents);
  contents.files.merge(encoder_.module_files().at("").files);
}

void EmbedderTask::load(const std::string& path) {
  models::load_weights(encoder_.encoder(), path + "/model.safetensors");
}

Json EmbedderTask::identity() const {
  Json identity = identity_of(settings_);
  identity["pairs"] = checksum_text(data_.checksum);
  identity["tokenizer_fingerprint"] = checksum_text(encoder_.tokenizer().fingerprint());
  return identity;
}

void start_from(EmbedderSettings& settings, const std::string& init) {
  settings.model = SentenceEncoder::load(init, std::nullopt).encoder().config();
}

EmbedderSummary train_embedder(const EmbedderRun& request) {
  MH_CHECK(!request.init.empty(), ValueError, "train: an embedder begins with an encoder's folder, init");
  const EmbedderRun given = checked(request), run = in_one_batch(given);
  check_training_memory(run.settings, models::matrix_weights(run.settings.model), run.ranks());
  const text::ParallelText training = text::read_pairs(run.data);
  const text::ParallelText validation =
      run.valid.empty() ? text::ParallelText() : text::read_pairs(run.valid);
  SentenceEncoder encoder = load_encoder(run);
  const int64_t length = length_of(run.settings);
  const EmbedderData data = {encode_text_pairs(encoder, training, length),
                             encode_text_pairs(encoder, validation, length), checksum_of_pairs(training)};
  EmbedderTask task(run.settings, std::move(encoder), data, run.init);
  const auto folder = folder_of(run);
  check_alike(run, run.settings, task.identity(), nn::named_parameters(task.model().encoder()));
  if (folder && !folder->checkpoint()) remove_modules(task.model(), *folder);
  begin_run(given, folder.get());
  if (folder) write_modules(task.model(), *folder);
  EmbedderSummary summary;
  summary.pairs = std::ssize(data.training.queries);
  run_or_adapt(run, folder.get(), task, true, summary, [&]() -> std::optional<RetrievalScore> {
    if (data.validation.queries.empty()) return std::nullopt;
    return task.score(0, run.sharing());
  });
  return summary;
}

Json to_json(const EmbedderSummary& s) {
  Json json = to_json(static_cast<const RunSummary&>(s));
  json["pairs"] = s.pairs;
  if (s.validation) {
    json["validation"] = Json::object({{"loss", number_or_null(s.validation->loss)},
                                       {"recall_at_1", s.validation->recall_at_1},
                                       {"recall_at_10", s.validation->recall_at_10},
                                       {"pairs", s.validation->pairs}});
  }
  return json;
}

}  // namespace multihead::train
