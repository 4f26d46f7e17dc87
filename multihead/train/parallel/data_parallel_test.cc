#include "multihead/train/parallel/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/distributed/local_group.h"
#include "multihead/optim/adam.h"
#include "multihead/optim/sgd.h"
#include "multihead/testing/encoder_run.h"
#include "multihead/train/data/encode_file.h"
#include "multihead/train/tasks/classifier_run.h"
#include "multihead/train/tasks/embedder_run.h"
#include "multihead/train/tasks/language_model_run.h"
#include "multihead/train/tasks/masked_lm_run.h"
#include "multihead/train/tasks/seq2seq_run.h"

namespace multihead::train {
namespace {

namespace fs = std::filesystem;
using distributed::Group;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor noise(const Shape& shape, uint64_t seed) {
  Tensor x = Tensor::empty(shape);
  const RandomStream stream{seed, 7};
  for (int64_t i = 0; auto& value : x.span<float>()) {
    value =
        static_cast<float>(static_cast<double>(stream.bits(static_cast<uint64_t>(i++)) % 2001) - 1000) / 777;
  }
  return x;
}

std::vector<nn::NamedTensor> weights_of_noise() {
  std::vector<nn::NamedTensor> list = {
      {"a", noise({37, 53}, 1)}, {"b", noise({53}, 2)}, {"c", noise({4, 300}, 3)}, {"d", noise({1}, 4)}};
  for (nn::NamedTensor& p : list) p.tensor.set_requires_grad();
  return list;
}

// Three steps of AdamW with gradients of noise; the weights, norms and moments afterwards. With a size of
// buckets, some gradients are taken before the shard ends.
std::vector<float> steps_of(Group& group, int64_t shards, std::vector<double>* norms = nullptr,
                            int64_t bucket = 0) {
  const std::vector<nn::NamedTensor> weights = weights_of_noise();
  DataParallel parallel(group, weights, shards, bucket);
  optim::AdamW adam(parallel.own_parameters(), {.lr = 0.1, .weight_decay = 0.1, .decay_vectors = false});
  for (uint64_t step = 0; step < 3; ++step) {
    for (int64_t shard = parallel.first_shard(); shard < parallel.end_shard(); ++shard) {
      for (uint64_t i = 0; i < weights.size(); ++i) {
        if (i == 1 && shard % 2 == 1) continue;  // what this shard does not use has no gradient
        const uint64_t seed = 1000 * step + 10 * static_cast<uint64_t>(shard) + i + 100;
        weights[i].tensor.set_grad(noise(weights[i].tensor.shape(), seed));
        if (bucket > 0 && (seed + static_cast<uint64_t>(group.rank())) % 3 > 0)
          parallel.take(*weights[i].tensor.gradient_slot());
      }
      parallel.add(shard);
    }
    const double norm = parallel.reduce();
    if (norms != nullptr) norms->push_back(norm);
    adam.clip_to(norm, 1);
    adam.step();
    parallel.share_weights();
  }
  std::vector<float> all;
  const auto append = [&](const Tensor& x) {
    const auto values = x.contiguous().span<float>();
    all.insert(all.end(), values.begin(), values.end());
  };
  for (const nn::NamedTensor& p : weights) append(p.tensor);
  for (const auto& [name, tensor] : parallel.gather_state(adam)) {
    if (name != "step") append(tensor);
  }
  return all;
}

TEST(DataParallelTest, TheBitsOfOneRankOnAnyNumber) {
  for (const int64_t shards : {2, 7, 8}) {
    const auto one = distributed::single();
    std::vector<double> norms;
    const std::vector<float> expected = steps_of(*one, shards, &norms);
    for (int ranks = 2; ranks <= shards; ++ranks) {
      distributed::run_local_group(ranks, [&](Group& group) {
        std::vector<double> here;
        const std::vector<float> got = steps_of(group, shards, &here);
        EXPECT_EQ(here, norms) << ranks << " ranks";
        const size_t count = group.rank() == 0 ? expected.size() : expected.size() / 3;  // no moments
        ASSERT_EQ(got.size(), count);
        EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin()))
            << ranks << " ranks, rank " << group.rank();
        for (const int64_t bucket : {1, 600, 2000}) {
          EXPECT_EQ(steps_of(group, shards, nullptr, bucket), got) << "buckets of " << bucket;
        }
      });
    }
  }
  // The order of the sum can be seen in the bits.
  const auto one = distributed::single();
  EXPECT_NE(steps_of(*one, 7), steps_of(*one, 8));
}

