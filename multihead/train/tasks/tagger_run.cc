#include "multihead/train/tasks/tagger_run.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/models/files/adapter.h"
#include "multihead/ops/loss.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/text/corpus/labelled.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/scores.h"

namespace multihead::train {
namespace {

using models::EncoderHead;
using text::SpannedText;
using LabelIds = std::map<std::string, int64_t>;

// How many entities each label has.
std::map<std::string, int64_t> count_entities(const std::vector<SpannedText>& texts) {
  std::map<std::string, int64_t> counts;
  for (const SpannedText& one : texts) {
    for (const text::Span& span : one.spans) ++counts[span.label];
  }
  return counts;
}

std::vector<std::string> tag_names(const std::map<std::string, int64_t>& entities,
                                   const models::EncoderConfig& known) {
  std::vector<std::string> names = {"O"};
  for (const auto& [label, count] : entities) {
    names.push_back("B-" + label);
    names.push_back("I-" + label);
  }
  const bool keeps = known.head == EncoderHead::tokens && std::ranges::all_of(names, [&](const auto& name) {
                       return std::ranges::find(known.labels, name) != known.labels.end();
                     });
  return keeps ? known.labels : names;
}

// Entities that no token stands for: behind the last token that is read, or within another's token, or blank.
struct MissedEntities {
  int64_t cut = 0, others = 0;
};

// What each token is, in a text of which the first `length` tokens are read.
std::vector<int64_t> labels_of(const text::Encoding& encoding, const std::vector<text::Span>& spans,
                               const LabelIds& ids, int64_t length, MissedEntities& missed) {
  std::vector<int64_t> labels(encoding.ids.size(), text::kIgnoreTarget);
  std::vector<bool> begun(spans.size());
  size_t first = 0, end = 0;
  for (size_t t = 0; t < encoding.ids.size(); ++t) {
    if (encoding.sequence_ids[t] < 0) continue;
    const text::Offsets place = encoding.offsets[t];
    end = place.end;
    while (first < spans.size() && spans[first].place.end <= place.begin) ++first;
    const bool is_inside = first < spans.size() && spans[first].place.begin < place.end;
    labels[t] = ids.at(is_inside ? (begun[first] ? "I-" : "B-") + spans[first].label : "O");
    if (is_inside) begun[first] = true;
  }
  const bool may_be_cut = std::ssize(encoding.ids) >= length;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (!begun[i]) ++(may_be_cut && spans[i].place.begin >= end ? missed.cut : missed.others);
  }
  return labels;
}

TaggedTexts tagged(const std::vector<SpannedText>& texts, const text::Tokenizer& tokenizer, int64_t length,
                   const LabelIds& ids, MissedEntities& missed) {
  TaggedTexts all;
  const text::EncodeOptions options = {.parse_special = true, .max_length = static_cast<size_t>(length)};
  all.texts.resize(texts.size());
  parallel_for(std::ssize(texts), [&](int64_t i, int) {
    all.texts[static_cast<size_t>(i)] = tokenizer.encoding(texts[static_cast<size_t>(i)].text, options);
  });
  for (size_t i = 0; i < texts.size(); ++i) {
    all.labels.push_back(labels_of(all.texts[i], texts[i].spans, ids, length, missed));
    all.entities.push_back(std::ssize(texts[i].spans));
    all.texts[i] = {.ids = std::move(all.texts[i].ids)};  // offsets have served
  }
  return all;
}

// An entity's first token, the one behind its last, and its label.
using TokenSpan = std::tuple<size_t, size_t, std::string>;
// The entities that labels of tokens mean; of the template's tokens, none.
std::vector<TokenSpan> entities_in(const std::vector<int64_t>& labels, const std::vector<std::string>& names,
                                   const std::vector<int64_t>& places) {
  std::vector<TokenSpan> all;
  for (size_t t = 0; t < labels.size(); ++t) {
    if (places[t] == text::kIgnoreTarget) continue;
    const std::string& name = names[static_cast<size_t>(labels[t])];
    if (name == "O") continue;
    const std::string label = name.starts_with("B-") || name.starts_with("I-") ? name.substr(2) : name;
    const bool goes_on = !name.starts_with("B-") && !all.empty() && std::get<1>(all.back()) == t &&
                         std::get<2>(all.back()) == label;
    if (goes_on) {
      std::get<1>(all.back()) = t + 1;
    } else {
      all.emplace_back(t, t + 1, label);
    }
  }
  return all;
}

Tensor targets_of(const TaggedTexts& texts, const std::vector<int64_t>& rows) {
  std::vector<int64_t> all;
  for (const int64_t row : rows) {
    const std::vector<int64_t>& own = texts.labels[static_cast<size_t>(row)];
    all.insert(all.end(), own.begin(), own.end());
  }
  return Tensor::of<int64_t>({std::ssize(all)}, all);
}

models::Encoder tagger_model(const TaggerSettings& s, const std::vector<std::string>& names,
                             const std::string& init, std::vector<std::string>& fresh) {
  return encoder_from(models::with_head(s.model, EncoderHead::tokens, names),
                      models::load_encoder(init, nn::WeightDtype::f32), s.seed, &fresh);
}

// Each text's entities in a column, for the checksum.
std::vector<std::string> span_column(const std::vector<SpannedText>& texts) {
  std::vector<std::string> column;
  for (const SpannedText& one : texts) {
    std::string& cell = column.emplace_back();
    for (const text::Span& span : one.spans)
      cell += concat(span.place.begin, "-", span.place.end, " ", span.label, ";");
  }
  return column;
}

std::vector<std::string> texts_of(const std::vector<SpannedText>& all) {
  std::vector<std::string> texts;
  for (const SpannedText& one : all) texts.push_back(one.text);
  return texts;
}

}  // namespace

