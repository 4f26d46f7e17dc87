#include "multihead/generate/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead {
namespace {

using Tokens = std::vector<int32_t>;

models::Seq2Seq tiny(int64_t vocabulary, uint64_t seed) {
  models::Seq2SeqConfig c;
  c.source_vocab_size = vocabulary, c.max_positions = 20, c.encoder_layers = 1, c.decoder_layers = 2,
  c.num_heads = 2, c.embed_dim = 8, c.ffn_dim = 11, c.init_std = 0.4, c.pad_id = 0, c.eos_id = 1;
  Rng rng(seed);
  models::Seq2Seq model(c, rng);
  for (auto& parameter : nn::parameters(model)) {
    if (parameter.rank() == 1) fill_uniform(parameter, -0.7, 0.7, rng.next());
  }
  return model;
}

// log p(target, end | source), read in one go.
double log_probability(const models::Seq2Seq& model, const Tokens& source, const Tokens& target) {
  const auto length = static_cast<int64_t>(target.size());
  Tokens input = {static_cast<int32_t>(model.config().decoder_start_id)}, labels = target;
  input.insert(input.end(), target.begin(), target.end());
  labels.push_back(static_cast<int32_t>(model.config().eos_id));
  const Tensor logits = model({Tensor::of<int32_t>({1, static_cast<int64_t>(source.size())}, source), {}},
                              {Tensor::of<int32_t>({1, length + 1}, input), {}});
  const auto all = logits.to_vector<double>();
  const auto vocabulary = static_cast<size_t>(model.config().target_vocab_size);
  double total = 0;
  for (size_t t = 0; t < labels.size(); ++t) {
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(all[t * vocabulary + v]);
    total += all[t * vocabulary + static_cast<size_t>(labels[t])] - std::log(sum);
  }
  return total;
}

// All targets of at most `longest` tokens, best first.
std::vector<Hypothesis> exhaustive(const models::Seq2Seq& model, const Tokens& source, size_t longest,
                                   double penalty) {
  std::vector<Hypothesis> all;
  std::vector<Tokens> frontier = {{}};
  for (size_t length = 0; length <= longest; ++length) {
    std::vector<Tokens> longer;
    for (const Tokens& tokens : frontier) {
      const double p = log_probability(model, source, tokens);
      all.push_back({tokens, p / std::pow(static_cast<double>(length) + 1, penalty), p});
      for (int32_t v = 0; v < model.config().target_vocab_size; ++v) {
        if (v == model.config().eos_id) continue;
        longer.push_back(tokens);
        longer.back().push_back(v);
      }
    }
    frontier = std::move(longer);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  return all;
}

TEST(BeamSearchTest, AWideBeamIsExhaustiveSearch) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto model = tiny(5, seed);
    for (const double penalty : {0.0, 1.0, 0.6}) {
      const auto expected = exhaustive(model, {3, 4, 2, 1}, 3, penalty);
      // Wide enough for every prefix: 4^3 of them.
      const auto got =
          beam_search(model, {{3, 4, 2, 1}},
                      {.beam_size = 90, .num_hypotheses = 20, .length_penalty = penalty, .max_length = 3})[0];
      ASSERT_EQ(got.size(), 20u);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
        EXPECT_NEAR(got[i].score, expected[i].score, 1e-5);
        EXPECT_NEAR(got[i].log_probability, expected[i].log_probability, 1e-5);
      }
    }
  }
}

TEST(BeamSearchTest, GreedyTakesTheBestTokenAtEveryStep) {
  const auto model = tiny(13, 4);
  const Tokens source = {5, 7, 1};
  const Tokens got = beam_search(model, {source}, {.beam_size = 1, .max_length = 9})[0][0].tokens;
  Tokens expected;
  nn::DecodeState state = model.start({Tensor::of<int32_t>({1, 3}, source), {}}, 10);
  int32_t token = 0;
  while (expected.size() < 9) {
    const auto logits = model.step(Tensor::of<int32_t>({1, 1}, Tokens{token}), state).to_vector<float>();
    token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (token == 1) break;
    expected.push_back(token);
  }
  EXPECT_EQ(got, expected);
}

Tokens tokens_of(const Json& list) {
  Tokens tokens;
  for (const Json& token : list.items()) tokens.push_back(static_cast<int32_t>(token.as_int()));
  return tokens;
}

