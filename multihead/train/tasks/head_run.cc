#include "multihead/train/tasks/head_run.h"

#include <algorithm>
#include <chrono>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/linear.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/linear_head.h"
#include "multihead/train/model_card.h"
#include "multihead/train/parallel/sharing.h"

namespace multihead::train {
namespace {

using embed::SentenceEncoder;
using models::EncoderHead;
using models::ProblemType;

// The texts as the folder reads them, with its default prompt.
struct HeadData {
  Targets targets;
  Encodings training, validation;
  uint64_t checksum = 0;
};

void tell(const ClassifierRun& run, const std::string& note) {
  if (!run.leads()) return;
  for (Observer* observer : run.observers) observer->on_note(note);
}

// What the other runs of classifiers use is refused where it was given.
void check_given(const ClassifierRun& run) {
  constexpr std::string_view kUsed[] = {"head-only",  "head-c",   "regression",      "multi-label",
                                        "max-length", "balanced", "labels-as-names", "seed"};
  ClassifierSettings settings = run.settings;
  for (const Field& setting : fields(settings)) {
    const bool is_used = std::ranges::find(kUsed, setting.name) != std::end(kUsed);
    MH_CHECK(is_used || !is_given(run, setting.name), ValueError, "train: --", setting.name,
             " has no effect with --head-only, which fits the head to the end");
  }
}

bool is_stopping(const ClassifierRun& run) { return on_any(run.group, run.should_stop && run.should_stop()); }

// A head of its own makes way for the new one.
SentenceEncoder without_head(const std::string& init, SentenceEncoder encoder) {
  if (embed::has_linear_head(init)) encoder.drop_head();
  return encoder;
}

int64_t length_of(const ClassifierRun& run, const SentenceEncoder& encoder) {
  return std::min(length_of(run.settings), encoder.max_length());
}

HeadData read_head_data(const ClassifierRun& run, const SentenceEncoder& encoder) {
  const auto [training, validation] = read_files<text::LabelledTexts>(run, text::read_labelled);
  MH_CHECK(training.seconds.empty() && validation.seconds.empty(), ValueError,
           "train classifier: --head-only reads the vectors of single texts, not pairs of them");
  const ClassifierSettings& s = run.settings;
  models::EncoderConfig no_head = s.model;
  no_head.head = EncoderHead::none;
  const int64_t length = length_of(run, encoder);
  const auto encode = [&](const std::vector<std::string>& texts) {
    Encodings all(texts.size());
    parallel_for(std::ssize(texts), [&](int64_t i, int) {
      std::vector<int32_t>& ids = all[static_cast<size_t>(i)].ids;
      ids = encoder.tokens(texts[static_cast<size_t>(i)], length);
      if (ids.empty()) ids.push_back(0);  // the model wants one
    });
    return all;
  };
  return {read_targets(training, validation, problem_of(s), no_head, s.labels_as_names),
          encode(training.texts), encode(validation.texts),
          checksum_of_columns({training.texts, training.labels})};
}

// [texts, dim], on every rank.
Tensor vectors_of(const ClassifierRun& run, const SentenceEncoder& encoder, const Encodings& texts,
                  const char* which) {
  constexpr int64_t kTexts = 8;  // at a time: more leave the caches
  const NoTape silent;
  const int64_t count = std::ssize(texts), dim = encoder.dim();
  int64_t done = 0, said = 0;
  const std::vector<double> numbers =
      measure_rows(run.sharing(), spread_rows(count, 0), kTexts, kTexts * dim,
                   [&](const std::vector<int64_t>& rows, std::span<double> own) {
                     const Tensor vectors = encoder.vectors(token_rows(texts, rows), encoder.normalizes());
                     std::copy_n(vectors.data<float>(), vectors.numel(), own.begin());
                     done += std::ssize(rows) * run.ranks();
                     if (done * 5 / count == said || count < 1000 || done >= count) return;
                     said = done * 5 / count;
                     tell(run, concat("vectors of ", done, " of ", count, " ", which, " texts"));
                   });
  Tensor all = Tensor::empty({count, dim});
  std::copy_n(numbers.begin(), all.numel(), all.data<float>());
  return all;
}

LabelScore score_of(const Tensor& vectors, const LinearHead& head, const Targets& targets) {
  const Tensor logits = linear(vectors, head.weight, head.bias);
  LabelScore score = score_logits(logits, targets.validation, targets.problem);
  score.nats =
      head_loss(logits, targets.validation, targets.problem).item() * static_cast<double>(score.texts);
  return score;
}

// Counts and scores of a run that has ended.
void count(ClassifierSummary& summary, const HeadData& data, const Tensor& others, const LinearHead& head) {
  summary.ending = Ending::finished;
  summary.parameters = head.weight.numel() + head.bias.numel();
  summary.progress.step = head.steps;
  for (const Encodings* texts : {&data.training, &data.validation}) {
    for (const text::Encoding& text : *texts) summary.progress.tokens += std::ssize(text.ids);
  }
  summary.peak_bytes = memory_stats().peak_bytes;
  if (others.size(0) == 0) return;
  const LinearHead zero = {Tensor::zeros(head.weight.shape()), Tensor::zeros(head.bias.shape())};
  const LabelScore first = score_of(others, zero, data.targets);
  summary.validation = score_of(others, head, data.targets);
  Progress& p = summary.progress;
  p.first_loss = first.loss(), p.first_figures = rates_of(to_json(first));
  summary.kept_loss = p.last_loss = summary.validation->loss();
  summary.kept_figures = p.last_figures = rates_of(to_json(*summary.validation));
  summary.worse_than_start = is_worse_than_start(summary, "loss");
}

// The model's files, config.json with the labels that the last module's logits stand for.
void save(const ClassifierRun& run, SentenceEncoder& encoder, const Targets& targets,
          io::CheckpointContents& contents) {
  save_sentence_files(encoder, run.init, length_of(run, encoder), contents);
  models::EncoderConfig labelled =
      models::with_head(encoder.encoder().config(), EncoderHead::classification, targets.names);
  if (targets.problem != ProblemType::single_label) labelled.problem_type = targets.problem;
  const Json from = models::config_to_json(labelled);
  Json config = Json::parse(contents.files.at("config.json"));
  for (const char* key : {"id2label", "label2id", "problem_type"}) {
    if (from.contains(key)) config[key] = from.at(key);
  }
  contents.files["config.json"] = config.dump(2) + "\n";
}

void begin(const ClassifierRun& run, RunFolder& folder, SentenceEncoder encoder, int64_t labels) {
  MH_CHECK(!folder.checkpoint(), ValueError, "train classifier: ", run.folder,
           " holds checkpoints of a run without --head-only; resume it without, or give --overwrite");
  encoder.add_head(Tensor::zeros({labels, encoder.dim()}), Tensor::zeros({labels}));
  remove_module_folders(encoder, folder);
  ClassifierSettings settings = run.settings;
  Json record = to_json(run, fields(settings));
  record["valid"] = io::path_to_json(run.valid);
  folder.begin(std::move(record));
}

// The c of the settings, or the best.
double c_of(const ClassifierRun& run, const Tensor& vectors, const Targets& targets) {
  if (run.settings.head_c > 0) return run.settings.head_c;
  const ChosenC chosen = choose_c(vectors, targets.training, std::ssize(targets.names), targets.problem,
                                  run.settings.seed, run.should_stop, run.settings.balanced);
  Enumeration tried;
  for (const auto& [c, loss] : chosen.losses) tried.add(c, ": ", loss);
  if (!tried.empty()) tell(run, concat("C = ", chosen.c, ", by the loss in cross-validation: ", tried));
  return chosen.c;
}

}  // namespace

ClassifierSummary train_head(const ClassifierRun& run) {
  check_request(run, ClassifierTask::kind());
  check(run.settings);
  check_given(run);
  const auto started = std::chrono::steady_clock::now();
  const SentenceEncoder reader = without_head(run.init, SentenceEncoder::load(run.init));
  const HeadData data = read_head_data(run, reader);
  Json identity = identity_of(run.settings);
  identity["texts"] = checksum_text(data.checksum);
  check_alike(run, run.settings, identity);
  SentenceEncoder encoder = without_head(run.init, SentenceEncoder::load_to_train(run.init));
  models::Encoder& body = encoder.encoder();
  if (body.config().head != EncoderHead::none) {
    body = encoder_from(models::with_head(body.config(), EncoderHead::none), body, run.settings.seed);
  }
  const std::unique_ptr<RunFolder> folder = folder_of(run);
  const int64_t labels = std::ssize(data.targets.names);
  if (folder != nullptr) begin(run, *folder, encoder, labels);
  for (const std::string& note : data.targets.notes) tell(run, note);
  for (Observer* observer : run.leads() ? run.observers : std::vector<Observer*>()) {
    for (const std::string& warning : data.targets.warnings) observer->on_warning(warning);
  }
  ClassifierSummary summary;
  summary.labels = data.targets.names, summary.texts = std::ssize(data.training);
  summary.ending = Ending::interrupted;
  const Tensor vectors = vectors_of(run, reader, data.training, "training"),
               others = vectors_of(run, reader, data.validation, "validation");
  if (is_stopping(run)) return summary;
  const double c = c_of(run, vectors, data.targets);
  if (is_stopping(run)) return summary;
  const LinearHead head =
      fit_linear_head(vectors, data.targets.training, labels, data.targets.problem,
                      {.c = c, .balanced = run.settings.balanced, .should_stop = run.should_stop});
  if (is_stopping(run)) return summary;
  tell(run, concat("linear head on vectors of ", vectors.size(1), ", C = ", c, ": training loss ", head.loss,
                   " after ", head.steps, " steps", head.converged ? "" : ", not quite at the minimum"));
  encoder.add_head(head.weight, head.bias);
  count(summary, data, others, head);
  summary.progress.seconds = summary.progress.train_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  summary.tokens_per_second =
      static_cast<double>(summary.progress.tokens) / std::max(summary.progress.seconds, 1e-9);
  if (folder == nullptr) return summary;
  io::CheckpointContents contents;
  save(run, encoder, data.targets, contents);
  ClassifierSettings settings = run.settings;
  contents.files[kCardFile] = model_card(ClassifierTask::kind(), run, fields(settings), to_json(summary));
  write_module_folders(encoder, *folder);
  folder->publish(contents);
  folder->write_summary(to_json(summary));
  return summary;
}

}  // namespace multihead::train
