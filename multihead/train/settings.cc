#include "multihead/train/settings.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/train/run.h"

namespace multihead::train {
namespace {

// Every micro-batch has 2^20 random streams of the 2^64 for its dropout.
constexpr int64_t kMostBatches = int64_t{1} << 42;
constexpr int64_t kMostShards = int64_t{1} << 20;
constexpr int64_t kMostTokens = int64_t{1} << 31;  // of a micro-batch

void tutorial(LanguageModelSettings& s) {
  s.tokenizer = TokenizerChoice::characters;
  s.batch = 16, s.steps = 32 * 430;
  s.optimizer = OptimizerChoice::adam;
  s.schedule = optim::ScheduleKind::noam;
  s.lr = 1, s.warmup_steps = 2000;
  s.beta1 = 0.9, s.beta2 = 0.999, s.eps_hat = true;
  s.weight_decay = 0, s.clip = 1;
}

// The optimisers check their own options.
void check_optimizers(TrainingSettings s) {
  for (const auto choice : {OptimizerChoice::adamw, OptimizerChoice::adam, OptimizerChoice::sgd}) {
    s.optimizer = choice;
    make_optimizer(s, {{"weight", Tensor::zeros({1})}});
  }
}

}  // namespace

namespace {

std::string words_of(const LengthChoice& c) {
  if (c.least_epochs > 0) return concat(c.least_epochs, " passes, of few texts up to ", c.most_epochs);
  return concat(c.steps, ", at most ", c.most_epochs, " passes");
}

// What the length of a run is by default.
std::string default_length(const TrainingSettings& s) {
  if (s.steps > 0) return "";
  const std::string own = words_of(s.length), tuned = words_of(LengthChoice());
  return concat("; 0 of both: ", own, own == tuned ? "" : concat("; with --init ", tuned));
}

void add_plain_training_fields(std::vector<Field>& list, TrainingSettings& s) {
  list.push_back({"steps", concat("optimiser steps (0: by --epochs", default_length(s), ")"), &s.steps, 0});
  list.push_back({"epochs", "passes through the data, in place of --steps", &s.epochs, 0, true});
  list.push_back({"time", "as many steps as this much time has room for, such as 10m, in place of --steps",
                  &s.time, 0, true});
  list.push_back({"accumulate", "micro-batches per shard", &s.accumulate, 1});
  list.push_back(
      {"shards", "shards per step, divided among ranks (0: 1; with several ranks 8)", &s.shards, 0});
  list.push_back({"optimizer", "optimiser", choice(s.optimizer)});
  list.push_back({"schedule", "learning rate schedule", choice(s.schedule)});
  list.push_back({"lr",
                  "peak learning rate (noam: factor; 0: by the width of the model, ten times that for LoRA)",
                  &s.lr});
  list.push_back({"warmup",
                  concat("steps of linear warm-up (default", s.warmup_steps < 0 ? "" : " with --init",
                         ": a tenth of all)"),
                  &s.warmup_steps, -1});
  list.push_back({"final-ratio", "final learning rate, as a fraction of the peak", &s.final_ratio});
  list.push_back({"decay-share", "wsd: fraction of the steps spent in the final decay", &s.decay_share});
  list.push_back({"beta1", "Adam: decay rate of the first moment", &s.beta1});
  list.push_back({"beta2", "Adam: decay rate of the second moment", &s.beta2});
  list.push_back({"eps", "Adam: epsilon in the denominator", &s.eps});
  list.push_back({"eps-hat", "Adam: add eps before bias correction", &s.eps_hat});
  list.push_back({"momentum", "sgd: momentum", &s.momentum});
  list.push_back({"weight-decay", "weight decay, on matrices only", &s.weight_decay});
  list.push_back({"clip", "clip the gradient norm to this (0: off)", &s.clip});
  list.push_back({"label-smoothing", "label smoothing", &s.label_smoothing});
  list.push_back({"precision", "training precision (bf16: half the activation memory; weights stay f32)",
                  choice(s.precision)});
  list.push_back({"seed", "random seed of weights, data order and dropout", &s.seed, 0});
  list.push_back({"lora-rank", "with --init: train only low-rank updates of this rank (0: all weights)",
                  &s.lora.rank, 0});
  list.push_back({"lora-alpha", "LoRA: updates are scaled by alpha / rank", &s.lora.alpha});
  list.push_back({"lora-targets",
                  "LoRA: layers to adapt, by their names in the folder, such as q_proj,v_proj",
                  &s.lora.targets});
}

}  // namespace

void add_training_fields(std::vector<Field>& list, TrainingSettings& s) {
  std::vector<Field> own, tuning;
  TrainingSettings tuned;
  set_fine_tuning(tuned);
  add_plain_training_fields(own, s);
  add_plain_training_fields(tuning, tuned);
  for (size_t i = 0; i < own.size(); ++i) {
    const bool is_fixed = tuning[i].least != -1 || to_json(tuning[i]).as_int() >= 0;
    if (is_fixed) own[i].with_init = text_of(tuning[i]);
  }
  list.insert(list.end(), own.begin(), own.end());
}

void add_report_fields(std::vector<Field>& list, TrainingSettings& s) {
  list.push_back({"log-every", "steps between lines in metrics.jsonl", &s.log_every, 1, true});
  list.push_back({"eval-every",
                  "steps between evaluations (0: first and last only; default: a twelfth of all)",
                  &s.eval_every, -1, true});
  list.push_back({"save-every", "steps between checkpoints (0: as --eval-every)", &s.save_every, 0, true});
  list.push_back({"keep", "number of newest checkpoints kept, besides the best", &s.keep, 1, true});
  list.push_back({"patience", "early stopping after this many evaluations without improvement (0: off)",
                  &s.patience, 0, true});
  list.push_back(
      {"best",
       "keep the checkpoint that is best by this figure of an evaluation: loss, or another, such as "
       "macro_f1, of which more is better",
       &s.best, 0, true});
}

void set_fine_tuning(TrainingSettings& s) {
  s.optimizer = OptimizerChoice::adamw, s.schedule = optim::ScheduleKind::linear;
  s.steps = 0, s.length = {}, s.lr = 0, s.warmup_steps = -1, s.eval_every = -1;
  s.final_ratio = 0, s.beta1 = 0.9, s.beta2 = 0.999, s.eps = 1e-8, s.weight_decay = 0.01, s.clip = 1;
  s.label_smoothing = 0;
}

void set_new(TrainingSettings& s, int64_t steps) {
  s.steps = 0, s.length = {.steps = steps, .least_epochs = 0, .most_epochs = 30};
  s.eval_every = -1;
}

namespace {

// The last of them, after the last step, is as far from the one before as those are from each other, or nearer.
void space_evaluations(TrainingSettings& s, int64_t count) {
  if (s.eval_every < 0) s.eval_every = (s.steps + count - 1) / count;
}

}  // namespace

void choose_length(TrainingSettings& s, double steps) {
  if (s.steps == 0 || s.epochs > 0) {
    const auto passes = [&](auto epochs) { return std::llround(static_cast<double>(epochs) * steps); };
    const LengthChoice& c = s.length;
    const int64_t wanted = s.epochs > 0
                               ? passes(s.epochs)
                               : std::clamp<int64_t>(c.steps, passes(c.least_epochs), passes(c.most_epochs));
    s.steps = std::max<int64_t>(1, wanted);
  }
  s.epochs = 0;
  if (s.warmup_steps < 0) {
    s.warmup_steps = std::llround(kWarmupShare * static_cast<double>(s.steps));
  }
  space_evaluations(s, kEvaluations);
}

double seconds_of(const TrainingSettings& s) {
  if (s.time.empty()) return 0;
  constexpr std::string_view kUnits = "hms";
  constexpr double kSeconds[] = {3600, 60, 1};
  double seconds = 0;
  for (size_t at = 0, next = 0; at < s.time.size();) {
    const size_t end = s.time.find_first_of(kUnits, at);
    const size_t unit = end == std::string::npos ? kUnits.npos : kUnits.find(s.time[end]);
    MH_CHECK(unit != kUnits.npos && unit >= next, ValueError,
             "train: --time must be a number with a unit, such as 90s, 10m or 1h30m, got ",
             quote(s.time, 40));
    seconds += parse_number("--time", s.time.substr(at, end - at)) * kSeconds[unit];
    at = end + 1, next = unit + 1;
  }
  MH_CHECK(seconds > 0 && seconds < 1e8, ValueError,
           "train: --time must be positive and less than 1e8 s, got ", quote(s.time, 40));
  return seconds;
}

// Evaluations take a third of the time at most, unless it is said how often there is one. There is one before the
// first step and one after the last.
void choose_steps(TrainingSettings& s, double seconds, double step, double evaluation) {
  constexpr double kMargin = 1.05;  // reports, checkpoints, the optimiser
  const double most = evaluation > 0 ? std::floor(seconds / 3 / evaluation) : kEvaluations;
  const double evaluations = std::clamp<double>(most, 1, kEvaluations);
  const double left = seconds - (s.eval_every < 0 ? evaluations + 1 : 2) * evaluation;
  const double between =
      s.eval_every > 0 ? evaluation / static_cast<double>(s.eval_every) : 0;  // a step's share
  s.steps = std::max<int64_t>(1, std::llround(left / (kMargin * std::max(step, 1e-6) + between)));
  s.epochs = 0;
  space_evaluations(s, std::llround(evaluations));
}

void choose_rate(TrainingSettings& s, int64_t embed_dim, double base) {
  constexpr double kWidth = 768, kLora = 10, kMost = 4;  // times the base
  if (s.lr > 0) return;
  const double ratio = kWidth / static_cast<double>(embed_dim);
  s.lr = base * std::min(ratio * ratio, kMost) * (s.lora.rank > 0 ? kLora : 1);
}

int64_t shards_of(const TrainingSettings& settings, int ranks) {
  constexpr int64_t kShards = 8;
  if (settings.shards > 0) return settings.shards;
  if (settings.context_shards > 1) return 1;
  return ranks > 1 ? kShards : 1;
}

int64_t terms_of(const TrainingSettings& settings, int ranks) {
  return shards_of(settings, ranks) * settings.context_shards;
}

std::vector<std::string> language_model_presets() { return {"tiny", "small", "tutorial"}; }

LanguageModelSettings language_model_settings(const std::string& preset) {
  LanguageModelSettings s;
  s.model = models::language_model_preset(preset);
  if (preset == "tiny") {
    // 4.6 M tokens, 12.4 M characters: 230 s on two cores of 110 GFLOP/s at half of their peak.
    set_new(s, 3000);
    s.batch = 24, s.lr = 4e-3, s.vocab_size = 1024;
  } else if (preset == "small") {
    set_new(s, 10000);
    s.batch = 16, s.lr = 1e-3, s.vocab_size = 4096;
    s.model.dropout_p = s.model.attention_dropout_p = 0.1;
    s.warmup_steps = 200;
  } else {
    tutorial(s);
  }
  return s;
}

std::vector<Field> fields(LanguageModelSettings& s) {
  std::vector<Field> list;
  add_model_fields(list, s.model, "layers");
  list.push_back({"tokenizer", "tokenizer type", choice(s.tokenizer)});
  list.push_back({"vocab-size", "BPE vocabulary size", &s.vocab_size, 1});
  list.push_back({"validation-share", "fraction of the text held out for validation", &s.validation_share});
  list.push_back({"validation-blocks", "hold out the end of each of this many equal blocks of the text",
                  &s.validation_blocks, 1});
  list.push_back({"batch", "sequences per micro-batch", &s.batch, 1});
  note_with_init(list, "batch", std::to_string(kTunedBatch));
  note_with_init(list, "context", concat(2 * kReadTokens, ", or the model's if that is less"));
  list.push_back({"context-shards", "split each sequence into this many parts, divided among ranks (1: off)",
                  &s.context_shards, 1});
  list.push_back({"eval-windows", "validation windows per evaluation (0: all)", &s.eval_windows, 0});
  add_training_fields(list, s);
  add_report_fields(list, s);
  return list;
}

optim::Schedule schedule_of(const LanguageModelSettings& s) { return schedule_of(s, s.model.embed_dim); }

optim::Schedule schedule_of(const TrainingSettings& s, int64_t embed_dim) {
  return {.kind = s.schedule,
          .lr = s.lr,
          .warmup_steps = s.warmup_steps,
          .total_steps = s.steps,
          .final_ratio = s.final_ratio,
          .embed_dim = embed_dim,
          .decay_share = s.decay_share};
}

void check_training(const TrainingSettings& settings, const std::vector<Field>& fields, int64_t embed_dim) {
  check_least(fields);
  MH_CHECK(settings.epochs >= 0 && settings.epochs < 1e6, ValueError,
           "train: --epochs must be in [0, 1e6), got ", settings.epochs);
  MH_CHECK(settings.lr >= 0, ValueError, "train: --lr must be positive, or 0 to be chosen, got ",
           settings.lr);
  TrainingSettings s = settings;  // with any of the choices that the data will make
  seconds_of(s);
  choose_rate(s, std::max<int64_t>(embed_dim, 1), 1e-3);
  choose_length(s, 100);
  MH_CHECK(s.shards <= kMostShards, ValueError, "train: --shards must be at most ", kMostShards, ", got ",
           s.shards);
  MH_CHECK(s.steps <= kMostBatches / std::max<int64_t>(s.shards, 1) / s.accumulate, ValueError,
           "train: ", s.steps, " --steps of ", s.accumulate,
           " micro-batches (--accumulate) are more than 2^42");
  MH_CHECK(s.label_smoothing >= 0 && s.label_smoothing <= 1, ValueError,
           "train: --label-smoothing must be in [0, 1], got ", s.label_smoothing);
  MH_CHECK(s.clip >= 0 && std::isfinite(s.clip), ValueError,
           "train: --clip must be finite and not negative, got ", s.clip);
  MH_CHECK(s.lora.alpha > 0 && std::isfinite(s.lora.alpha), ValueError,
           "train: --lora-alpha must be finite and positive, got ", s.lora.alpha);
  if (settings.steps == 0) s.warmup_steps = std::min<int64_t>(s.warmup_steps, 1);  // it may fit yet
  optim::check(schedule_of(s, embed_dim));
  check_optimizers(s);
}

models::LanguageModelConfig least_model(const LanguageModelSettings& settings) {
  models::LanguageModelConfig config = settings.model;
  if (config.vocab_size == 0) config.vocab_size = 1;
  return models::resolved(config);
}

void check(const LanguageModelSettings& settings) {
  least_model(settings);
  LanguageModelSettings s = settings;
  check_training(s, fields(s), s.model.embed_dim);
  MH_CHECK(s.batch <= kMostTokens / s.model.context, ValueError, "train: a --batch of ", s.batch,
           " sequences of ", s.model.context, " tokens is more than 2^31 tokens");
  MH_CHECK(s.context_shards == 1 || s.shards <= 1, ValueError,
           "train: --shards and --context-shards exclude each other, got ", s.shards, " and ",
           s.context_shards, "; use --accumulate");
  MH_CHECK(s.context_shards == 1 || s.lora.rank == 0, ValueError,
           "train: --context-shards trains all weights, not --lora-rank");
  MH_CHECK(s.context_shards <= kMostShards, ValueError, "train: --context-shards must be at most ",
           kMostShards, ", got ", s.context_shards);
  MH_CHECK(s.validation_share >= 0 && s.validation_share < 1, ValueError,
           "train: --validation-share must be in [0, 1), got ", s.validation_share);
  MH_CHECK(s.positions == 0 || s.model.context <= s.positions, ValueError,
           "train: --context must be at most ", s.positions, ", the positions of the model of --init, got ",
           s.model.context);
}

}  // namespace multihead::train