// Fixtures and expectations: tools/goldens/seq2seq.py.
TEST(BeamSearchTest, OtherFamiliesSayWhatTransformersSays) {
  const std::filesystem::path data =
      std::filesystem::path(MULTIHEAD_SOURCE_DIR) / "tests" / "data" / "seq2seq";
  for (const char* name : {"bart", "bart_forced", "mbart", "pegasus", "t5", "t5_gated", "mt5"}) {
    const std::string folder = name == std::string("bart_forced") ? "bart" : name;
    const models::PackedSeq2Seq model(models::load_seq2seq((data / folder).string()));
    const Json json = io::load_json((data / folder / "expected.json").string());
    std::vector<Tokens> sources;
    for (const Json& source : json.at("sources").items()) sources.push_back(tokens_of(source));
    for (const Json& one : json.at(name == folder ? "cases" : "forced").items()) {
      BeamOptions options{.beam_size = one.at("beam_size").as_int(), .max_length = 17, .suppress = {{40}}};
      if (name != folder) options.first_token = 9, options.stop_early = true;
      const auto got = beam_search(model, sources, options);
      for (size_t i = 0; i < sources.size(); ++i) {
        EXPECT_EQ(got[i].at(0).tokens, tokens_of(one.at("tokens").items()[i])) << name << " sentence " << i;
      }
    }
  }
}

// Fixture and expectation: tools/goldens/marian.py.
TEST(BeamSearchTest, SaysWhatTransformersSays) {
  const std::filesystem::path data =
      std::filesystem::path(MULTIHEAD_SOURCE_DIR) / "tests" / "data" / "marian";
  const auto model = models::load_seq2seq(data.string());
  const Json json = io::load_json((data / "expected.json").string());
  std::vector<Tokens> sources;
  for (const Json& source : json.at("sources").items()) sources.push_back(tokens_of(source));
  for (const Json& one : json.at("cases").items()) {
    BeamOptions options;
    const Json& o = one.at("options");
    const auto integer = [&](const char* key, int64_t& field) {
      if (o.contains(key)) field = o.at(key).as_int();
    };
    integer("beam_size", options.beam_size);
    integer("num_hypotheses", options.num_hypotheses);
    integer("no_repeat_ngram", options.no_repeat_ngram);
    integer("min_length", options.min_length);
    integer("max_length", options.max_length);
    if (o.contains("length_penalty")) options.length_penalty = o.at("length_penalty").as_double();
    if (o.contains("repetition_penalty")) options.repetition_penalty = o.at("repetition_penalty").as_double();
    for (const Json& banned : o.at("suppress").items()) options.suppress.push_back(tokens_of(banned));
    const auto got = beam_search(model, sources, options);
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto& want = one.at("results").items()[i].items();
      ASSERT_EQ(got[i].size(), want.size()) << o.dump();
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_EQ(got[i][k].tokens, tokens_of(want[k].at("tokens")))
            << o.dump() << " sentence " << i << ", " << k;
        if (!want[k].at("score").is_null()) {
          EXPECT_NEAR(got[i][k].score, want[k].at("score").as_double(), 2e-5) << o.dump();
        }
      }
    }
  }
}

TEST(BeamSearchTest, ASentenceGivesTheSameBitsInAnyBatchAndOnAnyThreads) {
  const auto model = tiny(31, 5);
  const std::vector<Tokens> sources = {{4, 5, 6, 1}, {9, 1}, {7, 8, 9, 10, 11, 12, 13, 1}, {1}};
  const BeamOptions options = {.beam_size = 3, .num_hypotheses = 3, .max_length = 12};
  const auto together = beam_search(model, sources, options);
  const int before = num_threads();
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto alone = beam_search(model, {sources[i]}, options)[0];
      ASSERT_EQ(alone.size(), together[i].size());
      for (size_t k = 0; k < alone.size(); ++k) {
        EXPECT_EQ(alone[k].tokens, together[i][k].tokens);
        EXPECT_EQ(alone[k].score, together[i][k].score);
      }
    }
  }
  set_num_threads(before);
}

