#include "multihead/train/tasks/classifier_run.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/io/directory.h"
#include "multihead/io/json.h"
#include "multihead/models/files/adapter.h"
#include "multihead/ops/loss.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/scores.h"

namespace multihead::train {
namespace {

using models::EncoderHead;

// The encoder's own labels, if no others occur.
std::vector<std::string> labels_of(const text::LabelledTexts& texts, const models::EncoderConfig& config) {
  const std::vector<std::string> found = text::distinct_labels(texts.labels);
  const auto is_known = [&](const std::string& label) {
    return std::find(config.labels.begin(), config.labels.end(), label) != config.labels.end();
  };
  const bool keeps =
      config.head == EncoderHead::classification && std::all_of(found.begin(), found.end(), is_known);
  return keeps ? config.labels : found;
}

std::vector<int64_t> label_ids(const std::vector<std::string>& names,
                               const std::vector<std::string>& labels) {
  std::map<std::string, int64_t> ids;
  for (const std::string& name : names) ids.emplace(name, std::ssize(ids));
  std::vector<int64_t> result;
  for (const std::string& label : labels) {
    const auto found = ids.find(label);
    MH_CHECK(found != ids.end(), FormatError, "train: the validation data has the label ", quote(label),
             ", which the training data lacks");
    result.push_back(found->second);
  }
  return result;
}

Encodings encode(const text::LabelledTexts& texts, const text::Tokenizer& tokenizer,
                 const ClassifierSettings& s) {
  return texts.seconds.empty() ? encode_texts(tokenizer, texts.texts, length_of(s))
                               : encode_pair_texts(tokenizer, texts.texts, texts.seconds, length_of(s),
                                                   s.model.token_types > 1);
}

models::Encoder make_model(const ClassifierSettings& s, const std::vector<std::string>& labels,
                           const std::string& init, std::vector<std::string>& fresh) {
  const models::EncoderConfig config = models::with_head(s.model, EncoderHead::classification, labels);
  models::Encoder model = encoder_from(config, models::load_encoder(init), s.seed, &fresh);
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

// Numbers with a fraction are measurements, which a classifier would take for names.
void check_names(const std::vector<std::string>& labels, const ClassifierSettings& s) {
  if (s.labels_as_names) return;
  const auto is_number = [](const std::string& label) {
    double value = 0;
    const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), value);
    return error == std::errc() && end == label.data() + label.size();
  };
  const auto has_fraction = [](const std::string& label) { return label.find('.') != label.npos; };
  MH_CHECK(!std::ranges::all_of(labels, is_number) || std::ranges::none_of(labels, has_fraction), FormatError,
           "train: the labels are numbers, such as ", labels.back(),
           ", and a classifier knows no order of them; give --labels-as-names true if they are names");
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The labels by their counts, most frequent first.
std::vector<std::pair<int64_t, std::string>> counts_of(const std::vector<std::string>& labels) {
  std::map<std::string, int64_t> counts;
  for (const std::string& label : labels) ++counts[label];
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [label, count] : counts) order.emplace_back(count, label);
  std::ranges::stable_sort(order, std::greater(), &std::pair<int64_t, std::string>::first);
  return order;
}

void describe_labels(ClassifierData& data, const text::LabelledTexts& training,
                     const text::LabelledTexts& validation) {
  constexpr size_t kShown = 30;
  const auto counts = counts_of(training.labels);
  std::string list;
  for (size_t i = 0; i < std::min(counts.size(), kShown); ++i) {
    list += concat(i == 0 ? "" : ", ", counts[i].second, " ", counts[i].first);
  }
  if (counts.size() > kShown) list += concat(" and ", counts.size() - kShown, " more");
  data.notes.push_back(concat(training.texts.size(), " training texts, ", counts.size(), " labels: ", list));
  if (!validation.labels.empty()) {
    const auto hits = std::ranges::count(validation.labels, counts[0].second);
    data.notes.push_back(
        concat(validation.texts.size(), " validation texts; \"", counts[0].second,
               "\" for all of them would have an accuracy of ",
               std::round(1e4 * static_cast<double>(hits) / std::ssize(validation.labels)) / 1e4));
  }
  std::map<std::string, std::string> known;
  for (const auto& [count, label] : counts) {
    const auto [other, is_new] = known.emplace(lower_case(label), label);
    if (is_new) continue;
    data.warnings.push_back(concat("the labels ", quote(other->second), " and ", quote(label), " (", count,
                                   " texts) differ in capital letters only"));
  }
  const std::string shared =
      text::shared_rows({training.texts, training.seconds}, {validation.texts, validation.seconds});
  if (!shared.empty()) data.warnings.push_back(shared);
}

Tensor targets_of(const std::vector<int64_t>& labels, const std::vector<int64_t>& rows) {
  std::vector<int64_t> targets;
  for (const int64_t row : rows) targets.push_back(labels[static_cast<size_t>(row)]);
  return Tensor::of<int64_t>({std::ssize(targets)}, targets);
}

}  // namespace

