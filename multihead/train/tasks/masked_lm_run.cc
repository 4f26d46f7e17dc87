#include "multihead/train/tasks/masked_lm_run.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/loss.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/data/rows.h"

namespace multihead::train {
namespace {

// Streams of the seed for what is hidden, apart from those of weights and dropout.
constexpr uint64_t kTrainingStreams = uint64_t{1} << 62;
constexpr uint64_t kValidationStreams = uint64_t{3} << 61;

// The tokens that the tokenizer puts before and after a text.
std::pair<std::vector<int32_t>, std::vector<int32_t>> template_of(const text::Tokenizer& tokenizer) {
  const std::vector<int32_t> bare = tokenizer.encode("a", {.add_template = false}),
                             whole = tokenizer.encode("a");
  const auto at = std::search(whole.begin(), whole.end(), bare.begin(), bare.end());
  return {{whole.begin(), at}, {at + std::ssize(bare), whole.end()}};
}

MaskedLmSettings with_vocabulary(MaskedLmSettings s, int64_t vocab_size) {
  s.model.vocab_size = std::max(s.model.vocab_size, vocab_size);
  s.model = models::with_head(s.model, models::EncoderHead::masked_lm);
  return s;
}

// A model that is fine-tuned keeps its sizes and positions: --context is the length of sequences, length_of(settings).
models::Encoder make_model(const MaskedLmSettings& s, const std::string& init,
                           std::vector<std::string>& fresh) {
  models::EncoderConfig config = s.model;
  if (init.empty()) {
    Rng rng(static_cast<uint64_t>(s.seed));
    return {config, rng};
  }
  const models::Encoder start = models::load_encoder(init, nn::WeightDtype::f32);
  models::EncoderConfig own = start.config();
  refuse_other_sizes(model_fields(config), model_fields(own), init);
  MH_CHECK(config.context <= own.context, ValueError, "train: a --context of ", config.context,
           " tokens is more than the model of --init ", init, " reads, ", own.context);
  config.context = own.context;
  return encoder_from(config, start, s.seed, &fresh);
}

text::Tokenizer train_tokenizer(const std::string& text, const MaskedLmSettings& s) {
  const text::SpecialTokens special = {.pad = "[PAD]", .others = {"[CLS]", "[SEP]", "[MASK]"}};
  std::vector<std::string_view> training = {text};
  if (s.validation_share > 0) training = text::split_corpus(text, {.validation = s.validation_share}).train;
  return text::Tokenizer::train_bpe(
      training, {.vocab_size = s.vocab_size, .special = special, .first = "[CLS]", .end = "[SEP]"});
}

}  // namespace

MaskedLmTask::MaskedLmTask(const MaskedLmSettings& settings, const LanguageModelData& data,
                           const std::string& init)
    : ModelTask(
          with_vocabulary(settings, data.tokenizer.vocab_size()),
          [&](const MaskedLmSettings& s, std::vector<std::string>& fresh) {
            return make_model(s, init, fresh);
          },
          data_id("text", data.sums, data.tokenizer), settings.eval_windows),
      data_(data),
      init_(init),
      before_(template_of(data.tokenizer).first),
      after_(template_of(data.tokenizer).second),
      window_(length_of(settings) - std::ssize(before_) - std::ssize(after_)),
      order_(data.training.size(), std::max<int64_t>(window_, 1), static_cast<uint64_t>(settings.seed)),
      masker_(data.tokenizer, {settings.mask_share, settings.whole_words}) {
  MH_CHECK(window_ > 0, ValueError, "train: sequences of ", length_of(settings),
           " tokens leave no room beside the tokenizer's template");
}

MaskedLmTask::Batch MaskedLmTask::batch_of(const text::TokenView& text,
                                           std::span<const Window> windows) const {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int64_t> places, targets;
  int64_t first = 0;
  for (const Window& window : windows) {
    const std::vector<int64_t> begins = {window.begin};
    const Tensor tokens = gather_windows(text, begins, window_).tokens;
    const MaskedText masked =
        masker_({tokens.data<int32_t>(), static_cast<size_t>(tokens.numel())}, window.hidden);
    std::vector<int32_t>& sequence = sequences.emplace_back(before_);
    sequence.insert(sequence.end(), masked.tokens.begin(), masked.tokens.end());
    sequence.insert(sequence.end(), after_.begin(), after_.end());
    for (const int64_t place : masked.places) places.push_back(first + std::ssize(before_) + place);
    targets.insert(targets.end(), masked.targets.begin(), masked.targets.end());
    first += std::ssize(sequence);
  }
  const Shape shape = {std::ssize(places)};
  return {models::TokenRows::of(sequences), Tensor::of<int64_t>(shape, places),
          Tensor::of<int64_t>(shape, targets)};
}

MaskedLmTask::Batch MaskedLmTask::training_batch(int64_t index) const {
  std::vector<Window> windows;
  for (int64_t row = index * settings_.batch; row < (index + 1) * settings_.batch; ++row) {
    windows.push_back(
        {order_.begin(row),
         {static_cast<uint64_t>(settings_.seed), kTrainingStreams + static_cast<uint64_t>(row)}});
  }
  return batch_of(data_.training, windows);
}

double MaskedLmTask::targets(int64_t index) const {
  return static_cast<double>(training_batch(index).targets.numel());
}

Task::Loss MaskedLmTask::loss(int64_t index) {
  const Batch batch = training_batch(index);
  Rng rng = dropout_rng(settings_, index);
  return {cross_entropy(model_.logits_at(batch.rows, batch.places, &rng), batch.targets,
                        {.label_smoothing = settings_.label_smoothing}),
          batch.rows.tokens.numel()};
}

std::optional<MaskedLoss> MaskedLmTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.size() <= window_) return std::nullopt;
  const NoTape silent;
  // A batch's numbers: its nats, its hidden tokens, those of them that are found.
  const auto measure = [&](const std::vector<int64_t>& rows, std::span<double> numbers) {
    std::vector<Window> windows;
    for (const int64_t row : rows) {
      windows.push_back(
          {row * window_,
           {static_cast<uint64_t>(settings_.seed), kValidationStreams + static_cast<uint64_t>(row)}});
    }
    const Batch batch = batch_of(data_.validation, windows);
    const Tensor logits = model_.logits_at(batch.rows, batch.places);
    numbers[0] = cross_entropy(logits, batch.targets, {.reduction = Reduction::sum}).item();
    numbers[1] = static_cast<double>(logits.size(0));
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const float* row = logits.data<float>() + i * logits.size(1);
      const bool is_right =
          std::max_element(row, row + logits.size(1)) - row == batch.targets.data<int64_t>()[i];
      numbers[2] += is_right ? 1 : 0;
    }
  };
  const std::vector<double> numbers = measure_rows(
      sharing, spread_rows((data_.validation.size() - 1) / window_, most), settings_.batch, 3, measure);
  MaskedLoss total;
  for (size_t i = 0; i < numbers.size(); i += 3) {
    total.nats += numbers[i];
    total.tokens += static_cast<int64_t>(numbers[i + 1]);
    total.right += static_cast<int64_t>(numbers[i + 2]);
  }
  return total;
}