TEST(BeamSearchTest, OptionsDoWhatTheySay) {
  const auto model = tiny(17, 6);
  const std::vector<Tokens> sources = {{4, 5, 1}, {6, 1}, {9, 2, 9, 2, 1}};
  const auto best = [&](BeamOptions o) {
    o.max_length = 12;
    std::vector<Tokens> result;
    for (const auto& hypotheses : beam_search(model, sources, o)) result.push_back(hypotheses[0].tokens);
    return result;
  };
  for (const Tokens& t : best({.no_repeat_ngram = 2, .min_length = 8})) {
    std::set<std::pair<int32_t, int32_t>> seen;
    for (size_t i = 0; i + 1 < t.size(); ++i) EXPECT_TRUE(seen.emplace(t[i], t[i + 1]).second);
  }
  for (const Tokens& t : best({.no_repeat_ngram = 1, .min_length = 8})) {
    EXPECT_EQ(std::set<int32_t>(t.begin(), t.end()).size(), t.size());
  }
  for (const Tokens& t : best({.min_length = 7})) EXPECT_GE(t.size(), 7u);
  const auto free = best({.min_length = 4});
  // The best translation is forbidden; its first two tokens may not come together.
  for (const Tokens& t : best({.min_length = 4, .suppress = {{free[0][0]}}})) {
    EXPECT_EQ(std::count(t.begin(), t.end(), free[0][0]), 0);
  }
  for (const Tokens& t : best({.min_length = 4, .suppress = {{free[0][0], free[0][1]}}})) {
    const Tokens pair = {free[0][0], free[0][1]};
    EXPECT_EQ(std::search(t.begin(), t.end(), pair.begin(), pair.end()), t.end());
  }
  const auto led = best({.prefixes = {{12, 13}, {}, {14}}});
  EXPECT_EQ(Tokens(led[0].begin(), led[0].begin() + 2), (Tokens{12, 13}));
  EXPECT_EQ(led[1], best({})[1]);
  EXPECT_EQ(led[2][0], 14);
  for (const Tokens& t : best({.repetition_penalty = 1e6, .min_length = 10})) {
    EXPECT_EQ(std::set<int32_t>(t.begin(), t.end()).size(), t.size());
  }
}

// As in transformers: one beam's logits are divided or multiplied, whatever their sign.
TEST(BeamSearchTest, OneBeamPenalizesLogits) {
  const auto model = tiny(23, 7);
  const auto vocabulary = static_cast<size_t>(model.config().target_vocab_size);
  constexpr double kPenalty = 1.7;
  for (const Tokens& source : {Tokens{4, 5, 1}, Tokens{6, 1}, Tokens{9, 2, 9, 2, 1}}) {
    Tokens expected;
    while (expected.size() < 12 && (expected.empty() || expected.back() != model.config().eos_id)) {
      Tokens input = {static_cast<int32_t>(model.config().decoder_start_id)};
      input.insert(input.end(), expected.begin(), expected.end());
      const auto length = static_cast<int64_t>(input.size());
      const auto all = model({Tensor::of<int32_t>({1, static_cast<int64_t>(source.size())}, source), {}},
                             {Tensor::of<int32_t>({1, length}, input), {}})
                           .to_vector<double>();
      std::vector<double> last(all.end() - static_cast<std::ptrdiff_t>(vocabulary), all.end());
      for (const int32_t token : std::set<int32_t>(expected.begin(), expected.end())) {
        double& logit = last[static_cast<size_t>(token)];
        logit = logit > 0 ? logit / kPenalty : logit * kPenalty;
      }
      expected.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    }
    if (expected.back() == model.config().eos_id) expected.pop_back();
    const auto found =
        beam_search(model, {source}, {.beam_size = 1, .repetition_penalty = kPenalty, .max_length = 12});
    EXPECT_EQ(found[0][0].tokens, expected);
  }
}

TEST(BeamSearchTest, NBestIsOrderedDistinctAndPatienceOnlyImproves) {
  const auto model = tiny(23, 7);
  const std::vector<Tokens> sources = {{4, 5, 1}, {6, 1}, {9, 2, 9, 2, 1}};
  const auto patient =
      beam_search(model, sources, {.beam_size = 4, .num_hypotheses = 6, .patience = 2, .max_length = 9});
  const auto usual = beam_search(model, sources, {.beam_size = 4, .num_hypotheses = 4, .max_length = 9});
  for (size_t s = 0; s < sources.size(); ++s) {
    EXPECT_EQ(usual[s].size(), 4u);
    EXPECT_GE(patient[s][0].score, usual[s][0].score);
    std::set<Tokens> distinct;
    for (size_t k = 0; k < patient[s].size(); ++k) {
      if (k > 0) {
        EXPECT_LE(patient[s][k].score, patient[s][k - 1].score);
      }
      EXPECT_TRUE(distinct.insert(patient[s][k].tokens).second);
      EXPECT_NEAR(patient[s][k].log_probability, log_probability(model, sources[s], patient[s][k].tokens),
                  1e-4);
    }
  }
}

