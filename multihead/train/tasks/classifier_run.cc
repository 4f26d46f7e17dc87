#include "multihead/train/tasks/classifier_run.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/io/directory.h"
#include "multihead/io/json.h"
#include "multihead/models/files/adapter.h"
#include "multihead/ops/loss.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/scores.h"
#include "multihead/train/tasks/head_run.h"

namespace multihead::train {
namespace {

using models::EncoderHead;
using models::ProblemType;

Encodings encode(const text::LabelledTexts& texts, const text::Tokenizer& tokenizer,
                 const ClassifierSettings& s) {
  return texts.seconds.empty() ? encode_texts(tokenizer, texts.texts, length_of(s))
                               : encode_pair_texts(tokenizer, texts.texts, texts.seconds, length_of(s),
                                                   s.model.token_types > 1);
}

models::Encoder make_model(const ClassifierSettings& s, const std::vector<std::string>& labels,
                           const std::string& init, std::vector<std::string>& fresh) {
  models::EncoderConfig config = models::with_head(s.model, EncoderHead::classification, labels);
  if (problem_of(s) != ProblemType::single_label) config.problem_type = problem_of(s);
  models::Encoder model =
      encoder_from(config, models::load_encoder(init, nn::WeightDtype::f32), s.seed, &fresh);
  if (!s.freeze) return model;
  MH_CHECK(!fresh.empty(), ValueError, "train: --freeze leaves nothing to train: ", init,
           " holds a head for these labels");
  freeze_all_but(model, fresh);
  return model;
}

// Whether a folder of sentence-transformers pools another token than the first, or all.
bool pools_otherwise(const std::string& folder) {
  const std::string path = io::join(folder, "1_Pooling/config.json");
  if (node_at(path) != Node::file) return false;
  const Json config = io::load_json(path);
  const Json* first = config.find("pooling_mode_cls_token");
  return first == nullptr || !(*first == Json(true));
}

}  // namespace

ClassifierData prepare_classifier_data(const text::LabelledTexts& training,
                                       const text::LabelledTexts& validation,
                                       const text::Tokenizer& tokenizer, const ClassifierSettings& s) {
  MH_CHECK(validation.texts.empty() || validation.seconds.empty() == training.seconds.empty(), FormatError,
           "train: only the ", training.seconds.empty() ? "validation" : "training",
           " data has pairs of texts");
  ClassifierData data{tokenizer,
                      read_targets(training, validation, problem_of(s), s.model, s.labels_as_names)};
  data.training = encode(training, tokenizer, s);
  data.validation = encode(validation, tokenizer, s);
  data.sums = sums_of_columns({training.texts, training.seconds, training.labels},
                              {validation.texts, validation.seconds, validation.labels});
  return data;
}

LabelScore score_labels(const std::vector<int64_t>& guesses, const std::vector<int64_t>& labels,
                        int64_t num_labels) {
  const LabelReport report = report_labels(guesses, labels, num_labels);
  return {.texts = std::ssize(guesses), .accuracy = report.accuracy, .macro_f1 = report.macro.f1};
}

LabelScore score_logits(const Tensor& logits, const Tensor& targets, ProblemType problem) {
  LabelScore score = {.problem = problem, .texts = logits.size(0)};
  const std::vector<double> values = logits.to_vector<double>();
  if (problem == ProblemType::regression) {
    const std::vector<double> truth = targets.to_vector<double>();
    score.nats = mean_squared_error(values, truth) * static_cast<double>(score.texts);
    if (score.texts > 1) score.pearson = pearson(values, truth), score.spearman = spearman(values, truth);
    return score;
  }
  if (problem == ProblemType::multi_label) {
    std::vector<uint8_t> guesses, truth;
    for (const double logit : values) guesses.push_back(logit > 0 ? 1 : 0);
    for (const double holds : targets.to_vector<double>()) truth.push_back(holds > 0 ? 1 : 0);
    const LabelSetReport report = report_label_sets(guesses, truth, logits.size(1));
    score.micro_f1 = report.micro.f1, score.macro_f1 = report.macro.f1, score.accuracy = report.accuracy;
    return score;
  }
  std::vector<int64_t> guesses;
  const int64_t width = logits.size(1);
  for (int64_t i = 0; i < score.texts; ++i) {
    const auto row = values.begin() + i * width;
    guesses.push_back(std::max_element(row, row + width) - row);
  }
  return score_labels(guesses, targets.to_vector<int64_t>(), width);
}

ClassifierTask::ClassifierTask(const ClassifierSettings& settings, const ClassifierData& data,
                               const std::string& init)
    : ModelTask(
          settings,
          [&](const ClassifierSettings& s, std::vector<std::string>& fresh) {
            return make_model(s, data.targets.names, init, fresh);
          },
          data_id("texts", data.sums, data.tokenizer), settings.eval_texts),
      data_(data),
      init_(init),
      weights_(settings.balanced ? balanced_weights(data.targets.training, std::ssize(data.targets.names))
                                 : Tensor()),
      known_labels_(fresh_.empty() || settings.model.head != EncoderHead::classification
                        ? 0
                        : settings.model.num_labels) {}

Task::Loss ClassifierTask::loss(int64_t index) {
  const std::vector<int64_t> rows =
      batch_rows(index, settings_.batch, std::ssize(data_.training), static_cast<uint64_t>(settings_.seed));
  const models::TokenRows tokens = token_rows(data_.training, rows);
  Rng rng = dropout_rng(settings_, index);
  // Frozen features are inference's: without dropout.
  Tensor logits = model_.logits(tokens, settings_.freeze ? nullptr : &rng);
  return {head_loss(std::move(logits), target_rows(data_.targets.training, rows), data_.targets.problem,
                    settings_.label_smoothing, weights_),
          tokens.tokens.numel()};
}

double ClassifierTask::targets(int64_t index) const {
  if (!weights_.defined()) return static_cast<double>(settings_.batch);
  const std::vector<int64_t> rows =
      batch_rows(index, settings_.batch, std::ssize(data_.training), static_cast<uint64_t>(settings_.seed));
  const Tensor labels = target_rows(data_.targets.training, rows);
  return sum(target_rows(weights_, labels.to_vector<int64_t>())).item();
}

LabelScore score_rows(const Sharing& sharing, const std::vector<int64_t>& all, int64_t batch,
                      const Targets& targets,
                      FunctionRef<Tensor(const std::vector<int64_t>& rows)> logits_of) {
  const NoTape silent;
  const int64_t labels = std::ssize(targets.names);
  // A batch's numbers: its loss, then the logits of its rows.
  const auto measure = [&](const std::vector<int64_t>& rows, std::span<double> numbers) {
    const Tensor logits = logits_of(rows);
    std::copy_n(logits.data<float>(), logits.numel(), numbers.begin() + 1);
    const Tensor truth = target_rows(targets.validation, rows);
    numbers[0] = targets.problem == ProblemType::single_label
                     ? cross_entropy(logits, truth, {.reduction = Reduction::sum}).item()
                     : head_loss(logits, truth, targets.problem).item() * static_cast<double>(rows.size());
  };
  const int64_t width = batch * labels + 1;
  const std::vector<double> numbers = measure_rows(sharing, all, batch, width, measure);
  Tensor logits = Tensor::empty({std::ssize(all), labels});
  double nats = 0;
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    const int64_t row = i % batch;
    const double* const own = numbers.data() + i / batch * width;
    if (row == 0) nats += own[0];
    std::copy_n(own + 1 + row * labels, labels, logits.data<float>() + i * labels);
  }
  LabelScore score = score_logits(logits, target_rows(targets.validation, all), targets.problem);
  score.nats = nats;
  return score;
}

