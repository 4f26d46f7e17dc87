#include "multihead/train/language_model_run.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/models/hugging_face.h"
#include "multihead/ops/attention/context_scope.h"
#include "multihead/text/corpus.h"
#include "multihead/train/context_parallel.h"
#include "multihead/train/lora.h"

namespace multihead::train {
namespace {

void check_length(int64_t size, const char* unit, const std::string& name,
                  const LanguageModelSettings& settings) {
  MH_CHECK(size > settings.model.context, FormatError, name, ": it has ", size, " ", unit,
           ", expected more than one context of ", settings.model.context,
           "; give more text or a smaller --context");
}

text::Tokenizer make_tokenizer(const std::string& text, const std::vector<std::string_view>& training,
                               const LanguageModelSettings& settings) {
  if (settings.tokenizer == TokenizerChoice::characters) return text::Tokenizer::train_characters(text);
  return text::Tokenizer::train_bpe(training, {.vocab_size = settings.vocab_size});
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
  text::TextSplit split{{text}, {}};
  if (settings.validation_share > 0) {
    split = text::split_corpus(
        text, {.validation = settings.validation_share, .blocks = settings.validation_blocks});
  }
  LanguageModelData data{tokenizer != nullptr ? *tokenizer : make_tokenizer(text, split.train, settings),
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

LanguageModelData data_of(const LanguageModelRun& run, const std::string& text,
                          const text::Tokenizer& tokenizer) {
  if (text.empty()) {
    const int rank = run.group != nullptr ? run.group->rank() : 0;
    return map_language_model_data(run.data, run.settings, tokenizer, rank, run.ranks());
  }
  return prepare_language_model_data(text, run.data, run.settings, &tokenizer);
}

// A resumed run goes on with the tokenizer it began with.
LanguageModelData load_data(const LanguageModelRun& run, const RunFolder& folder, const std::string& text) {
  const std::string given = run.tokenizer.empty() ? run.init : run.tokenizer,
                    path = folder.checkpoint() ? folder.checkpoint()->path : given;
  if (!path.empty()) return data_of(run, text, text::Tokenizer::load(path));
  MH_CHECK(!text.empty(), ValueError, "train: ", run.data,
           " holds tokens; give the tokenizer that made them with --tokenizer-file");
  return prepare_language_model_data(text, run.data, run.settings);
}

// Every rank reads the text; the tokenizer is the leader's.
LanguageModelData share_data(const LanguageModelRun& run, const RunFolder* folder, const std::string& text) {
  if (run.ranks() == 1) return load_data(run, *folder, text);
  std::optional<LanguageModelData> data;
  if (run.leads()) data = load_data(run, *folder, text);
  const text::Tokenizer tokenizer = share_tokenizer(*run.group, run.leads() ? &data->tokenizer : nullptr);
  return run.leads() ? std::move(*data) : data_of(run, text, tokenizer);
}

}  // namespace

void start_from(LanguageModelSettings& settings, const std::string& init) {
  settings.model = models::load_language_model(init, nn::WeightDtype::f32).config();
}

LanguageModelSummary train_language_model(const LanguageModelRun& request) {
  LanguageModelRun run = request;
  run.settings.shards = shards_of(run.settings, run.ranks());
  check(run.settings);
  check_ranks(run, run.settings);
  check_lora(run.settings, run.init);
  if (run.settings.context_shards > 1)
    check_context(run.settings.model.context, run.settings.context_shards, run.ranks());
  // Before the folder exists: a run that cannot begin leaves nothing behind.
  check_training_memory(run.settings, models::matrix_weights(least_model(run.settings)), run.ranks());
  std::string text;
  if (!text::TokenFiles::is_one(run.data)) {
    text = text::read_text(run.data);
    check_length(static_cast<int64_t>(text.size()), "bytes", run.data, run.settings);
  }
  std::optional<RunFolder> folder;
  if (run.leads()) folder.emplace(run.folder, run.resume, run.overwrite);
  const LanguageModelData data = share_data(run, folder ? &*folder : nullptr, text);
  LanguageModelTask task(run.settings, data);
  check_alike(run, run.settings, task.identity());
  const bool begins = folder && !folder->checkpoint();
  if (begins) folder->begin(to_json(run, fields(run.settings)));
  if (run.leads() && !run.init.empty() && (begins || run.settings.lora.rank > 0)) {
    copy_weights(task.model(), models::load_language_model(run.init, nn::WeightDtype::f32), run.init);
  }
  if (run.group != nullptr) broadcast_weights(*run.group, nn::named_parameters(task.model()));
  LanguageModelSummary summary;
  run_or_adapt(run, folder ? &*folder : nullptr, task, true, summary, [&]() -> std::optional<TextLoss> {
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
