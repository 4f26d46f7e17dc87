// Training and beam search together: small tasks with known answers, learnt from scratch.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/generate/beam_search.h"
#include "multihead/train/data/pairs.h"
#include "multihead/train/tasks/language_model_run.h"

namespace multihead::train {
namespace {

using Task = std::function<std::vector<int32_t>(const std::vector<int32_t>&)>;

// Digits 2 … 11 stand for themselves, 12 for "+"; 0 pads, 1 ends.
struct Synthetic {
  const char* name;
  Task answer;
  int64_t longest, steps;
  double lr;
};

std::vector<int32_t> question(const std::string& name, const RandomStream& stream, int64_t longest) {
  std::vector<int32_t> tokens;
  if (name == "add") {  // two numbers of two digits: tens, units
    for (uint64_t i = 0; i < 4; ++i) tokens.push_back(2 + static_cast<int32_t>(stream.bits(i) % 10));
    tokens.insert(tokens.begin() + 2, 12);
    return tokens;
  }
  const auto length = 1 + stream.bits(100) % static_cast<uint32_t>(longest);
  for (uint64_t i = 0; i < length; ++i) tokens.push_back(2 + static_cast<int32_t>(stream.bits(i) % 10));
  return tokens;
}

std::vector<int32_t> sum_of(const std::vector<int32_t>& q) {
  const int32_t sum = (q[0] - 2 + q[3] - 2) * 10 + q[1] - 2 + q[4] - 2;
  return {2 + sum % 10, 2 + sum / 10 % 10, 2 + sum / 100};  // units first, as one adds by hand
}

TokenPair pair_of(const Synthetic& task, uint64_t seed, uint64_t index) {
  TokenPair pair;
  pair.source = question(task.name, {seed, index}, task.longest);
  pair.target = task.answer(pair.source);
  pair.source.push_back(1);
  pair.target.push_back(1);
  return pair;
}

models::Seq2Seq taught(const Synthetic& task) {
  models::Seq2SeqConfig config;
  config.source_vocab_size = 13, config.max_positions = 24, config.encoder_layers = config.decoder_layers = 2;
  config.num_heads = 4, config.embed_dim = 48, config.ffn_dim = 96,
  config.norm_first = config.final_norm = true;
  config.init_std = 0.15, config.dropout_p = 0, config.eos_id = 1;
  Rng rng(11);
  models::Seq2Seq model(config, rng);
  TrainingSettings settings;
  settings.steps = task.steps, settings.lr = task.lr, settings.warmup_steps = 30,
  settings.weight_decay = 0.01;
  const auto optimizer = make_optimizer(settings, nn::named_parameters(model));
  const optim::Schedule schedule = schedule_of(settings, config.embed_dim);
  for (int64_t step = 0; step < task.steps; ++step) {
    std::vector<TokenPair> pairs;
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < 64; ++i) {
      pairs.push_back(pair_of(task, 1, static_cast<uint64_t>(step * 64 + i)));
      rows.push_back(i);
    }
    const PairBatch batch = make_pair_batch(pairs, rows, config);
    Tape tape;
    optimizer->zero_grad();
    tape.backward(model.loss(batch.source, batch.input, batch.labels));
    optimizer->set_lr(schedule.at(step));
    optimizer->clip_grad_norm(1);
    optimizer->step();
  }
  return model;
}

// Share of 400 fresh questions that are answered without a mistake.
double exact_match(const models::Seq2Seq& model, const Synthetic& task) {
  std::vector<std::vector<int32_t>> sources, answers;
  for (uint64_t i = 0; i < 400; ++i) {
    const TokenPair pair = pair_of(task, 2, i);
    sources.push_back(pair.source);
    answers.push_back({pair.target.begin(), pair.target.end() - 1});
  }
  const auto found = beam_search(model, sources, {.beam_size = 2, .max_length = 20});
  int right = 0;
  for (size_t i = 0; i < found.size(); ++i) right += found[i][0].tokens == answers[i] ? 1 : 0;
  return right / 400.0;
}

TEST(SyntheticTaskTest, Copy) {
  const Synthetic task = {"copy", [](const std::vector<int32_t>& q) { return q; }, 6, 300, 3e-3};
  EXPECT_GE(exact_match(taught(task), task), 0.99);
}

TEST(SyntheticTaskTest, ReverseSlow) {
  const auto reverse = [](std::vector<int32_t> q) {
    std::reverse(q.begin(), q.end());
    return q;
  };
  const Synthetic task = {"reverse", reverse, 10, 700, 3e-3};
  EXPECT_GE(exact_match(taught(task), task), 0.99);
}

TEST(SyntheticTaskTest, SortSlow) {
  const auto sort = [](std::vector<int32_t> q) {
    std::sort(q.begin(), q.end());
    return q;
  };
  const Synthetic task = {"sort", sort, 10, 700, 3e-3};
  EXPECT_GE(exact_match(taught(task), task), 0.99);
}

TEST(SyntheticTaskTest, AddSlow) {
  const Synthetic task = {"add", sum_of, 5, 1600, 1.5e-3};
  EXPECT_GE(exact_match(taught(task), task), 0.99);
}

}  // namespace
}  // namespace multihead::train