TEST(BeamSearchTest, SamplesFollowTheSeedAndTheModel) {
  const auto model = tiny(7, 8);
  const BeamOptions options = {
      .beam_size = 1, .num_hypotheses = 400, .max_length = 2, .sample = true, .seed = 3};
  const auto samples = beam_search(model, {{3, 1}}, options)[0];
  ASSERT_EQ(samples.size(), 400u);
  EXPECT_EQ(beam_search(model, {{3, 1}}, options)[0][7].tokens, samples[7].tokens);
  double empty = 0;
  for (const Hypothesis& h : samples) empty += h.tokens.empty() ? 1.0 / 400 : 0;
  EXPECT_NEAR(empty, std::exp(log_probability(model, {3, 1}, {})), 0.08);
}

// Whose number of beams, which is not used, says nothing.
TEST(BeamSearchTest, SamplesPenalizeLogits) {
  const auto model = tiny(23, 7);
  BeamOptions options = {.beam_size = 1,
                         .num_hypotheses = 3,
                         .repetition_penalty = 1.7,
                         .max_length = 12,
                         .sample = true,
                         .seed = 3};
  const auto one = beam_search(model, {{4, 5, 1}, {6, 1}}, options);
  options.beam_size = 4;
  const auto four = beam_search(model, {{4, 5, 1}, {6, 1}}, options);
  for (size_t s = 0; s < 2; ++s) {
    for (size_t k = 0; k < 3; ++k) EXPECT_EQ(four[s][k].tokens, one[s][k].tokens);
  }
}

// Rounding to 8 bits must not hide it.
TEST(BeamSearchTest, AModelWithNanOrInfinityEndsWithAnError) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    models::Seq2Seq model = tiny(7, 3);
    model.transformer.decoder.layers[0].feed_forward.fc1.weight.data<float>()[5] = bad;
    const std::vector<Tokens> sources = {Tokens{4, 0}};
    for (const auto dtype : {models::WeightDtype::f32, models::WeightDtype::int8}) {
      EXPECT_THROW(beam_search(models::PackedSeq2Seq(model, dtype), sources), ValueError) << bad;
    }
  }
}

TEST(BeamSearchTest, StopsWhenItIsTold) {
  const auto model = tiny(11, 9);
  const std::vector<Tokens> sources(40, Tokens{4, 5, 1});
  for (const int most : {0, 3}) {
    std::atomic<int> asked = 0;
    const BeamOptions options = {
        .min_length = 15, .max_length = 15, .should_stop = [&] { return asked++ >= most; }};
    for (const auto& hypotheses : beam_search(model, sources, options)) EXPECT_TRUE(hypotheses.empty());
  }
  EXPECT_EQ(beam_search(model, sources, {.should_stop = [] { return false; }}).back().size(), 1u);
}

TEST(BeamSearchTest, AlternativesAreTheLikeliestTokensBehindThePrefixEachWithItsBest) {
  const auto model = tiny(13, 6);
  const std::vector<Tokens> sources = {{5, 7, 1}, {3, 2, 9, 4, 1}, {8, 1}};
  const BeamOptions options = {.beam_size = 3,
                               .num_hypotheses = 5,
                               .max_length = 8,
                               .suppress = {{11}},
                               .prefixes = {{4, 9}, {}, {6}},
                               .alternatives = true};
  const auto together = beam_search(model, sources, options);
  for (size_t s = 0; s < sources.size(); ++s) {
    const Tokens& prefix = options.prefixes[s];
    std::vector<std::pair<double, int32_t>> next;  // by likelihood; the end of the sentence is one of them
    for (int32_t token = 0; token < 13; ++token) {
      if (token == 11) continue;
      const auto length = static_cast<int64_t>(prefix.size()) + 1;
      Tokens input = prefix;
      input.insert(input.begin(), static_cast<int32_t>(model.config().decoder_start_id));
      const auto logits =
          model({Tensor::of<int32_t>({1, static_cast<int64_t>(sources[s].size())}, sources[s]), {}},
                {Tensor::of<int32_t>({1, length}, input), {}})
              .to_vector<double>();
      next.emplace_back(-logits[static_cast<size_t>((length - 1) * 13 + token)], token);
    }
    std::sort(next.begin(), next.end());
    ASSERT_EQ(together[s].size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      const Hypothesis& got = together[s][i];
      if (next[i].second == model.config().eos_id) {
        EXPECT_EQ(got.tokens, prefix);
        EXPECT_NEAR(got.log_probability, log_probability(model, sources[s], prefix), 1e-5);
        continue;
      }
      BeamOptions one = options;
      one.prefixes = {prefix}, one.alternatives = false, one.num_hypotheses = 1;
      one.prefixes[0].push_back(next[i].second);
      const Hypothesis best = beam_search(model, {sources[s]}, one)[0][0];
      EXPECT_EQ(got.tokens, best.tokens);
      EXPECT_EQ(got.score, best.score);
      EXPECT_EQ(got.log_probability, best.log_probability);
    }
  }
}