TEST(DataParallelTest, SendsWhatRecursiveHalvingSends) {
  for (const int ranks : {2, 4, 8}) {
    distributed::run_local_group(ranks, [&](Group& group) {
      const std::vector<nn::NamedTensor> weights = weights_of_noise();
      int64_t count = 0;
      for (const auto& p : weights) count += p.tensor.numel();
      DataParallel parallel(group, weights, 8);
      for (int64_t shard = parallel.first_shard(); shard < parallel.end_shard(); ++shard) parallel.add(shard);
      const int64_t before = group.bytes_sent();
      parallel.reduce();
      const double ideal = 4.0 * static_cast<double>(count) * (ranks - 1) / ranks;
      // Slices are not all of one size, and the squares travel, too.
      EXPECT_NEAR(static_cast<double>(group.bytes_sent() - before), ideal, 0.35 * ideal);
    });
  }
}

// A bucket whose gradients are there leaves before the rest of the backward, and only slices stay.
TEST(DataParallelTest, SendsDuringTheBackwardAndKeepsASlice) {
  const int64_t before = memory_stats().live_bytes;
  distributed::run_local_group(2, [&](Group& group) {
    const auto weights = weights_of_noise();
    DataParallel parallel(group, weights, 2, 1000);
    weights[2].tensor.set_grad(noise({4, 300}, 5));
    parallel.take(*weights[2].tensor.gradient_slot());
    EXPECT_FALSE(weights[2].tensor.grad().defined());
    EXPECT_GT(group.bytes_sent(), 0);
    parallel.add(group.rank());
    parallel.reduce();
    group.barrier();
    // Two ranks have weights and one gradient in all.
    const auto live = static_cast<double>(memory_stats().live_bytes - before);
    EXPECT_LT(live, 3.3 * 3215 * 4 * 1.125);
    group.barrier();
  });
}

TEST(DataParallelTest, TheStateOfSlicesIsThatOfOne) {
  const auto one = distributed::single();
  optim::StateMap state;
  {
    const auto weights = weights_of_noise();
    DataParallel parallel(*one, weights, 4);
    optim::SGD sgd(parallel.own_parameters(), {.lr = 0.1, .momentum = 0.9});
    state = parallel.gather_state(sgd);
    for (auto& [name, tensor] : state) {
      if (name != "step") tensor.copy_from(noise(tensor.shape(), name.size()));
    }
    state["step"] = Tensor::of<int64_t>({1}, {5});
  }
  distributed::run_local_group(3, [&](Group& group) {
    const auto weights = weights_of_noise();
    DataParallel parallel(group, weights, 4);
    optim::SGD sgd(parallel.own_parameters(), {.lr = 0.1, .momentum = 0.9});
    parallel.scatter_state(group.rank() == 0 ? state : optim::StateMap(), sgd);
    EXPECT_EQ(sgd.steps(), 5);
    const optim::StateMap back = parallel.gather_state(sgd);
    if (group.rank() != 0) return;
    for (const auto& [name, tensor] : state) {
      EXPECT_EQ(back.at(name).to_vector<double>(), tensor.to_vector<double>()) << name;
    }
    optim::StateMap other = state;
    other.erase("momentum_buffer.c");
    EXPECT_THAT([&] { parallel.scatter_state(other, sgd); },
                ThrowsMessage<FormatError>(HasSubstr("momentum_buffer.c")));
  });
}