std::optional<LabelScore> ClassifierTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.empty()) return std::nullopt;
  return score_rows(
      sharing, spread_rows(std::ssize(data_.validation), most), settings_.batch, data_.targets,
      [&](const std::vector<int64_t>& rows) { return model_.logits(token_rows(data_.validation, rows)); });
}

void ClassifierTask::save(io::CheckpointContents& contents) {
  save_encoder_files(model_, data_.tokenizer, init_, length_of(settings_), contents);
}

ClassifierData ClassifierTask::read(const Run& run) {
  const auto [training, validation] = read_files<text::LabelledTexts>(run, text::read_labelled);
  return prepare_classifier_data(training, validation,
                                 text::Tokenizer::load(models::tokenizer_folder(run.init)), run.settings);
}

std::vector<std::string> ClassifierTask::notes() const {
  std::vector<std::string> all = data_.targets.notes;
  const int64_t length = length_of(settings_);
  const auto cut = std::ranges::count_if(
      data_.training, [&](const text::Encoding& text) { return std::ssize(text.ids) >= length; });
  if (cut > 0)
    all.push_back(concat(cut, " training texts have ", length, " tokens or more and are cut (--max-length)"));
  return all;
}

std::vector<std::string> ClassifierTask::warnings() const {
  std::vector<std::string> all = data_.targets.warnings;
  if (known_labels_ > 0) {
    all.push_back(concat(
        init_, ": its head has ", known_labels_,
        " labels, but not these, or another number of them a text, so that a new head takes its place"));
  }
  if (settings_.freeze && pools_otherwise(init_)) {
    all.push_back(
        concat(init_,
               ": its texts' vectors are not those of the first token, which the head reads, so "
               "that a frozen encoder has little to say: train all weights, or give --head-only true "
               "in place of --freeze"));
  }
  return all;
}

