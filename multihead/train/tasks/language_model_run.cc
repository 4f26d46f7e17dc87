#include "multihead/train/tasks/language_model_run.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/lora.h"
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

LanguageModelSettings with_vocabulary(LanguageModelSettings settings, int64_t vocab_size) {
  settings.model.vocab_size = std::max(settings.model.vocab_size, vocab_size);
  settings.model = models::resolved(settings.model);
  return settings;
}

models::LanguageModel make_model(const LanguageModelSettings& settings) {
  check_training_memory(settings, models::matrix_weights(settings.model));
  Rng rng(static_cast<uint64_t>(settings.seed));
  return {settings.model, rng};
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
    : settings_(with_vocabulary(settings, data.tokenizer.vocab_size())),
      data_(data),
      order_(static_cast<int64_t>(data.training.size()), settings.model.context,
             static_cast<uint64_t>(settings.seed)),
      model_(make_model(settings_)) {}

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

std::optional<double> LanguageModelTask::evaluate(const Sharing& sharing) {
  if (data_.validation.size() < 2) return std::nullopt;
  return train::evaluate(model_, data_.validation,
                         {.batch = settings_.batch, .windows = settings_.eval_windows, .sharing = sharing})
      .loss();
}

void LanguageModelTask::save(io::CheckpointContents& contents) {
  contents.tensors["model.safetensors"] = models::language_model_tensors(model_);
  contents.files["config.json"] = models::config_to_json(model_.config()).dump(2) + "\n";
  contents.files["tokenizer.json"] = data_.tokenizer.to_json();
  contents.files["tokenizer_config.json"] = data_.tokenizer.config_json();
}

void LanguageModelTask::load(const std::string& path) {
  models::import_weights(nn::named_parameters(model_), models::weight_map(model_),
                         io::SafetensorsFile(path + "/model.safetensors"));
}

Json LanguageModelTask::identity() const {
  Json identity = identity_of(settings_);
  identity["text"] = checksum_text(data_.checksum);
  identity["tokenizer_fingerprint"] = checksum_text(data_.tokenizer.fingerprint());
  return identity;
}

namespace {

// Every rank reads the text; the tokenizer is the leader's.
LanguageModelData load_data(const LanguageModelRun& run, const RunFolder* folder, const std::string& text) {
  const text::Tokenizer tokenizer = tokenizer_of(run, folder, [&] {
    MH_CHECK(!text.empty(), ValueError, "train: ", run.data,
             " holds tokens; give the tokenizer that made them with --tokenizer-file");
    return train_tokenizer(text, run.settings);
  });
  if (!text.empty()) return prepare_language_model_data(text, run.data, run.settings, &tokenizer);
  return map_language_model_data(run.data, run.settings, tokenizer, run.rank(), run.ranks());
}

}  // namespace

void start_from(LanguageModelSettings& settings, const std::string& init) {
  settings.model = models::load_language_model(init, nn::WeightDtype::f32).config();
}

LanguageModelSummary train_language_model(const LanguageModelRun& request) {
  const LanguageModelRun run = checked(request);
  if (run.settings.context_shards > 1)
    check_context(run.settings.model.context, run.settings.context_shards, run.ranks());
  // Before the folder exists: a run that cannot begin leaves nothing behind.
  check_training_memory(run.settings, models::matrix_weights(least_model(run.settings)), run.ranks());
  std::string text;
  if (!text::TokenFiles::is_one(run.data)) {
    text = text::read_text(run.data);
    check_length(static_cast<int64_t>(text.size()), "bytes", run.data, run.settings);
  }
  const auto folder = folder_of(run);
  const LanguageModelData data = load_data(run, folder.get(), text);
  LanguageModelTask task(run.settings, data);
  check_alike(run, run.settings, task.identity());
  const bool begins = begin_run(run, folder.get());
  share_start(run, begins || run.settings.lora.rank > 0, task.model(), [](const std::string& init) {
    return models::load_language_model(init, nn::WeightDtype::f32);
  });
  LanguageModelSummary summary;
  run_or_adapt(run, folder.get(), task, true, summary, [&]() -> std::optional<TextLoss> {
    if (data.validation.size() < 2) return std::nullopt;
    const EvaluateOptions options = {.batch = run.settings.batch, .sharing = run.sharing()};
    return evaluate(task.model(), data.validation, options, &data.tokenizer);
  });
  return summary;
}

Json to_json(const LanguageModelSummary& s) {
  Json json = to_json(static_cast<const RunSummary&>(s));
  if (s.validation) {
    json["validation"] =
        Json::object({{"loss", number_or_null(s.validation->loss())},
                      {"perplexity", number_or_null(s.validation->perplexity())},
                      {"nats_per_character", number_or_null(s.validation->nats_per_character())},
                      {"bits_per_byte", number_or_null(s.validation->bits_per_byte())},
                      {"tokens", s.validation->tokens},
                      {"bytes", s.validation->bytes}});
  }
  return json;
}

}  // namespace multihead::train