TEST(DataParallelTest, NonFiniteGradientsAreNamedOnEveryRank) {
  distributed::run_local_group(3, [](Group& group) {
    const auto weights = weights_of_noise();
    DataParallel parallel(group, weights, 3);
    Tensor bad = Tensor::zeros({4, 300});
    bad.span<float>()[700] = std::numeric_limits<float>::infinity();
    if (group.rank() == 1) weights[2].tensor.set_grad(bad);
    parallel.add(group.rank());
    EXPECT_THAT([&] { parallel.reduce(); }, ThrowsMessage<NumericError>(HasSubstr("gradient of c")));
  });
}

TEST(DataParallelTest, RefusesWhatCannotBeShared) {
  EXPECT_THROW(
      distributed::run_local_group(3, [](Group& group) { DataParallel(group, weights_of_noise(), 2); }),
      ValueError);
  EXPECT_THROW(distributed::run_local_group(3,
                                            [](Group& group) {
                                              DataParallel(group, {{"a", Tensor::zeros({2})}}, 8);
                                            }),
               ValueError);
}

class JobTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("multihead_job_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
    std::ofstream text(root_ / "text.txt"), pairs(root_ / "pairs.tsv");
    const char* words[] = {"the", "cat", "sat", "on", "a", "mat", "and", "saw", "nine", "dogs", "run"};
    for (int i = 0; i < 900; ++i) text << words[(i + i * i / 7 % 3) % 11] << (i % 9 == 8 ? ".\n" : " ");
    for (int i = 0; i < 60; ++i)
      pairs << words[i % 11] << ' ' << words[i % 7] << '\t' << words[i % 7] << '\n';
  }
  void TearDown() override { fs::remove_all(root_); }

  static void make_small(TrainingSettings& s) {
    s.steps = 6, s.lr = 5e-3, s.warmup_steps = 2, s.log_every = 2, s.eval_every = 3, s.shards = 5;
  }
  LanguageModelRun language_model(const std::string& name) const {
    LanguageModelRun run;
    run.data = (root_ / "text.txt").string(), run.folder = (root_ / name).string();
    LanguageModelSettings& s = run.settings;
    make_small(s);
    s.model.num_layers = 2, s.model.num_heads = 2, s.model.embed_dim = 20, s.model.context = 11;
    s.model.dropout_p = s.model.attention_dropout_p = 0.1;
    s.tokenizer = TokenizerChoice::characters;
    s.batch = 2, s.eval_windows = 4;
    return run;
  }
  Seq2SeqRun translator(const std::string& name) const {
    Seq2SeqRun run;
    run.data = run.valid = (root_ / "pairs.tsv").string();
    run.folder = (root_ / name).string();
    make_small(run.settings);
    run.settings.model.embed_dim = 16, run.settings.model.num_heads = 2;
    run.settings.model.encoder_layers = run.settings.model.decoder_layers = 1;
    run.settings.tokenizer = TokenizerChoice::characters;
    run.settings.batch_tokens = 60;
    return run;
  }
  std::string file(const std::string& name) const { return read_file((root_ / name).string()); }
  template <class Run, class Train>
  static void on_ranks(int ranks, const Run& run, Train&& train) {
    distributed::run_local_group(ranks, [&](Group& group) {
      Run own = run;
      own.group = &group;
      // Only the leader needs to see the folder.
      if (group.rank() > 0) own.folder = "/nowhere";
      train(own);
    });
  }

  fs::path root_;
};

