#include "multihead/train/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/train/settings.h"

namespace multihead::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

void set(LanguageModelSettings& settings, const std::string& name, std::string_view text) {
  for (const Field& field : fields(settings)) {
    if (field.name == name) return assign(field, text);
  }
  FAIL() << name;
}

TEST(FieldsTest, TextsBecomeValues) {
  LanguageModelSettings s;
  set(s, "layers", "7");
  set(s, "lr", "2.5e-4");
  set(s, "gated", "true");
  set(s, "positions", "rotary");
  set(s, "schedule", "noam");
  EXPECT_EQ(s.model.num_layers, 7);
  EXPECT_EQ(s.lr, 2.5e-4);
  EXPECT_TRUE(s.model.gated);
  EXPECT_EQ(s.model.positions, models::Positions::rotary);
  EXPECT_EQ(s.schedule, optim::ScheduleKind::noam);
}

TEST(FieldsTest, NonsenseIsRefusedByName) {
  LanguageModelSettings s;
  for (const char* text : {"", " 3", "3 ", "3.5", "0x10", "+3", "three", "1e3"}) {
    EXPECT_THAT([&] { set(s, "layers", text); }, ThrowsMessage<ValueError>(HasSubstr("--layers"))) << text;
  }
  EXPECT_THAT([&] { set(s, "layers", "99999999999999999999"); },
              ThrowsMessage<ValueError>(HasSubstr("out of range")));
  for (const char* text : {"", "0,001", "1x", "nan", "inf", "-inf", "1e400"}) {
    EXPECT_THAT([&] { set(s, "lr", text); }, ThrowsMessage<ValueError>(HasSubstr(concat("\"", text, "\""))));
  }
  EXPECT_THAT([&] { set(s, "gated", "yes"); }, ThrowsMessage<ValueError>(HasSubstr("true or false")));
  EXPECT_THAT([&] { set(s, "positions", "rope"); },
              ThrowsMessage<ValueError>(HasSubstr("none, learned, sinusoidal, rotary or alibi")));
  EXPECT_EQ(to_json(fields(s)).dump(), [] {
    LanguageModelSettings fresh;
    return to_json(fields(fresh)).dump();
  }());
}

TEST(FieldsTest, JsonGoesBothWays) {
  LanguageModelSettings s = language_model_settings("tutorial"), t;
  s.lr = 0.1;
  assign_all(fields(t), to_json(fields(s)), "test");
  EXPECT_EQ(to_json(fields(t)), to_json(fields(s)));
  EXPECT_THAT(
      [&] {
        assign_all(fields(t), Json::object({{"colour", 1}}), "f.json");
      },
      ThrowsMessage<FormatError>(HasSubstr("f.json: unknown setting \"colour\"")));
  EXPECT_THAT(
      [&] {
        assign_all(fields(t), Json::object({{"layers", "x"}}), "f.json");
      },
      ThrowsMessage<FormatError>(HasSubstr("\"layers\"")));
}

TEST(FieldsTest, NamesOfEarlierVersionsAreUnderstoodInFiles) {
  LanguageModelSettings s;
  assign_all(fields(s), Json::object({{"ffn_width", 24}}), "f.json");
  EXPECT_EQ(s.model.ffn_dim, 24);
  EXPECT_EQ(current_name("ffn-width"), "ff");
  EXPECT_EQ(current_name("width"), "width");
}

TEST(FieldsTest, IdentityLeavesOutWhatIsOnlyReported) {
  LanguageModelSettings s;
  const Json before = identity_of(s);
  s.eval_every = 3, s.keep = 9, s.log_every = 1, s.save_every = 2;
  EXPECT_EQ(identity_of(s), before);
  s.seed = 99;
  EXPECT_FALSE(identity_of(s) == before);
}

TEST(SettingsTest, TheLengthOfARunComesFromItsData) {
  const auto chosen = [](double steps, double epochs = 0) {
    TrainingSettings s;
    set_fine_tuning(s);
    s.epochs = epochs;
    choose_length(s, steps);
    return s;
  };
  EXPECT_EQ(chosen(157).steps, 471);  // 5,000 texts by 32: three passes
  EXPECT_EQ(chosen(157).warmup_steps, 47);
  EXPECT_EQ(chosen(157).eval_every, 40);  // twelve, the last after the last step
  EXPECT_EQ(chosen(10).steps, 150);
  EXPECT_EQ(chosen(2).steps, 40);  // not more than twenty
  EXPECT_EQ(chosen(157, 0.5).steps, 79);
  EXPECT_EQ(chosen(157, 2).epochs, 0);
  const auto of_new = [](double steps) {
    TrainingSettings s;
    set_new(s, 2000);
    choose_length(s, steps);
    return s.steps;
  };
  EXPECT_EQ(of_new(300), 2000);
  EXPECT_EQ(of_new(1e6), 2000);
  EXPECT_EQ(of_new(10), 300);  // of few data thirty passes
  TrainingSettings given;
  given.steps = 7, given.warmup_steps = 0, given.eval_every = 0;
  choose_length(given, 157);
  EXPECT_EQ(given.steps, 7);
  EXPECT_EQ(given.warmup_steps, 0);
  EXPECT_EQ(given.eval_every, 0);
}