void MaskedLmTask::save(io::CheckpointContents& contents) {
  save_encoder_files(model_, data_.tokenizer, init_, 0, contents);
}

std::string MaskedLmTask::read(const Run& run) { return text::read_corpus(run.data); }

// Every rank reads the text; the tokenizer is the leader's.
LanguageModelData MaskedLmTask::prepare(const Run& run, const RunFolder* folder, const std::string& text) {
  const text::Tokenizer tokenizer =
      tokenizer_of(run, folder, [&] { return train_tokenizer(text, run.settings); });
  LanguageModelSettings as_text;
  as_text.model.context = length_of(run.settings);
  as_text.validation_share = run.settings.validation_share;
  return prepare_language_model_data(text, run.data, as_text, &tokenizer);
}

const Kind& MaskedLmTask::kind() {
  static const Kind kind = {
      .name = "mlm",
      .about = "train an encoder on a text by masked language modelling",
      .examples = {{"multihead train mlm --init bert --data mine.txt --out model",
                    "continue pre-training a model on your own texts"},
                   {"multihead train mlm --data corpus.txt --out model --preset tiny",
                    "train a new encoder and tokenizer"},
                   {"multihead train mlm --data mine.txt --out model --resume",
                    "continue an interrupted run"},
                   {"multihead fill-mask model --text \"Paris is the [MASK] of France.\"", "use it"}},
      .tag = "fill-mask",
      .unit = "hidden token",
      .data = "training text, UTF-8",
      .tokenizer = "use this tokenizer.json (or its folder)",
      .presets = masked_lm_presets(),
      .make = TaskRun<MaskedLmTask>::make};
  return kind;
}

MaskedLmSummary train_masked_lm(const MaskedLmRun& run) { return train_task<MaskedLmTask>(run); }

Json to_json(const MaskedLoss& loss) {
  return Json::object({{"loss", number_or_null(loss.loss())},
                       {"accuracy", number_or_null(loss.accuracy())},
                       {"tokens", loss.tokens}});
}

}  // namespace multihead::train