TaggerData prepare_tagger_data(const std::vector<SpannedText>& training,
                               const std::vector<SpannedText>& validation, const text::Tokenizer& tokenizer,
                               const TaggerSettings& s) {
  text::check_spans(training, "train: the training data");
  text::check_spans(validation, "train: the validation data");
  const std::map<std::string, int64_t> counts = count_entities(training);
  MH_CHECK(!counts.empty(), FormatError, "train: no text of the training data has an entity");
  for (const auto& [label, count] : count_entities(validation)) {
    MH_CHECK(counts.contains(label), FormatError, "train: the validation data has the label ", quote(label),
             ", which the training data lacks");
  }
  TaggerData data = {.tokenizer = tokenizer, .names = tag_names(counts, s.model)};
  const LabelIds ids = text::label_ids(data.names, "train");
  const auto read = [&](const std::vector<SpannedText>& texts, const char* which, const char* so) {
    MissedEntities missed;
    TaggedTexts all = tagged(texts, tokenizer, length_of(s), ids, missed);
    if (missed.cut > 0) {
      data.notes.push_back(concat(missed.cut, " ", which, " entities lie behind the first ", length_of(s),
                                  " tokens of their texts and ", so, " (--max-length)"));
    }
    if (missed.others > 0) {
      data.notes.push_back(
          concat(missed.others, " ", which, " entities have no token of their own and ", so));
    }
    return all;
  };
  data.training = read(training, "training", "are not read");
  data.validation = read(validation, "validation", "count as not found");
  data.sums = sums_of_columns({texts_of(training), span_column(training)},
                              {texts_of(validation), span_column(validation)});
  Enumeration list;
  for (const auto& [label, count] : counts) list.add(label, " ", count);
  data.notes.insert(data.notes.begin(), concat(training.size(), " training texts with entities: ", list));
  const std::string shared = text::shared_rows({texts_of(training)}, {texts_of(validation)});
  if (!shared.empty()) data.warnings.push_back(shared);
  return data;
}

TaggerTask::TaggerTask(const TaggerSettings& settings, const TaggerData& data, const std::string& init)
    : ModelTask(
          settings,
          [&](const TaggerSettings& s, std::vector<std::string>& fresh) {
            return tagger_model(s, data.names, init, fresh);
          },
          data_id("texts", data.sums, data.tokenizer), settings.eval_texts),
      data_(data),
      init_(init) {}

std::vector<int64_t> TaggerTask::rows_of(int64_t index) const {
  return batch_rows(index, settings_.batch, std::ssize(data_.training.texts),
                    static_cast<uint64_t>(settings_.seed));
}

Task::Loss TaggerTask::loss(int64_t index) {
  const std::vector<int64_t> rows = rows_of(index);
  const models::TokenRows tokens = token_rows(data_.training.texts, rows);
  Rng rng = dropout_rng(settings_, index);
  return {cross_entropy(model_.logits(tokens, &rng), targets_of(data_.training, rows),
                        {.label_smoothing = settings_.label_smoothing}),
          tokens.tokens.numel()};
}

double TaggerTask::targets(int64_t index) const {
  const std::vector<int64_t> labels = targets_of(data_.training, rows_of(index)).to_vector<int64_t>();
  return static_cast<double>(
      std::ranges::count_if(labels, [](int64_t label) { return label != text::kIgnoreTarget; }));
}