TEST_F(JobTest, LanguageModelsDoNotKnowTheNumberOfRanks) {
  const LanguageModelSummary one = train_language_model(language_model("one"));
  for (const int ranks : {2, 3, 5}) {
    const std::string name = "on" + std::to_string(ranks);
    on_ranks(ranks, language_model(name), [&](const LanguageModelRun& run) {
      // Evaluations are shared, and every rank has their results.
      const LanguageModelSummary here = train_language_model(run);
      EXPECT_EQ(here.progress.first_loss, one.progress.first_loss);
      EXPECT_EQ(here.progress.last_loss, one.progress.last_loss);
      EXPECT_EQ(here.validation->nats, one.validation->nats);
      EXPECT_EQ(here.validation->tokens, one.validation->tokens);
    });
    for (const char* part :
         {"/model.safetensors", "/tokenizer.json", "/checkpoint-6/optimizer.safetensors"}) {
      EXPECT_EQ(file(name + part), file(std::string("one") + part)) << part << " on " << ranks << " ranks";
    }
  }
  LanguageModelRun other = language_model("other");
  other.settings.shards = 4;
  train_language_model(other);
  EXPECT_NE(file("other/model.safetensors"), file("one/model.safetensors"));
}

TEST_F(JobTest, CutSequencesDoNotKnowTheNumberOfRanks) {
  const auto run_of = [&](const char* name, int64_t shards, models::Positions positions) {
    LanguageModelRun run = language_model(name);
    run.settings.model.context = 384, run.settings.model.positions = positions;
    run.settings.model.dropout_p = run.settings.model.ffn_dropout_p = 0.1;
    run.settings.model.attention_dropout_p = 0.1;
    run.settings.shards = 0, run.settings.context_shards = shards;
    run.settings.model.num_layers = 1, run.settings.batch = 1;
    run.settings.steps = 2, run.settings.accumulate = 2, run.settings.eval_windows = 1;
    run.overwrite = true;
    return run;
  };
  for (const auto positions :
       {models::Positions::rotary, models::Positions::learned, models::Positions::sinusoidal}) {
    const LanguageModelSummary whole = train_language_model(run_of("whole", 1, positions));
    const LanguageModelSummary cut = train_language_model(run_of("cut", 2, positions));
    EXPECT_EQ(cut.progress.tokens, whole.progress.tokens);
    EXPECT_NEAR(cut.progress.last_loss, whole.progress.last_loss, 1e-5);
    on_ranks(2, run_of("on2", 2, positions), train_language_model);
    EXPECT_EQ(file("on2/model.safetensors"), file("cut/model.safetensors"));
  }
  const auto refused = [&](LanguageModelRun run, const char* why) {
    EXPECT_THAT([&] { train_language_model(run); }, ThrowsMessage<ValueError>(HasSubstr(why)));
  };
  refused(run_of("no", 3, models::Positions::rotary), "2 blocks of 256 for 3 --context-shards");
  LanguageModelRun both = run_of("no", 2, models::Positions::rotary);
  both.settings.shards = 2;
  refused(both, "exclude each other");
}

// In pieces as in one, also where a token takes the spaces after it, so that pieces must not end there.
TEST_F(JobTest, SpecialTokensOfATextAreEncodedAsSuch) {
  const auto plain = text::Tokenizer::train_bpe(file("text.txt"), {.vocab_size = 280});
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the cat <|endoftext|> sat on a mat<|endoftext|> ";
  std::ofstream(root_ / "chat.txt") << text;
  std::string json = plain.to_json();
  const std::string strips = "\"rstrip\":";
  const size_t at = json.find("false", json.find(strips));
  ASSERT_NE(json.find(strips), std::string::npos);
  json.replace(at, 5, "true");
  for (const auto& tokenizer : {plain, text::Tokenizer::from_contents(json, plain.config_json())}) {
    for (const bool special : {false, true}) {
      encode_file(*distributed::single(), (root_ / "chat.txt").string(), (root_ / "chat.tokens").string(),
                  tokenizer, 50, special);
      const auto whole = tokenizer.encode(text, {.parse_special = special, .add_template = false});
      const auto tokens = text::TokenFile::open((root_ / "chat.tokens").string());
      std::vector<int32_t> got;
      tokens.tokens().each_piece([&](int64_t, std::span<const int32_t> piece) {
        got.insert(got.end(), piece.begin(), piece.end());
      });
      EXPECT_EQ(got, whole) << special;
      EXPECT_EQ(std::count(whole.begin(), whole.end(), tokenizer.eos_id()), special ? 80 : 0);
    }
  }
}