void ClassifierTask::describe(ClassifierSummary& summary) const {
  summary.labels = data_.targets.names;
  summary.texts = std::ssize(data_.training);
}

const Kind& ClassifierTask::kind() {
  static const Kind kind = {
      .name = "classifier",
      .about = "fine-tune an encoder to classify texts",
      .examples =
          {{"multihead train classifier --init bert --data train.tsv --valid valid.tsv --out model",
            "text TAB label on every line; add --patience 3 to stop early"},
           {"multihead train classifier --init bert --data pairs.jsonl --out model --freeze true --lr 1e-3",
            "train only the head; {\"text\": …, \"text_pair\": …, \"label\": …} on every line"},
           {"multihead train classifier --init all-MiniLM-L6-v2 --data train.tsv --out model --head-only "
            "true",
            "logistic regression on the vectors of an embedder: minutes, and the best with few texts"},
           {"multihead train classifier --data train.tsv --out model --resume",
            "continue an interrupted run"},
           {"multihead classify model --data texts.txt", "use it"}},
      .tag = "text-classification",
      .unit = "text",
      .data =
          "training texts with labels, as TSV, CSV or JSON Lines: text, label; for pairs text_pair between "
          "them",
      .valid = "validation texts; without them there is no evaluation",
      .has_columns = true,
      .make = TaskRun<ClassifierTask>::make};
  return kind;
}

ClassifierSummary ClassifierTask::train(const ClassifierRun& run) { return train_classifier(run); }

ClassifierSummary train_classifier(const ClassifierRun& run) {
  return run.settings.head_only ? train_head(run) : train_task<ClassifierTask>(run);
}

Json to_json(const LabelScore& score) {
  Json json = Json::object({{"loss", number_or_null(score.loss())}});
  if (score.problem == ProblemType::regression) {
    json["pearson"] = number_or_null(score.pearson);
    json["spearman"] = number_or_null(score.spearman);
  } else {
    json["accuracy"] = number_or_null(score.accuracy);
    if (score.problem == ProblemType::multi_label) json["micro_f1"] = number_or_null(score.micro_f1);
    json["macro_f1"] = number_or_null(score.macro_f1);
  }
  json["texts"] = score.texts;
  return json;
}

Json ClassifierSummary::counts() const {
  return Json::object({{"texts", texts}, {"labels", Json(std::vector<Json>(labels.begin(), labels.end()))}});
}

}  // namespace multihead::train
