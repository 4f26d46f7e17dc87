// Training settings, with presets for language models.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/models/language_model.h"
#include "multihead/optim/schedule.h"
#include "multihead/train/fields.h"

namespace multihead::train {

enum class TokenizerChoice { characters, bpe };
constexpr auto enum_words(TokenizerChoice) { return std::to_array<std::string_view>({"char", "bpe"}); }
enum class OptimizerChoice { adamw, adam, sgd };
constexpr auto enum_words(OptimizerChoice) {
  return std::to_array<std::string_view>({"adamw", "adam", "sgd"});
}

/// The dtype of products and attention while training, see Autocast; weights and optimiser are f32.
enum class Precision { f32, bf16 };
constexpr auto enum_words(Precision) { return std::to_array<std::string_view>({"f32", "bf16"}); }
constexpr Dtype dtype_of_products(Precision p) { return p == Precision::bf16 ? Dtype::bf16 : Dtype::f32; }

/// Low-rank additions in place of the weights (models/files/adapter.h).
struct LoraSettings {
  int64_t rank = 0;  ///< 0: off
  double alpha = 16;
  std::string targets = {};  ///< last parts of layers' names, joined by commas; empty: queries and values
};

/// The steps of a run to which neither steps nor epochs are given: so many, but no fewer than the least passes
/// through the data have, and no more than the most. The values are those of fine-tuning.
struct LengthChoice {
  int64_t steps = 150, least_epochs = 3, most_epochs = 20;
};

/// Shared by every run: schedule, optimiser, reports. Loss and data depend on the task.
struct TrainingSettings {
  int64_t steps = 1000;  ///< 0: those of `epochs`
  double epochs = 0;     ///< above 0: passes through the data, in place of `steps`; 0 of both: by `length`
  LengthChoice length = {};
  std::string time =
      {};  ///< "10m": as many steps as that much time has room for, in place of both; empty: off
  int64_t accumulate = 1;
  int64_t shards = 0;  ///< of a step, which ranks share; 0: see shards_of()
  /// Above 1: the parts into which each sequence is cut, which ranks share; then a step has one shard.
  int64_t context_shards = 1;
  OptimizerChoice optimizer = OptimizerChoice::adamw;
  optim::ScheduleKind schedule = optim::ScheduleKind::cosine;
  double lr = 1e-3;            ///< 0: by what is trained, see choose_rate()
  int64_t warmup_steps = 100;  ///< -1: kWarmupShare of the steps
  double final_ratio = 0.1;    ///< of the learning rate, at the end of linear, cosine and wsd
  double decay_share = 0.2;    ///< wsd: fraction of the steps spent in the final decay
  double beta1 = 0.9, beta2 = 0.99;
  double eps = 1e-8;
  bool eps_hat = false;
  double momentum = 0;  ///< sgd
  double weight_decay = 0.1;
  double clip = 1;
  double label_smoothing = 0;
  Precision precision = Precision::f32;
  int64_t seed = 1337;
  LoraSettings lora = {};

  int64_t log_every = 10;
  int64_t eval_every = 250;  ///< -1: so often that there are kEvaluations
  int64_t save_every = 0;    ///< 0: as eval_every
  int64_t keep = 2;
  int64_t patience = 0;
  std::string best =
      "loss";  ///< by which the best checkpoint is told: the least loss, or the most of this figure
};

struct LanguageModelSettings : TrainingSettings {
  models::LanguageModelConfig model = {};  ///< vocab_size: at least that of the tokenizer

