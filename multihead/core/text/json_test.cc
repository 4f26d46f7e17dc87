#include "multihead/core/text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <clocale>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/testing/comma_locale.h"
#include "multihead/testing/processor_time.h"

namespace multihead {
namespace {

using ::testing::HasSubstr;

size_t memory_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  try {
    Json::parse(text, "config.json", limits);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JsonTest, ReadsEveryKindOfValue) {
  const Json json =
      Json::parse(R"( {"a":null,"b":[true,false],"c":-12,"d":0.5,"e":"\u00e9\n\ud83d\ude00","f":{}} )");
  EXPECT_TRUE(json.at("a").is_null());
  EXPECT_TRUE(json.at("b").at(0).as_bool());
  EXPECT_FALSE(json.at("b").at(1).as_bool());
  EXPECT_EQ(json.at("c").as_int(), -12);
  EXPECT_EQ(json.at("d").as_double(), 0.5);
  EXPECT_EQ(json.at("e").as_string(), "é\n😀");
  EXPECT_EQ(json.at("f").size(), 0u);
  EXPECT_TRUE(json.at("f").is_object());
  EXPECT_EQ(json.size(), 6u);
  EXPECT_EQ(json.members()[2].key, "c");
}

// The names of the cases are those of the public JSON test suite that has them.
TEST(JsonTest, AcceptsWhatTheStandardAllows) {
  for (const char* text : {"0",
                           "-1",
                           "1e5",
                           "1E+2",
                           "1.5e-3",
                           "true",
                           "\"\"",
                           " [ ] ",
                           "[\n1\t,\r2 ]",
                           "{\"\":0}",
                           "\"\\/\"",
                           "\"\\u0000\"",
                           "\"\x7f\"",
                           "[-0]",
                           "[1e-400]",
                           "\"\xf4\x8f\xbf\xbf\"",
                           "\"\\uDBFF\\uDFFF\"",
                           "[123456789012345678901234567890]",
                           "{\"a\":{\"a\":{}}}",
                           "\"\xe2\x80\xa8\""})
    EXPECT_NO_THROW(Json::parse(text)) << text;
}

TEST(JsonTest, RefusesWhatItForbids) {
  for (const char* text : {"",
                           " ",
                           "[",
                           "]",
                           "{",
                           "[1,]",
                           "[,1]",
                           "[1 2]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{'a':1}",
                           "{1:1}",
                           "01",
                           "-",
                           "-01",
                           "+1",
                           ".5",
                           "1.",
                           "1e",
                           "1e+",
                           "0x10",
                           "NaN",
                           "-NaN",
                           "Infinity",
                           "-Infinity",
                           "nan",
                           "tru",
                           "True",
                           "nul",
                           "\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "\"\n\"",
                           "\"\t\"",
                           "\"\x01\"",
                           "\"\xff\"",
                           "\"\xc0\x80\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xf4\x90\x80\x80\"",
                           "\"\xe2\x80\"",
                           "1 2",
                           "{} {}",
                           "[1]x",
                           "// c\n1",
                           "/* c */ 1",
                           "[1e400]",
                           "[-1e400]",
                           "\xef\xbb\xbf{}",
                           "\xfe\xff",
                           "\xc2\xa0[]",
                           "[\x0c]",
                           "{\"a\":1 \"b\":2}",
                           "[1}",
                           "{]",
                           "[\"a\",\n4\n,1,",
                           "{\"a\":b}",
                           "1,"})
    EXPECT_THROW(Json::parse(text), FormatError) << text;
  EXPECT_THROW(Json::parse(std::string_view("{}\0{}", 5)), FormatError);
  EXPECT_THROW(Json::parse(std::string_view("[1]\0", 4)), FormatError);
  EXPECT_THROW(Json::parse(std::string_view("\"a\0b\"", 5)), FormatError);
}

TEST(JsonTest, ErrorsNameFilePlaceAndReason) {
  EXPECT_THAT(error_of("{\n  \"a\": 1,\n  \"b\": x}"),
              HasSubstr("config.json: line 3, column 8 (byte 19): "));
  EXPECT_THAT(error_of("{\n  \"a\": 1,\n  \"b\": x}"), HasSubstr("invalid literal"));
  EXPECT_THAT(error_of("{\"a\": 1, \"a\": 2}"), HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(error_of("{\"a\\u0000\\n\": 1, \"a\\u0000\\n\": 2}"),
              HasSubstr("duplicate key \"a\\u0000\\n\""));
  EXPECT_THAT(error_of("[1, 1e999]"), HasSubstr("number is too large"));
  EXPECT_THAT(error_of("\xef\xbb\xbf{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(error_of(std::string_view("[\n\0]", 4)), HasSubstr("line 2, column 1 (byte 2): NUL byte"));
  EXPECT_THAT(error_of("[\"\xff\x1b[31m\"]"), ::testing::Not(HasSubstr("\x1b")));
}

TEST(JsonTest, LimitsHold) {
  EXPECT_NO_THROW(Json::parse(std::string(64, '[') + std::string(64, ']')));
  EXPECT_THAT(error_of(std::string(65, '[') + std::string(65, ']')), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("nested deeper than 64"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(error_of(objects), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(error_of("[1,2,3]", {.bytes = 6}), HasSubstr("7 bytes of JSON, the limit is 6"));
  EXPECT_THAT(error_of("[1,2,3]", {.values = 3}), HasSubstr("more than 3 values"));
  EXPECT_EQ(error_of("[1,2,3]", {.values = 4}), "accepted");
}

TEST(JsonTest, IntegersAreExactAndTheRestAreNumbers) {
  EXPECT_EQ(Json::parse("9223372036854775807").as_int(), INT64_MAX);
  EXPECT_EQ(Json::parse("-9223372036854775808").as_int(), INT64_MIN);
  EXPECT_EQ(Json::parse("9007199254740993").as_int(), 9007199254740993);
  for (const char* text :
       {"9223372036854775808", "18446744073709551616", "-9223372036854775809", "-0", "1.0", "1e3"}) {
    EXPECT_TRUE(Json::parse(text).is_number()) << text;
    EXPECT_THROW(Json::parse(text).as_int(), FormatError) << text;
  }
  for (const char* text : {"9223372036854775808", "18446744073709551616", "-9223372036854775809"}) {
    Json large = Json::parse(text), copy = large;
    EXPECT_EQ(large.dump(), text);
    large = Json(1);
    EXPECT_EQ(copy.digits(), text);
    EXPECT_EQ(copy, Json::parse(text));
    EXPECT_NE(copy, Json(copy.as_double()));
    EXPECT_NE(copy, Json::parse(std::string(text) + "0"));
  }
  EXPECT_NE(Json::parse("18446744073709551616"), Json::parse("18446744073709551617"));  // equal as doubles
  EXPECT_TRUE(std::signbit(Json::parse("-0").as_double()));
  EXPECT_EQ(Json::parse("1000000000000000019884624838656").as_double(), 1e30);
  EXPECT_THROW(Json(UINT64_MAX), ValueError);
}

TEST(JsonTest, WritesTheSameBytesThatItReads) {
  const std::string text =
      R"({"b":[1,-2,0.1,1e+300,5e-324,1e-05,1234567890123456.0,1e+16,1.0,-0.0],"a":"\"\\\n\t\r\b\f\u0000\u001f/é😀","n":null,"t":true,"o":{},"e":[]})";
  EXPECT_EQ(Json::parse(text).dump(), text);
  EXPECT_EQ(Json::parse("{\"a\":[1,{\"b\":2}],\"c\":{}}").dump(2),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": {}\n}");
  EXPECT_EQ(Json(3e-4f).dump(), "0.0003");
  EXPECT_EQ(Json(100000.0).dump(), "100000.0");
}

TEST(JsonTest, DoublesSurviveTheRoundTrip) {
  uint64_t bits = 0x3ff0000000000001;
  for (int i = 0; i < 2000; ++i) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    const double value = std::bit_cast<double>(bits);
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(Json::parse(Json(value).dump()).as_double(), value);
  }
}

TEST(JsonTest, RefusesToWriteWhatJsonCannotHold) {
  EXPECT_THROW(Json(std::nan("")).dump(), ValueError);
  EXPECT_THROW(Json(INFINITY).dump(), ValueError);
  EXPECT_THROW(Json(-INFINITY).dump(), ValueError);
  EXPECT_THROW(Json("\xff").dump(), ValueError);
  EXPECT_THROW(Json("a\xe2\x82").dump(), ValueError);
}

TEST(JsonTest, LocaleDoesNotChangeNumbers) {
  const testing::CommaLocale comma;
  if (!comma) GTEST_SKIP() << "no locale with a decimal comma here: it needs the package locales";
  const Json numbers = Json::parse("[0.25, 1.5e-3, -1234567.25, 1E2, 7]");
  std::vector<double> values;
  for (const Json& number : numbers.items()) values.push_back(number.as_double());
  EXPECT_EQ(values, (std::vector<double>{0.25, 1.5e-3, -1234567.25, 100, 7}));
  EXPECT_EQ(Json(0.25).dump(), "0.25");
}

TEST(JsonTest, ObjectsKeepOrderAndFindEveryKey) {
  Json json;
  for (int i = 0; i < 100; ++i) json["key" + std::to_string(i * 7 % 100)] = i;
  EXPECT_EQ(json.size(), 100u);
  EXPECT_EQ(json.members()[1].key, "key7");
  const Json copy = json;
  EXPECT_TRUE(json.erase("key0"));
  EXPECT_FALSE(json.erase("key0"));
  EXPECT_EQ(json.size(), 99u);
  for (int i = 1; i < 100; ++i) EXPECT_EQ(json.at("key" + std::to_string(i * 7 % 100)).as_int(), i);
  EXPECT_EQ(copy.at("key0").as_int(), 0);
  EXPECT_FALSE(copy == json);
}

TEST(JsonTest, EqualityLooksAtValuesNotAtTheOrderOfKeys) {
  EXPECT_EQ(Json::parse("{\"a\":1,\"b\":[2]}"), Json::parse("{\"b\":[2],\"a\":1}"));
  EXPECT_FALSE(Json::parse("{\"a\":1}") == Json::parse("{\"b\":1}"));
  EXPECT_FALSE(Json::parse("1") == Json::parse("1.0"));
}

TEST(JsonTest, ValuesMayBeAssignedFromInsideThemselves) {
  Json json = Json::parse("{\"a\":{\"b\":[1,2,{\"c\":3}]}}");
  json = Json(json.at("a"));
  json = json["b"];
  EXPECT_EQ(json.dump(), "[1,2,{\"c\":3}]");
}

TEST(JsonTest, WrongKindsAreNamed) {
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message([] { Json("x").as_int(); }), "json: expected an integer, got a string");
  EXPECT_EQ(message([] { Json(1).as_bool(); }), "json: expected a boolean, got an integer");
  EXPECT_EQ(message([] { Json().items(); }), "json: expected an array, got null");
  EXPECT_EQ(message([] { Json::object().at("k"); }), "json: no member \"k\"");
  EXPECT_EQ(message([] { Json(1).at("k"); }), "json: expected an object with \"k\", got an integer");
  EXPECT_EQ(message([] { Json::array().at(0); }), "json: index 0 past the end of an array of 0");
}

TEST(JsonTest, QuotedTextCannotForgeALogLine) {
  EXPECT_EQ(quote("a\nb\x1b[0m\"\\"), "\"a\\nb\\u001b[0m\\\"\\\\\"");
  EXPECT_EQ(quote("\xff\xc2\x9b\x7f"), "\"\\xff\\xc2\\x9b\\x7f\"");
  EXPECT_EQ(quote("ééé", 4), "\"éé…\"");
}

TEST(JsonTest, TextForATerminalIsOneHarmlessLine) {
  const std::string bidi = "\u202Aa\u202Eb\u2066c\u2069d\u200Fe\u061Cf\u2028g";
  for (const std::string& text : {std::string("\x1b]0;title\x07\x1b[31mred"), std::string("a\nforged\r\x7f"),
                                  std::string("\x9b"
                                              "2J\xff"),
                                  std::string("\u009b2J\u0085"), bidi}) {
    for (const std::string& line : {printable(text), quote(text), concat(printable(text), "é")}) {
      EXPECT_EQ(printable(line), line);  // nothing left to escape
      for (const char c : line) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << line;
    }
  }
  EXPECT_EQ(printable("naïve \"text\" \\ 日本 😀 -"), "naïve \"text\" \\ 日本 😀 -");
  EXPECT_EQ(printable("\u202E"), "\\xe2\\x80\\xae");
  EXPECT_EQ(quote(bidi).find("\u202E"), std::string::npos);
  EXPECT_EQ(Json("a\x7f"
                 "\u009b\u202Eb\u00e9")
                .dump(),
            R"("a\u007f\u009b\u202ebé")");
  EXPECT_EQ(Json::parse(Json(bidi).dump()).as_string(), bidi);
}

// Every shape of many values in few bytes, and what a text of ordinary values takes.
TEST(JsonTest, MemoryFollowsFromTheText) {
  const auto text_of = [](const std::string& unit, size_t bytes) {
    std::string text = "[";
    while (text.size() < bytes) text += unit + ",";
    return text + unit + "]";
  };
  std::string object = "{";
  for (int i = 0; object.size() < (1 << 20); ++i) object += concat("\"", i, "\":0,");
  object += "\"\":0}";
  const std::string merges = text_of("[\"a\",\"b\"]", 1 << 20);
  for (const std::string& text : {text_of("0", 1 << 20), text_of("\"\"", 1 << 20), merges, object,
                                  text_of("{\"name\":\"a longer text than fits\",\"id\":17}", 1 << 20)}) {
    const size_t before = memory_in_use();
    const Json json = Json::parse(text);
    EXPECT_LT(memory_in_use() - before, 8.5 * static_cast<double>(text.size())) << text.substr(0, 20);
  }
  for (const char* unit : {"[0]", "{\"\":0}", "[[]]"}) {
    const std::string text = text_of(unit, 1 << 20);
    EXPECT_EQ(error_of(text, {.least_memory = 1 << 30}), "accepted") << unit;
    EXPECT_THAT(error_of(text, {.memory_factor = 4, .least_memory = 0}), HasSubstr("need too much memory"));
  }
}

TEST(JsonTest, TextsKeepTheirBytesAtEveryLength) {
  for (size_t size = 0; size < 40; ++size) {
    const std::string text(size, 'x');
    Json json(text);
    const Json copy = json;
    json = Json(json);
    Json list = Json::array();
    for (int i = 0; i < 5; ++i) list.push_back(json);
    const Json moved = std::move(json);
    EXPECT_EQ(moved.as_string(), text);
    EXPECT_EQ(copy, moved);
    EXPECT_EQ(list.at(4).as_string(), text);
    Json object = Json::object({{text, 1}, {text + "y", copy}});
    EXPECT_EQ(object.at(text).as_int(), 1);
    EXPECT_EQ(Json(object).at(text + "y").as_string(), text);
  }
}

// Ten megabytes of the worst shapes; the promise is a second on an idle machine.
TEST(JsonTest, TimeIsLinear) {
  std::string entries = "{";
  for (int i = 0; entries.size() < 10'000'000; ++i)
    entries += concat(i > 0 ? "," : "", "\"k", i, "\":[0,", i, "]");
  entries += "}";
  std::string same_string = "\"" + std::string(10'000'000, 'a') + "\"";
  for (const std::string& text : {entries, same_string, std::string(10'000'000, ' ') + "1"}) {
    EXPECT_LT(testing::processor_seconds([&] { Json::parse(text); }), 10 * testing::kSlowdown)
        << text.substr(0, 10);
  }
}

}  // namespace
}  // namespace multihead
