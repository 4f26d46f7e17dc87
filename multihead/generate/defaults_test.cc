#include "multihead/generate/defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/generate/beam_rules-inl.h"

namespace multihead {
namespace {

using ::testing::HasSubstr;

models::Seq2SeqConfig model() {
  models::Seq2SeqConfig c;
  c.source_vocab_size = c.target_vocab_size = 11, c.eos_id = 3, c.decoder_start_id = c.pad_id = 10;
  return c;
}

template <class Options, class... Model>
std::string error_of(const models::GenerationConfig& config, Options options, const Model&... model) {
  try {
    apply(config, model..., options);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DefaultsTest, ASearchIsAsTheFolderWantsIt) {
  BeamOptions options;
  apply({}, model(), options);
  EXPECT_EQ(options.beam_size, BeamOptions().beam_size);
  apply({.length_penalty = 0.6,
         .num_beams = 6,
         .no_repeat_ngram_size = 2,
         .min_length = 4,
         .max_length = 40,
         .decoder_start_token_id = 10,
         .forced_bos_token_id = 5,
         .forced_eos_token_id = 3,
         .eos_token_ids = {3},
         .bad_words_ids = {{10}, {4, 5}},
         .early_stopping = true,
         .renormalize_logits = true},
        model(), options);
  EXPECT_EQ(options.beam_size, 6);
  EXPECT_EQ(options.length_penalty, 0.6);
  EXPECT_EQ(options.no_repeat_ngram, 2);
  EXPECT_EQ(options.min_length, 3);   // the start token counted there
  EXPECT_EQ(options.max_length, 38);  // and the end
  EXPECT_EQ(options.suppress, (std::vector<std::vector<int32_t>>{{10}, {4, 5}}));
  EXPECT_TRUE(options.renormalize && options.free_forced_end && options.stop_early);
  EXPECT_EQ(options.first_token, 5);
  apply({.min_length = 12, .min_new_tokens = 4}, model(), options);
  EXPECT_EQ(options.min_length, 4);
  EXPECT_THAT(error_of({.forced_bos_token_id = 11}, BeamOptions(), model()), HasSubstr("outside the vocab"));
  EXPECT_THAT(error_of({.never_stops_early = true}, BeamOptions(), model()), HasSubstr("early_stopping"));
  EXPECT_THAT(error_of({.forced_eos_token_id = 4}, BeamOptions(), model()), HasSubstr("must be 3"));
  EXPECT_THAT(error_of({.eos_token_ids = {3, 4}}, BeamOptions(), model()), HasSubstr("eos_token_id"));
  EXPECT_THAT(error_of({.decoder_start_token_id = 0}, BeamOptions(), model()), HasSubstr("must be 10"));
  EXPECT_THAT(error_of({.bad_words_ids = {{11}}}, BeamOptions(), model()),
              HasSubstr("outside the vocabulary"));
}

TEST(DefaultsTest, AreSavedAsOthersNeedThem) {
  models::Seq2SeqConfig small = model();
  const Json translator = Json::parse(saved_defaults("", small));
  EXPECT_EQ(translator.at("num_beams").as_int(), 4);
  EXPECT_EQ(translator.at("max_length").as_int(), 258);
  EXPECT_EQ(translator.at("eos_token_id").as_int(), 3);
  EXPECT_EQ(translator.at("forced_eos_token_id").as_int(), 3);
  BeamOptions options;
  apply(models::generation_config_from_json(translator, "f"), small, options);
  EXPECT_EQ(options.max_length, BeamOptions().max_length);
  small.max_positions = 20;
  EXPECT_EQ(Json::parse(saved_defaults("", small)).at("max_length").as_int(), 20);

  const std::string text = "a b <|im_end|>";
  const text::Tokenizer tokenizer = text::Tokenizer::train_characters(
      std::vector<std::string_view>{text}, {.special = {.eos = "</s>", .pad = "<pad>"}});
  const Json own = Json::parse(saved_defaults("", Json::object({{"vocab_size", 5}}), tokenizer));
  EXPECT_EQ(own.at("eos_token_id").as_int(), *tokenizer.eos_id());
  EXPECT_EQ(own.at("pad_token_id").as_int(), *tokenizer.pad_id());
  EXPECT_FALSE(own.contains("vocab_size"));
  const Json given = Json::object({{"eos_token_id", Json(std::vector<Json>{1, 2})}, {"top_k", 7}});
  EXPECT_EQ(Json::parse(saved_defaults("", given, tokenizer)).at("eos_token_id").items().size(), 2);
}

TEST(DefaultsTest, SamplingIsAsTheFolderWantsIt) {
  GenerateOptions options;
  options.stop_tokens = {1};
  apply({.do_sample = true,
         .temperature = 0.6,
         .top_p = 0.9,
         .repetition_penalty = 1.05,
         .top_k = 20,
         .eos_token_ids = {3, 5}},
        options);
  EXPECT_EQ(options.sampling.temperature, 0.6);
  EXPECT_EQ(options.sampling.top_k, 20);
  EXPECT_EQ(options.sampling.top_p, 0.9);
  EXPECT_EQ(options.sampling.repetition_penalty, 1.05);
  EXPECT_EQ(options.stop_tokens, (std::vector<int32_t>{3, 5}));
  apply({.do_sample = false}, options);
  EXPECT_EQ(options.sampling.temperature, 0);
  EXPECT_THAT(error_of({.num_beams = 2}, GenerateOptions()), HasSubstr("num_beams"));
  EXPECT_THAT(error_of({.min_length = 2}, GenerateOptions()), HasSubstr("min_length"));
  EXPECT_THAT(error_of({.forced_bos_token_id = 2}, GenerateOptions()), HasSubstr("forced_bos_token_id"));
  apply({.no_repeat_ngram_size = 2,
         .min_new_tokens = 3,
         .forced_eos_token_id = 4,
         .eos_token_ids = {4},
         .bad_words_ids = {{4}, {2, 3}},  // an end alone counts for nothing
         .suppress_tokens = {7}},
        options);
  EXPECT_EQ(options.no_repeat_ngram, 2);
  EXPECT_EQ(options.min_new_tokens, 3);
  EXPECT_EQ(options.last_token, 4);
  EXPECT_EQ(options.suppress, (std::vector<std::vector<int32_t>>{{2, 3}, {7}}));
}

TEST(DefaultsTest, ScoresAreLogProbabilitiesAgainBehindTheRules) {
  std::vector<float> scores(4, std::log(0.25f));
  BeamOptions options{.suppress = {{2}}, .renormalize = true};
  const std::vector<int32_t> start = {3};
  detail::apply_rules(options, {.history = start, .prefix = {}, .eos = 0, .last = false}, scores);
  for (const size_t i : {0u, 1u, 3u}) EXPECT_NEAR(scores[i], std::log(1.0 / 3), 1e-6);
  EXPECT_EQ(scores[2], detail::kNever);
  // An end for want of room costs what it costs, or nothing.
  for (const bool is_free : {false, true}) {
    options.free_forced_end = is_free;
    detail::apply_rules(options, {.history = start, .prefix = {}, .eos = 1, .last = true}, scores);
    EXPECT_NEAR(scores[1], is_free ? 0 : std::log(1.0 / 3), 1e-6);
    EXPECT_EQ(scores[0], detail::kNever);
  }
}

}  // namespace
}  // namespace multihead