  TokenizerChoice tokenizer = TokenizerChoice::bpe;
  int64_t vocab_size = 1024;      ///< of a BPE tokenizer to be trained
  double validation_share = 0.1;  ///< of the text
  int64_t validation_blocks = 1;  ///< 1: from its end; n: from the end of each of n equal blocks
  int64_t batch = 16;
  /// The positions of a model that is fine-tuned, which it keeps whatever the length of a training sequence,
  /// model.context; 0: those are its positions.
  int64_t positions = 0;
  int64_t eval_windows =
      256;  ///< of the validation text, evenly spread; 0: all. The last evaluation takes all
};

/// "tiny" (the demo: English from six novels in a few minutes on two cores), "small", "tutorial" (the
/// recipe of labml.ai's experiment). Throws ValueError for other names.
LanguageModelSettings language_model_settings(const std::string& preset);
std::vector<std::string> language_model_presets();

/// The model, resolved; where its vocabulary is not known yet, with the smallest there can be.
models::LanguageModelConfig least_model(const LanguageModelSettings& settings);
/// References into `settings`, which must outlive them.
std::vector<Field> fields(LanguageModelSettings& settings);
/// Throws ValueError naming the first invalid setting; model.vocab_size may still be 0.
void check(const LanguageModelSettings& settings);
optim::Schedule schedule_of(const LanguageModelSettings& settings);
optim::Schedule schedule_of(const TrainingSettings& settings, int64_t embed_dim);

/// Settings of a run from a trained model, in place of those of a preset: AdamW, a rate that falls to 0, and
/// lengths that are chosen by the data.
void set_fine_tuning(TrainingSettings& settings);
/// A new model, of random weights: so many steps, of few data thirty passes.
void set_new(TrainingSettings& settings, int64_t steps);
/// Chooses what is left to be chosen; `steps`: in one pass through the data. Epochs become steps.
void choose_length(TrainingSettings& settings, double steps);
/// TrainingSettings::time, "90s", "10m" or "1h30m", in seconds; 0: off. Throws ValueError.
double seconds_of(const TrainingSettings& settings);
/// The steps, and how often there is an evaluation where that is left open, that `seconds` have room for.
void choose_steps(TrainingSettings& settings, double seconds, double step, double evaluation);
/// The rate of full fine-tuning falls with the width of the model, from `base` at 768; adapters take ten times
/// as much.
void choose_rate(TrainingSettings& settings, int64_t embed_dim, double base);
/// Tokens of a text that fine-tuning reads by default, of a training sequence twice as many: more are slow,
/// and most texts are shorter.
inline constexpr int64_t kReadTokens = 256;
inline constexpr int64_t kTunedBatch = 4;  ///< of a language model that is fine-tuned
inline constexpr double kWarmupShare = 0.1;
inline constexpr int64_t kEvaluations = 12;

/// The default number of shards of a new run: 1, and in a job of several ranks 8.
int64_t shards_of(const TrainingSettings& settings, int ranks);
/// The terms of a step's gradient: its shards, or the parts of its sequences.
int64_t terms_of(const TrainingSettings& settings, int ranks);

/// The shared parts of the above, for other kinds of runs.
void add_training_fields(std::vector<Field>& list, TrainingSettings& settings);
void add_report_fields(std::vector<Field>& list, TrainingSettings& settings);
void check_training(const TrainingSettings& settings, const std::vector<Field>& fields, int64_t embed_dim);
/// The settings a resumed run must keep.
template <std::derived_from<TrainingSettings> Settings>
Json identity_of(Settings settings) {
  settings.shards = std::max<int64_t>(settings.shards, 1);
  Json json = to_json(identity(fields(settings)));
  if (settings.context_shards == 1) json.erase("context-shards");
  if (settings.lora.rank > 0) return json;
  for (const char* key : {"lora_rank", "lora_alpha", "lora_targets"})
    json.erase(key);  // as before there were
  return json;
}

/// Whether the flag says how much of the validation data an evaluation takes.
inline bool is_sample(std::string_view flag) { return flag.starts_with("eval-") && flag != "eval-every"; }
/// The settings that do: losses of other samples could not be compared.
template <class Settings>
Json samples_of(Settings settings) {
  std::vector<Field> samples;
  for (const Field& field : fields(settings)) {
    if (is_sample(field.name)) samples.push_back(field);
  }
  return to_json(samples);
}

}  // namespace multihead::train
