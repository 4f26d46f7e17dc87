#include "multihead/train/tasks/language_model_run.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/parallel/context_parallel.h"

namespace multihead::train {
namespace {

void check_length(int64_t size, const char* unit, const std::string& name,
                  const LanguageModelSettings& settings) {
  MH_CHECK(size > settings.model.context, FormatError, name, ": it has ", size, " ", unit,
           ", expected more than one context of ", settings.model.context,
           "; give more text or a smaller --context");
}

text::TextSplit split_of(const std::string& text, const LanguageModelSettings& settings) {
  if (settings.validation_share == 0) return {{text}, {}};
  return text::split_corpus(text,
                            {.validation = settings.validation_share, .blocks = settings.validation_blocks});
}

text::Tokenizer train_tokenizer(const std::string& text, const LanguageModelSettings& settings) {
  if (settings.tokenizer == TokenizerChoice::characters) return text::Tokenizer::train_characters(text);
  return text::Tokenizer::train_bpe(split_of(text, settings).train, {.vocab_size = settings.vocab_size});
}

// Says which special tokens a text spells, which encode() reads as plain characters.
std::vector<std::string> spelled_special(std::string_view text, const std::string& name,
                                         const text::Tokenizer& tokenizer) {
  constexpr size_t kLooksAt = size_t{1} << 24;  // bytes: there can be hundreds of special tokens
  const std::string_view begin = text.substr(0, kLooksAt);
  std::string found;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id) || begin.find(tokenizer.token(id)) == begin.npos) continue;
    found += concat(found.empty() ? "" : ", ", quote(tokenizer.token(id)));
  }
  if (found.empty()) return {};
  return {concat(name, " spells special tokens, which are read as plain characters: ", found,
                 "; to train on them as tokens, encode the text with tokenizer encode --special")};
}

LanguageModelSettings with_vocabulary(LanguageModelSettings settings, int64_t vocab_size) {
  settings.model.vocab_size = std::max(settings.model.vocab_size, vocab_size);
  settings.model = models::resolved(settings.model);
  return settings;
}

}  // namespace

LanguageModelData prepare_language_model_data(const std::string& text, const std::string& name,
                                              const LanguageModelSettings& settings,
                                              const text::Tokenizer* tokenizer) {
  check_length(static_cast<int64_t>(text.size()), "bytes", name, settings);
  const text::TextSplit split = split_of(text, settings);
  LanguageModelData data{tokenizer != nullptr ? *tokenizer : train_tokenizer(text, settings),
                         std::span<const int32_t>(), std::span<const int32_t>(), checksum(text)};
  size_t training = 0;
  try {
    data.tokens = text::encode_all(data.tokenizer, split.train);
    training = data.tokens.size();
    const std::vector<int32_t> validation = text::encode_all(data.tokenizer, split.validation);
    data.tokens.insert(data.tokens.end(), validation.begin(), validation.end());
  } catch (const ValueError& error) {  // a character that the given tokenizer does not know
    throw FormatError(concat(name, ": ", error.what()));
  }
  const std::span<const int32_t> all(data.tokens);
  data.training = all.first(training);
  data.validation = all.subspan(training);
  check_length(data.training.size(), "training tokens", name, settings);
  data.warnings = spelled_special(text, name, data.tokenizer);
  return data;
}

LanguageModelData map_language_model_data(const std::string& path, const LanguageModelSettings& settings,
                                          const text::Tokenizer& tokenizer, int rank, int ranks) {
  text::TokenFiles files = text::TokenFiles::open(path);
  files.check_tokenizer(tokenizer.fingerprint());
  files.files().size() == 1 ? files.verify() : files.verify(rank, ranks);
  const text::TokenView all = files.tokens();
  const auto held_out = static_cast<int64_t>(static_cast<double>(all.size()) * settings.validation_share);
  const int64_t training = all.size() - held_out;
  check_length(training, "training tokens", path, settings);
  const uint64_t sum = files.checksum();
  return {tokenizer, all.sub(0, training), all.sub(training, held_out), sum, {}, std::move(files)};
}

LanguageModelTask::LanguageModelTask(const LanguageModelSettings& settings, const LanguageModelData& data)
    : ModelTask(
          with_vocabulary(settings, data.tokenizer.vocab_size()),
          [](const LanguageModelSettings& s, std::vector<std::string>&) {
            Rng rng(static_cast<uint64_t>(s.seed));
            return models::LanguageModel(s.model, rng);
          },
          data_id("text", data.checksum, data.tokenizer), settings.eval_windows),
      data_(data),
      order_(static_cast<int64_t>(data.training.size()), settings.model.context,
             static_cast<uint64_t>(settings.seed)) {}