ClassifierData prepare_classifier_data(const text::LabelledTexts& training,
                                       const text::LabelledTexts& validation,
                                       const text::Tokenizer& tokenizer, const ClassifierSettings& s) {
  ClassifierData data{tokenizer, labels_of(training, s.model)};
  check_names(data.labels, s);
  MH_CHECK(data.labels.size() > 1, FormatError, "train: all texts have the label ", quote(data.labels.at(0)),
           "; a classifier needs two");
  MH_CHECK(validation.texts.empty() || validation.seconds.empty() == training.seconds.empty(), FormatError,
           "train: only the ", training.seconds.empty() ? "validation" : "training",
           " data has pairs of texts");
  data.training = encode(training, tokenizer, s);
  data.validation = encode(validation, tokenizer, s);
  data.training_labels = label_ids(data.labels, training.labels);
  data.validation_labels = label_ids(data.labels, validation.labels);
  data.checksum = checksum_of_columns({training.texts, training.seconds, training.labels});
  describe_labels(data, training, validation);
  return data;
}

LabelScore score_labels(const std::vector<int64_t>& guesses, const std::vector<int64_t>& labels,
                        int64_t num_labels) {
  const LabelReport report = report_labels(guesses, labels, num_labels);
  return {.texts = std::ssize(guesses), .accuracy = report.accuracy, .macro_f1 = report.macro.f1};
}

ClassifierTask::ClassifierTask(const ClassifierSettings& settings, const ClassifierData& data,
                               const std::string& init)
    : ModelTask(
          settings,
          [&](const ClassifierSettings& s, std::vector<std::string>& fresh) {
            return make_model(s, data.labels, init, fresh);
          },
          data_id("texts", data.checksum, data.tokenizer), settings.eval_texts),
      data_(data),
      init_(init),
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
  return {cross_entropy(std::move(logits), targets_of(data_.training_labels, rows),
                        {.label_smoothing = settings_.label_smoothing}),
          tokens.tokens.numel()};
}

int64_t ClassifierTask::targets(int64_t) const { return settings_.batch; }

std::optional<LabelScore> ClassifierTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.empty()) return std::nullopt;
  const NoTape silent;
  const std::vector<int64_t> all = spread_rows(std::ssize(data_.validation), most);
  // A batch's numbers: its nats, then the label that each text is taken for.
  const auto measure = [&](const std::vector<int64_t>& rows, std::span<double> numbers) {
    const Tensor logits = model_.logits(token_rows(data_.validation, rows));
    const Tensor targets = targets_of(data_.validation_labels, rows);
    numbers[0] = cross_entropy(logits, targets, {.reduction = Reduction::sum}).item();
    const int64_t width = logits.size(1);
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const float* row = logits.data<float>() + i * width;
      numbers[static_cast<size_t>(i) + 1] = static_cast<double>(std::max_element(row, row + width) - row);
    }
  };
  const int64_t width = settings_.batch + 1;
  const std::vector<double> numbers = measure_rows(sharing, all, settings_.batch, width, measure);
  std::vector<int64_t> guesses, labels;
  double nats = 0;
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    const int64_t row = i % settings_.batch;
    const double* const batch = numbers.data() + i / settings_.batch * width;
    if (row == 0) nats += batch[0];
    guesses.push_back(static_cast<int64_t>(batch[row + 1]));
    labels.push_back(data_.validation_labels[static_cast<size_t>(all[static_cast<size_t>(i)])]);
  }
  LabelScore score = score_labels(guesses, labels, std::ssize(data_.labels));
  score.nats = nats;
  return score;
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
  std::vector<std::string> all = data_.notes;
  const int64_t length = length_of(settings_);
  const auto cut = std::ranges::count_if(
      data_.training, [&](const text::Encoding& text) { return std::ssize(text.ids) >= length; });
  if (cut > 0)
    all.push_back(concat(cut, " training texts have ", length, " tokens or more and are cut (--max-length)"));
  return all;
}

std::vector<std::string> ClassifierTask::warnings() const {
  std::vector<std::string> all = data_.warnings;
  if (known_labels_ > 0) {
    all.push_back(concat(init_, ": its head has ", known_labels_,
                         " labels and not all of these, so that a new head takes its place"));
  }
  if (settings_.freeze && pools_otherwise(init_)) {
    all.push_back(concat(init_,
                         ": its texts' vectors are not those of the first token, which the head reads, so "
                         "that a frozen encoder has little to say: train all weights, or fit a linear "
                         "classifier to the vectors of multihead embed"));
  }
  return all;
}

void ClassifierTask::describe(ClassifierSummary& summary) const {
  summary.labels = data_.labels;
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
           {"multihead train classifier --data train.tsv --out model --resume",
            "continue an interrupted run"},
           {"multihead classify model --data texts.txt", "use it"}},
      .unit = "text",
      .data =
          "training texts with labels, as TSV, CSV or JSON Lines: text, label; for pairs text_pair between "
          "them",
      .valid = "validation texts; without them there is no evaluation",
      .has_columns = true,
      .make = TaskRun<ClassifierTask>::make};
  return kind;
}

ClassifierSummary train_classifier(const ClassifierRun& run) { return train_task<ClassifierTask>(run); }

Json to_json(const LabelScore& score) {
  return Json::object({{"loss", number_or_null(score.loss())},
                       {"accuracy", number_or_null(score.accuracy)},
                       {"macro_f1", number_or_null(score.macro_f1)},
                       {"texts", score.texts}});
}

Json ClassifierSummary::counts() const {
  return Json::object({{"texts", texts}, {"labels", Json(std::vector<Json>(labels.begin(), labels.end()))}});
}

}  // namespace multihead::train