// 100 s, of .1 s a step and 5 s an evaluation.
TEST(SettingsTest, TheStepsOfATimeLeaveRoomForTheEvaluations) {
  const auto chosen = [](int64_t eval_every) {
    TrainingSettings s;
    s.eval_every = eval_every;
    choose_steps(s, 100, 0.1, 5);
    return s;
  };
  EXPECT_EQ(chosen(-1).steps, 619);  // six evaluations and that before
  EXPECT_EQ(chosen(-1).eval_every, 104);
  EXPECT_EQ(chosen(0).steps, 857);
  EXPECT_EQ(chosen(0).eval_every, 0);
  EXPECT_EQ(chosen(1).steps, 18);
  EXPECT_EQ(chosen(100).steps, 581);
  EXPECT_EQ(chosen(100).eval_every, 100);
}

TEST(SettingsTest, TimesMayHaveSeveralUnits) {
  const auto seconds = [](const char* time) {
    TrainingSettings s;
    s.time = time;
    return seconds_of(s);
  };
  EXPECT_EQ(seconds(""), 0);
  EXPECT_EQ(seconds("90s"), 90);
  EXPECT_EQ(seconds("1h30m"), 5400);
  EXPECT_EQ(seconds("1.5h1s"), 5401);
  for (const char* wrong : {"90", "m", "1m2h", "1m2m", "1h30", "-1s", "0s", "1d"})
    EXPECT_THROW(seconds(wrong), ValueError) << wrong;
}

TEST(SettingsTest, TheRateComesFromTheWidthAndWhatIsTrained) {
  const auto chosen = [](int64_t width, int64_t rank, double lr = 0) {
    TrainingSettings s;
    set_fine_tuning(s);
    s.lora.rank = rank, s.lr = lr;
    choose_rate(s, width, 5e-5);
    return s.lr;
  };
  EXPECT_DOUBLE_EQ(chosen(768, 0), 5e-5);
  EXPECT_DOUBLE_EQ(chosen(384, 0), 2e-4);
  EXPECT_DOUBLE_EQ(chosen(64, 0), 2e-4);
  EXPECT_DOUBLE_EQ(chosen(768, 8), 5e-4);
  EXPECT_DOUBLE_EQ(chosen(768, 8, 3e-3), 3e-3);
}

TEST(SettingsTest, PresetsMakeSense) {
  for (const std::string& name : language_model_presets())
    EXPECT_NO_THROW(check(language_model_settings(name)));
  EXPECT_THROW(language_model_settings("huge"), ValueError);
}

// labml.ai's experiment: characters, 256 wide, 16 heads, 6 layers, ffn 1024, context 512, batch 16, Noam
// 2000.
TEST(SettingsTest, TutorialIsTheFoundingRecipe) {
  const LanguageModelSettings s = language_model_settings("tutorial");
  EXPECT_EQ(s.tokenizer, TokenizerChoice::characters);
  EXPECT_EQ(s.model.embed_dim, 256);
  EXPECT_EQ(s.model.num_heads, 16);
  EXPECT_EQ(s.model.num_layers, 6);
  EXPECT_TRUE(s.model.norm_first);
  EXPECT_EQ(s.model.ffn_dim, 1024);
  EXPECT_EQ(s.model.context, 512);
  EXPECT_EQ(s.batch, 16);
  EXPECT_EQ(s.model.dropout_p, 0.1);
  EXPECT_EQ(s.schedule, optim::ScheduleKind::noam);
  EXPECT_EQ(s.warmup_steps, 2000);
  EXPECT_EQ(s.lr, 1);
  EXPECT_EQ(s.clip, 1);
  EXPECT_TRUE(s.eps_hat);
}

TEST(SettingsTest, NonsenseIsRefused) {
  auto refused = [](auto change) {
    LanguageModelSettings s;
    change(s);
    EXPECT_THROW(check(s), ValueError);
  };
  refused([](auto& s) { s.model.context = 0; });
  refused([](auto& s) { s.model.num_heads = 3; });
  refused([](auto& s) { s.lr = std::nan(""); });
  refused([](auto& s) { s.lr = -1; });
  refused([](auto& s) { s.steps = -1; });
  refused([](auto& s) { s.batch = -2; });
  refused([](auto& s) { s.accumulate = 0; });
  refused([](auto& s) { s.validation_share = 1; });
  refused([](auto& s) { s.label_smoothing = 1.5; });
  refused([](auto& s) { s.clip = -1; });
  refused([](auto& s) { s.model.dropout_p = 1; });
  refused([](auto& s) { s.seed = -1; });
  refused([](auto& s) { s.vocab_size = 0; });
  refused([](auto& s) { s.log_every = 0; });
  refused([](auto& s) { s.keep = 0; });
  refused([](auto& s) { s.beta1 = 1; });
  refused([](auto& s) { s.momentum = -0.1; });  // of an optimiser that is not chosen, too
  refused([](auto& s) { s.steps = s.accumulate = int64_t{1} << 32; });
  refused([](auto& s) { s.batch = int64_t{1} << 40; });
}

}  // namespace
}  // namespace multihead::train
