#include "multihead/train/tasks/seq2seq_settings.h"

#include "multihead/core/error.h"

namespace multihead::train {

std::vector<std::string> seq2seq_presets() { return {"tiny", "small", "base"}; }

Seq2SeqSettings seq2seq_settings(const std::string& preset) {
  Seq2SeqSettings s;
  models::Seq2SeqConfig& m = s.model;
  m.activation = Activation::relu;
  s.label_smoothing = 0.1, s.weight_decay = 0.01, s.beta2 = 0.98, s.keep = 4;
  if (preset == "tiny") {
    m.encoder_layers = m.decoder_layers = 2, m.num_heads = 4, m.embed_dim = 128, m.init_std = 0.08;
    set_new(s, 2000);
    s.lr = 2e-3, s.warmup_steps = -1, s.average = 3;
  } else if (preset == "small") {
    m.encoder_layers = m.decoder_layers = 4, m.num_heads = 8, m.embed_dim = 256, m.init_std = 0.06;
    set_new(s, 6000);
    s.vocab_size = 8000, s.lr = 1e-3, s.warmup_steps = -1, s.average = 3;
  } else if (preset == "base") {
    m.encoder_layers = m.decoder_layers = 6, m.num_heads = 8, m.embed_dim = 512, m.init_std = 0.044;
    set_new(s, 100000);
    s.optimizer = OptimizerChoice::adam, s.schedule = optim::ScheduleKind::noam;
    s.lr = 1, s.warmup_steps = 4000, s.eps = 1e-9, s.weight_decay = 0, s.clip = 0;
    s.vocab_size = 32000, s.batch_tokens = 25000, s.eval_every = 2000, s.average = 4;
  } else {
    throw ValueError(concat("preset: expected tiny, small or base, got \"", preset, "\""));
  }
  return s;
}

std::vector<Field> fields(Seq2SeqSettings& s) {
  std::vector<Field> list;
  add_model_fields(list, s.model, "encoder-layers");
  list.push_back({"tokenizer", "tokenizer type", choice(s.tokenizer)});
  list.push_back({"vocab-size", "BPE vocabulary size", &s.vocab_size, 1});
  list.push_back(
      {"shared-vocabulary", "share tokenizer and embedding between the two sides", &s.shared_vocabulary});
  list.push_back({"max-tokens", "skip pairs with a side longer than this", &s.max_tokens});
  list.push_back({"batch-tokens", "tokens per micro-batch and side, including padding", &s.batch_tokens, 1});
  list.push_back({"bucket", "bucket pairs by length, in steps of this many tokens", &s.bucket, 1});
  list.push_back(
      {"average",
       "average this many of the last checkpoints, unless the best one has a lower loss (1: the best one)",
       &s.average, 1});
  note_with_init(list, "average", "1");
  note_with_init(list, "max-tokens", "128, or the model's limit if that is less");
  list.push_back({"eval-pairs", "validation pairs per evaluation (0: all)", &s.eval_pairs, 0});
  add_training_fields(list, s);
  add_report_fields(list, s);
  return list;
}

models::Seq2SeqConfig least_model(const Seq2SeqSettings& settings) {
  models::Seq2SeqConfig config = settings.model;
  if (config.source_vocab_size == 0) config.source_vocab_size = 1;
  return models::resolved(config);
}

void check(const Seq2SeqSettings& settings) {
  least_model(settings);
  Seq2SeqSettings s = settings;
  check_training(s, fields(s), s.model.embed_dim);
  MH_CHECK(s.max_tokens >= 2 && s.max_tokens <= s.model.max_positions, ValueError,
           "train: --max-tokens must be in [2, --max-positions = ", s.model.max_positions, "], got ",
           s.max_tokens);
  MH_CHECK(s.average == 1 || s.lora.rank == 0, ValueError,
           "train: --lora-rank needs --average 1, for adapters are not averaged; got --average ", s.average);
  MH_CHECK(s.average <= s.keep, ValueError, "train: --average ", s.average,
           " needs as many checkpoints, but --keep is ", s.keep);
}

}  // namespace multihead::train