TEST_F(JobTest, ATextIsEncodedToOneFileOnAnyNumberOfRanks) {
  const auto tokenizer = text::Tokenizer::train_bpe(file("text.txt"), {.vocab_size = 280});
  const auto encode = [&](Group& group, const char* to) {
    return encode_file(group, (root_ / "text.txt").string(), (root_ / to).string(), tokenizer, 50);
  };
  const int64_t count = encode(*distributed::single(), "one.tokens");
  EXPECT_EQ(count, std::ssize(tokenizer.encode(file("text.txt"), {.add_template = false})));
  for (const int ranks : {2, 3}) {
    distributed::run_local_group(
        ranks, [&](Group& group) { EXPECT_EQ(encode(group, "many.tokens"), group.rank() == 0 ? count : 0); });
    EXPECT_EQ(file("many.tokens"), file("one.tokens"));
  }
  std::ofstream(root_ / "text.txt", std::ios::app) << "\nbad \xFF";
  EXPECT_THROW(distributed::run_local_group(2, [&](Group& group) { encode(group, "bad.tokens"); }),
               FormatError);
  EXPECT_FALSE(fs::exists(root_ / "bad.tokens"));
}

TEST_F(JobTest, TranslatorsDoNotKnowTheNumberOfRanks) {
  Seq2SeqRun alone = translator("one");
  alone.settings.average = 2;
  const Seq2SeqSummary one = train_seq2seq(alone);
  for (const int ranks : {2, 4}) {
    const std::string name = "on" + std::to_string(ranks);
    alone.folder = (root_ / name).string();
    on_ranks(ranks, alone, [&](const Seq2SeqRun& run) {
      EXPECT_EQ(train_seq2seq(run).validation->nats, one.validation->nats);
    });
    EXPECT_EQ(file(name + "/model.safetensors"), file("one/model.safetensors")) << ranks;
  }
}

TEST_F(JobTest, ResumesOnAnotherNumberOfRanks) {
  train_language_model(language_model("whole"));
  LanguageModelRun parts = language_model("parts");
  // Any rank may be the one that is told to stop.
  on_ranks(4, parts, [](LanguageModelRun& run) {
    int asked = 0;
    if (run.group->rank() == 3) run.should_stop = [asked]() mutable { return ++asked > 1; };
    EXPECT_EQ(train_language_model(run).ending, Ending::interrupted);
  });
  EXPECT_TRUE(fs::exists(root_ / "parts/checkpoint-1"));
  parts.resume = true;
  on_ranks(3, parts, [](LanguageModelRun& run) {
    int asked = 0;
    if (run.leads()) run.should_stop = [asked]() mutable { return ++asked > 4; };
    EXPECT_EQ(train_language_model(run).ending, Ending::interrupted);
  });
  EXPECT_EQ(train_language_model(parts).ending, Ending::finished);
  EXPECT_EQ(file("parts/model.safetensors"), file("whole/model.safetensors"));
  parts.settings.shards = 4;
  EXPECT_THAT([&] { train_language_model(parts); },
              ThrowsMessage<ValueError>(HasSubstr("shards was 5, is now 4")));
}

TEST_F(JobTest, EightShardsWhereRanksAreAndNobodyHasChosen) {
  LanguageModelRun run = language_model("a");
  run.settings.shards = 0;
  on_ranks(2, run, train_language_model);
  run.settings.shards = 8, run.folder = (root_ / "b").string();
  train_language_model(run);
  EXPECT_EQ(file("a/model.safetensors"), file("b/model.safetensors"));
  EXPECT_EQ(shards_of(TrainingSettings(), 1), 1);
}

