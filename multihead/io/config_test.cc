#include "multihead/io/config.h"

#include "multihead/testing/files.h"

namespace multihead::io {
namespace {

using testing::ElementsAre;

ConfigReader reader(std::string_view text) { return {Json::parse(text), "config.json"}; }

TEST(ConfigTest, ReadsEveryType) {
  ConfigReader config =
      reader(R"({"i":3,"n":0.5,"whole":2,"b":true,"s":"x","c":"gelu","l":["a","b"],"o":{"f":4}})");
  EXPECT_EQ(config.integer("i"), 3);
  EXPECT_EQ(config.integer("i", {.min = 3, .max = 3}), 3);
  EXPECT_EQ(config.optional_integer("i"), 3);
  EXPECT_EQ(config.number("n"), 0.5);
  EXPECT_EQ(config.number("whole", {.min = 2}), 2.0);
  EXPECT_TRUE(config.boolean("b"));
  EXPECT_EQ(config.string("s"), "x");
  EXPECT_EQ(config.choice("c", {"relu", "gelu"}), 1u);
  EXPECT_THAT(config.strings_or("l", {}), ElementsAre("a", "b"));
  EXPECT_EQ(config.child("o").integer("f"), 4);
  EXPECT_TRUE(config.has("i"));
  config.refuse_unknown();
}

TEST(ConfigTest, MissingAndNullTakeTheFallback) {
  ConfigReader config = reader(R"({"null":null})");
  for (const char* key : {"null", "missing"}) {
    EXPECT_EQ(config.integer_or(key, 7), 7);
    EXPECT_EQ(config.optional_integer(key), std::nullopt);
    EXPECT_EQ(config.number_or(key, 1.5), 1.5);
    EXPECT_TRUE(config.boolean_or(key, true));
    EXPECT_EQ(config.string_or(key, "d"), "d");
    EXPECT_THAT(config.strings_or(key, {"z"}), ElementsAre("z"));
    EXPECT_FALSE(config.optional_child(key).has_value());
    EXPECT_FALSE(config.has(key));
  }
}

TEST(ConfigTest, ErrorsNameFileFieldExpectedAndGot) {
  ConfigReader config = reader(
      R"({"s":"768","f":1.5,"neg":-1,"big":99,"zero":0,"n":null,"t":true,"a":[1],"huge":1e30,"o":{"x":"y"},"esc":"a\nb"})");
  const auto error = [&](auto f) { return message_of<FormatError>([&] { f(); }); };
  EXPECT_EQ(error([&] { config.integer("hidden_size", {.min = 1}); }),
            "config.json: \"hidden_size\" is missing; expected an integer >= 1");
  EXPECT_EQ(error([&] { config.integer("s", {.min = 1, .max = 1 << 20}); }),
            "config.json: \"s\" must be an integer in [1, 1048576], got \"768\" (a string)");
  EXPECT_EQ(error([&] { config.integer("f"); }), "config.json: \"f\" must be an integer, got 1.5");
  EXPECT_EQ(error([&] { config.integer("huge"); }), "config.json: \"huge\" must be an integer, got 1e+30");
  EXPECT_EQ(error([&] { config.integer("neg", {.min = 0}); }),
            "config.json: \"neg\" must be an integer >= 0, got -1");
  EXPECT_EQ(error([&] { config.integer_or("big", 1, {.max = 98}); }),
            "config.json: \"big\" must be an integer <= 98, got 99");
  EXPECT_EQ(error([&] { config.integer("n"); }), "config.json: \"n\" must be an integer, got null");
  EXPECT_EQ(error([&] { config.number("zero", {.min = 0, .exclude_min = true}); }),
            "config.json: \"zero\" must be a finite number > 0, got 0");
  EXPECT_EQ(error([&] { config.number("f", {.min = 0, .max = 1}); }),
            "config.json: \"f\" must be a finite number >= 0 and <= 1, got 1.5");
  EXPECT_EQ(error([&] { config.number("t"); }), "config.json: \"t\" must be a finite number, got true");
  EXPECT_EQ(error([&] { config.boolean("zero"); }), "config.json: \"zero\" must be true or false, got 0");
  EXPECT_EQ(error([&] { config.string("a"); }), "config.json: \"a\" must be a string, got an array");
  EXPECT_EQ(error([&] {
              config.choice("esc", {"relu", "gelu"});
            }),
            "config.json: \"esc\" must be one of \"relu\", \"gelu\", got \"a\\nb\" (a string)");
  EXPECT_EQ(error([&] { config.strings_or("a", {}); }),
            "config.json: \"a\" must be an array of strings, its item, got 1");
  EXPECT_EQ(error([&] { config.child("o").integer("x"); }),
            "config.json: \"o.x\" must be an integer, got \"y\" (a string)");
  EXPECT_EQ(error([&] { config.child("a"); }), "config.json: \"a\" must be an object, got an array");
  EXPECT_EQ(error([&] { reader("[1]"); }), "config.json: must be a JSON object, got an array");
}

TEST(ConfigTest, UnknownKeysAreThoseNobodyAskedFor) {
  ConfigReader config = reader(R"({"used":1,"auto_map":{},"known":2,"also":3})");
  config.integer("used");
  config.ignore({"known", "not there"});
  EXPECT_THAT(message_of<FormatError>([&] { config.refuse_unknown(); }),
              testing::HasSubstr("config.json: \"also\" is unknown"));
}

}  // namespace
}  // namespace multihead::io