TEST(BeamSearchTest, AlternativesAreFewerWhereTheOptionsLeaveNoMore) {
  const auto model = tiny(7, 3);
  const BeamOptions all = {.beam_size = 2, .num_hypotheses = 100, .max_length = 6, .alternatives = true};
  EXPECT_EQ(beam_search(model, {{5, 1}}, all)[0].size(), 7u);
  BeamOptions full = all;
  full.prefixes = {Tokens(6, 3)};
  const auto ended = beam_search(model, {{5, 1}}, full)[0];  // nothing but the end fits after it
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].tokens, full.prefixes[0]);
  BeamOptions none = all;
  for (int32_t token = 0; token < 7; ++token) none.suppress.push_back({token});
  EXPECT_TRUE(beam_search(model, {{5, 1}}, none)[0].empty());
  int steps = 0;  // stopped on the way: no alternatives rather than some of them
  BeamOptions stopped = all;
  stopped.should_stop = [&] { return ++steps > 3; };
  EXPECT_TRUE(beam_search(model, {{5, 1}}, stopped)[0].empty());
}

TEST(BeamSearchTest, BadArgumentsAreNamed) {
  const auto model = tiny(11, 9);
  const auto refused = [&](const std::vector<Tokens>& sources, const BeamOptions& options, const char* text) {
    try {
      beam_search(model, sources, options);
      ADD_FAILURE() << "no error that says " << text;
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refused({{}}, {}, "a source is empty");
  refused({{11}}, {}, "token 11 of a source is outside the vocabulary of 11");
  refused({{-1}}, {}, "token -1");
  refused({Tokens(21, 3)}, {}, "21 tokens, the model has max_positions = 20");
  refused({{3}}, {.beam_size = 0}, "beam_size");
  refused({{3}}, {.beam_size = 2, .num_hypotheses = 3}, "num_hypotheses 3 exceeds");
  refused({{3}}, {.alternatives = true, .sample = true}, "not sampled");
  refused({{3}}, {.patience = 0}, "patience");
  for (const bool alternatives : {false, true}) {
    refused({{3}}, {.max_length = 2, .prefixes = {{4, 5, 6}}, .alternatives = alternatives},
            "a prefix of 3 tokens exceeds max_length 2");
  }
  refused({{3}}, {.beam_size = INT64_MAX}, "beam_size must be at most");
  refused({{3}}, {.num_hypotheses = INT64_MAX, .sample = true}, "num_hypotheses must be at most");
  refused({{3}}, {.sampling = {.temperature = -1}}, "temperature");
  EXPECT_EQ(beam_search(model, {{3}}, {.patience = 1e300, .max_length = 5}).size(),
            1u);  // no end to wait for
  refused({{3}}, {.length_penalty = NAN}, "length_penalty");
  refused({{3}}, {.repetition_penalty = 0}, "repetition_penalty");
  refused({{3}}, {.no_repeat_ngram = -1}, "no_repeat_ngram");
  refused({{3}}, {.min_length = 9, .max_length = 8}, "min_length");
  refused({{3}}, {.min_length = 99, .max_length = 99}, "min_length 99 exceeds");
  refused({{3}}, {.prefixes = {std::vector<int32_t>(99, 1)}}, "a prefix of 99 tokens");
  refused({{3}}, {.suppress = {{12}}}, "suppress");
  refused({{3}}, {.prefixes = {{1}, {2}}}, "2 prefixes for 1 sentences");
  EXPECT_TRUE(beam_search(model, {}).empty());
}

}  // namespace
}  // namespace multihead