Task::Loss LanguageModelTask::loss(int64_t index) {
  std::vector<int64_t> begins;
  for (int64_t row = 0; row < settings_.batch; ++row) {
    begins.push_back(order_.begin(index * settings_.batch + row));
  }
  WindowBatch batch = gather_windows(data_.training, begins, settings_.model.context);
  if (const ContextScope* part = ContextScope::current()) {
    batch = {part->take(batch.tokens, 1), part->take(batch.targets, 1)};
  }
  Rng rng = dropout_rng(settings_, index);
  return {model_.loss(batch.tokens, batch.targets, {.rng = &rng}, settings_.label_smoothing),
          batch.tokens.numel(),
          static_cast<double>(batch.tokens.size(1)) / static_cast<double>(settings_.model.context)};
}

int64_t LanguageModelTask::targets(int64_t) const { return settings_.batch * settings_.model.context; }

std::unique_ptr<Task> LanguageModelTask::twin(std::vector<nn::NamedTensor>& parameters) const {
  auto twin = std::make_unique<LanguageModelTask>(*this);
  nn::replace_parameters(twin->model_, [](const Tensor& parameter) { return parameter.detach(); });
  parameters = trained_parameters(twin->model_);
  return twin;
}

std::optional<TextLoss> LanguageModelTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.size() < 2) return std::nullopt;
  return train::evaluate(model_, data_.validation,
                         {.batch = settings_.batch, .windows = most, .sharing = sharing},
                         most == 0 ? &data_.tokenizer : nullptr);
}

void LanguageModelTask::save(io::CheckpointContents& contents) {
  contents.tensors["model.safetensors"] = models::language_model_tensors(model_);
  contents.files["config.json"] = models::config_to_json(model_.config()).dump(2) + "\n";
  contents.files["tokenizer.json"] = data_.tokenizer.to_json();
  contents.files["tokenizer_config.json"] = data_.tokenizer.config_json();
}

std::string LanguageModelTask::read(const Run& run) {
  if (run.settings.context_shards > 1)
    check_context(run.settings.model.context, run.settings.context_shards, run.ranks());
  if (text::TokenFiles::is_one(run.data)) return "";
  std::string text = text::read_text(run.data);
  check_length(static_cast<int64_t>(text.size()), "bytes", run.data, run.settings);
  return text;
}

// Every rank reads the text; the tokenizer is the leader's.
LanguageModelData LanguageModelTask::prepare(const Run& run, const RunFolder* folder,
                                             const std::string& text) {
  const text::Tokenizer tokenizer = tokenizer_of(run, folder, [&] {
    MH_CHECK(!text.empty(), ValueError, "train: ", run.data,
             " holds tokens; give the tokenizer that made them with --tokenizer-file");
    return train_tokenizer(text, run.settings);
  });
  if (!text.empty()) return prepare_language_model_data(text, run.data, run.settings, &tokenizer);
  return map_language_model_data(run.data, run.settings, tokenizer, run.rank(), run.ranks());
}

models::LanguageModel LanguageModelTask::load_init(const std::string& init) {
  return models::load_language_model(init, nn::WeightDtype::f32);
}

const Kind& LanguageModelTask::kind() {
  static const Kind kind = {
      .name = "lm",
      .about = "train a language model on a text file",
      .examples =
          {{"multihead train lm --data austen.txt --out model --preset tiny",
            "the demo: a few minutes on two cores"},
           {"multihead train lm --data austen.txt --out model --resume", "continue an interrupted run"},
           {"mpirun -n 4 multihead train lm --data austen.txt --out model",
            "on four processes or machines; same weights as on one"},
           {"mpirun -n 4 multihead train lm --data t.txt --out m --context 65536 --context-shards 4",
            "each process holds a quarter of every sequence"},
           {"multihead train lm --data mine.txt --out tuned --init model --lr 1e-4", "fine-tune a model"},
           {"multihead train lm --data t.txt --out m --layers 6 --heads 8 --width 256 --tokenizer char",
            "custom sizes, character-level tokens"}},
      .unit = "token",
      .data = "training text, UTF-8; or tokens, or a list of token files (tokenizer encode, list)",
      .tokenizer = "use this tokenizer.json (or its folder)",
      .presets = language_model_presets(),
      .make = TaskRun<LanguageModelTask>::make};
  return kind;
}

void start_from(LanguageModelSettings& settings, const std::string& init) {
  settings.model = LanguageModelTask::load_init(init).config();
}

LanguageModelSummary train_language_model(const LanguageModelRun& run) {
  return train_task<LanguageModelTask>(run);
}

}  // namespace multihead::train