TEST_F(JobTest, RanksThatDifferAreRefusedByName) {
  const auto refused = [&](const std::string& message, const std::function<void(LanguageModelRun&)>& change) {
    EXPECT_THAT(
        [&] {
          on_ranks(3, language_model("refused"), [&](LanguageModelRun& run) {
            if (run.group->rank() == 2) change(run);
            train_language_model(run);
          });
        },
        ThrowsMessage<ValueError>(HasSubstr(message)));
    EXPECT_FALSE(fs::exists(root_ / "refused/train_config.json"));
  };
  refused("rank 2 on", [](LanguageModelRun& run) { run.settings.lr = 1; });
  refused("lr is 1.0, not 0.005", [](LanguageModelRun& run) { run.settings.lr = 1; });
  std::ofstream(root_ / "other.txt") << file("text.txt") << "the cat.\n";
  refused("text is", [&](LanguageModelRun& run) { run.data = (root_ / "other.txt").string(); });
}

// Runs of encoders on three ranks leave what one leaves, and measure the same.
class EncoderJobTest : public EncoderRunTest {
 protected:
  template <class Run, class Train>
  void expect_same(Run run, Train&& train, const std::string& file = "model.safetensors") {
    TrainingSettings& s = run.settings;
    s.steps = 4, s.shards = 5, s.warmup_steps = 1, s.eval_every = 2, s.log_every = 1;
    run.folder = path("one");
    const auto one = train(run);
    run.folder = path("three");
    distributed::run_local_group(3, [&](Group& group) {
      Run own = run;
      own.group = &group;
      if (group.rank() > 0) own.folder = "/nowhere";
      const auto here = train(own);
      EXPECT_EQ(to_json(here).at("validation").dump(), to_json(one).at("validation").dump());
      EXPECT_EQ(here.progress.best_loss, one.progress.best_loss);
    });
    EXPECT_TRUE(bytes("three/" + file) == bytes("one/" + file));
  }
  void write_pairs(const std::string& name, bool labels) const {
    std::string lines;
    for (uint64_t i = 0; i < 23; ++i) {
      const std::string second = labels ? (i % 3 == 0 ? "yes" : "no") : sentence(i + 90, i % 7);
      lines += sentence(i, i % 7) + "\t" + second + "\n";
    }
    write(name, lines);
  }
};

TEST_F(EncoderJobTest, Classifiers) {
  write_pairs("texts.tsv", true);
  ClassifierRun run;
  run.data = run.valid = path("texts.tsv"), run.init = path("bert");
  start_from(run.settings, run.init);
  run.settings.batch = 4;
  expect_same(run, train_classifier);
}

TEST_F(EncoderJobTest, EmbeddersWithAnAdapter) {
  write_pairs("pairs.tsv", false);
  EmbedderRun run;
  run.data = run.valid = path("pairs.tsv"), run.init = path("bert");
  start_from(run.settings, run.init);
  run.settings.batch = 4, run.settings.chunk = 3, run.settings.lora.rank = 2;
  expect_same(run, train_embedder, "adapter_model.safetensors");
}

TEST_F(EncoderJobTest, MaskedLanguageModels) {
  std::string text;
  for (uint64_t i = 0; i < 60; ++i) text += sentence(i, i % 7) + " ";
  write("text.txt", text);
  MaskedLmRun run;
  run.data = path("text.txt"), run.init = path("bert_masked_lm");
  start_from(run.settings, run.init);
  run.settings.batch = 2;
  expect_same(run, train_masked_lm);
}

TEST(TrainingMemoryTest, RanksShareTheOptimiser) {
  TrainingSettings s;
  EXPECT_EQ(training_memory(s, 1000, 1).total(), 16000);
  s.shards = 8;
  EXPECT_EQ(training_memory(s, 1000, 4).optimizer, 2000);
  EXPECT_EQ(training_memory(s, 1000, 8).gradients, 4000 * 1.5);
}

}  // namespace
}  // namespace multihead::train