std::optional<EntityScore> TaggerTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.texts.empty()) return std::nullopt;
  const NoTape silent;
  // A batch's numbers: its nats, its tokens, the entities that are right, those that were found, and all.
  constexpr int64_t kNumbers = 5;
  const auto measure = [&](const std::vector<int64_t>& rows, std::span<double> numbers) {
    const Tensor logits = model_.logits(token_rows(data_.validation.texts, rows));
    const Tensor targets = targets_of(data_.validation, rows);
    numbers[0] = cross_entropy(logits, targets, {.reduction = Reduction::sum}).item();
    const float* scores = logits.data<float>();
    for (const int64_t row : rows) {
      const std::vector<int64_t>& truth = data_.validation.labels[static_cast<size_t>(row)];
      std::vector<int64_t> guesses;
      for (size_t t = 0; t < truth.size(); ++t, scores += logits.size(1)) {
        guesses.push_back(std::max_element(scores, scores + logits.size(1)) - scores);
        numbers[1] += truth[t] == text::kIgnoreTarget ? 0 : 1;
      }
      std::vector<int64_t> known = truth;
      std::ranges::replace(known, text::kIgnoreTarget, 0);
      const auto found = entities_in(guesses, data_.names, truth),
                 own = entities_in(known, data_.names, truth);
      for (const TokenSpan& one : found) numbers[2] += std::ranges::find(own, one) != own.end() ? 1 : 0;
      numbers[3] += static_cast<double>(found.size());
      numbers[4] += static_cast<double>(data_.validation.entities[static_cast<size_t>(row)]);
    }
  };
  const std::vector<int64_t> all = spread_rows(std::ssize(data_.validation.texts), most);
  const std::vector<double> numbers = measure_rows(sharing, all, settings_.batch, kNumbers, measure);
  EntityScore score = {.texts = std::ssize(all)};
  int64_t right = 0, guessed = 0;
  for (size_t i = 0; i < numbers.size(); i += kNumbers) {
    score.nats += numbers[i];
    score.tokens += static_cast<int64_t>(numbers[i + 1]), right += static_cast<int64_t>(numbers[i + 2]);
    guessed += static_cast<int64_t>(numbers[i + 3]), score.entities += static_cast<int64_t>(numbers[i + 4]);
  }
  const LabelFigures figures = figures_of(right, guessed, score.entities);
  score.precision = figures.precision, score.recall = figures.recall, score.f1 = figures.f1;
  return score;
}

void TaggerTask::save(io::CheckpointContents& contents) {
  save_encoder_files(model_, data_.tokenizer, init_, length_of(settings_), contents);
}

TaggerData TaggerTask::read(const Run& run) {
  const std::vector<SpannedText> training = text::read_spans(run.data);
  return prepare_tagger_data(training,
                             run.valid.empty() ? std::vector<SpannedText>() : text::read_spans(run.valid),
                             text::Tokenizer::load(models::tokenizer_folder(run.init)), run.settings);
}

void TaggerTask::describe(TaggerSummary& summary) const {
  summary.labels = data_.names;
  summary.texts = std::ssize(data_.training.texts);
}

const Kind& TaggerTask::kind() {
  static const Kind kind = {
      .name = "tagger",
      .about = "fine-tune an encoder to find names and other entities in texts",
      .examples = {{"multihead train tagger --init bert --data train.conll --valid valid.conll --out model",
                    "a word and its tag (B-X, I-X, O) on every line, blank lines between texts"},
                   {"multihead train tagger --init bert --data train.jsonl --out model",
                    "{\"text\": …, \"entities\": [{\"start\", \"end\", \"label\"}]} on every line"},
                   {"multihead train tagger --data train.conll --out model --resume",
                    "continue an interrupted run"},
                   {"multihead eval model --data test.conll", "precision, recall and F1 of each label"},
                   {"multihead classify model --data texts.txt", "use it"}},
      .tag = "token-classification",
      .unit = "token",
      .data = "training texts with entities: words with tags (CoNLL), or JSON Lines",
      .valid = "validation texts; without them there is no evaluation",
      .make = TaskRun<TaggerTask>::make};
  return kind;
}

TaggerSummary train_tagger(const TaggerRun& run) { return train_task<TaggerTask>(run); }

std::vector<Field> fields(TaggerSettings& s) {
  std::vector<Field> list;
  add_encoder_fields(list, s);
  list.push_back({"eval-texts", "validation texts per evaluation (0: all)", &s.eval_texts, 0});
  add_training_fields(list, s);
  add_report_fields(list, s);
  return list;
}

void check(const TaggerSettings& settings) {
  TaggerSettings s = settings;
  check_encoder(s, fields(s));
}

Json to_json(const EntityScore& score) {
  return Json::object({{"loss", number_or_null(score.loss())},
                       {"precision", score.precision},
                       {"recall", score.recall},
                       {"f1", score.f1},
                       {"texts", score.texts},
                       {"entities", score.entities}});
}

Json TaggerSummary::counts() const {
  return Json::object({{"texts", texts}, {"labels", Json(std::vector<Json>(labels.begin(), labels.end()))}});
}

}  // namespace multihead::train
