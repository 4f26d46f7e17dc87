#include "multihead/text/grammar/language.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/text/grammar/byte_dfa.h"

namespace multihead::text::grammar {
namespace {

using ::testing::HasSubstr;

bool accepts(const LanguagePtr& language, const std::string& text) {
  Walker walker(language);
  const int32_t end = walker.run(text, walker.start());
  return end != Walker::kDead && walker.accepts(end);
}

// What making a language of a source says against it.
template <class Make>
std::string refusal(Make make, const std::string& source) {
  try {
    make(source);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

struct Case {
  std::string source;
  std::vector<std::string> yes, no;
};

TEST(RegexLanguageTest, FitsWholeTexts) {
  const Case cases[] = {
      {"", {""}, {"a"}},
      {"a|b*", {"", "a", "bbb"}, {"ab", "c"}},
      {"(?:ab){2,3}c?", {"abab", "ababab", "ababc"}, {"ab", "abababab"}},
      {"[a-c\\d_]+", {"a1_", "9"}, {"", "d", "A"}},
      {"[^a-z]", {"A", "é", "€", "😀"}, {"a", "AB", "\xC3"}},
      {"é+.", {"éa", "éé€"}, {"\xC3", "é\n"}},
      {"^a$", {"a"}, {"aa", ""}},
      {"\\w+@\\w+\\.(com|org)", {"a@b.com"}, {"a@b.net", "a@.com"}},
      {"a{0}b", {"b"}, {"ab"}},
      {"\\u00e9\\x41\\.", {"éA."}, {"éAx"}},
      {"(a|b(c|d)e)*?", {"", "abceabde"}, {"b", "bce "}},
  };
  for (const Case& one : cases) {
    const LanguagePtr language = regex_language(one.source);
    for (const std::string& text : one.yes) EXPECT_TRUE(accepts(language, text)) << one.source << " " << text;
    for (const std::string& text : one.no) EXPECT_FALSE(accepts(language, text)) << one.source << " " << text;
  }
}

TEST(RegexLanguageTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"(a", "without"},
      {"a)", "without"},
      {"[a", "without"},
      {"a**", "nothing to repeat"},
      {"(?=a)", "look-around"},
      {"\\1", "\\1 is not supported"},
      {"\\bword", "\\b is not supported"},
      {"\\07", "before a digit"},
      {"a{3,2}", "repetition"},
      {"[z-a]", "wrong order"},
      {"a$b", "no text fits"},
      {"(a{1,200}){1,200}", "takes too long"},
      {"\xFF", "not UTF-8"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(refusal(regex_language, source), HasSubstr(message)) << source;
  }
}

TEST(RegexLanguageTest, SearchesWhereAsked) {
  const ByteDfa inside = ByteDfa::regex("b+", true), edges = ByteDfa::regex("^a|z$", true);
  EXPECT_TRUE(inside.accepts("abba"));
  EXPECT_FALSE(inside.accepts("aa"));
  EXPECT_TRUE(edges.accepts("ab"));
  EXPECT_TRUE(edges.accepts("bz"));
  EXPECT_FALSE(edges.accepts("ba"));
  EXPECT_TRUE(ByteDfa::regex("a+", false).with_length(2, 3).accepts("aaa"));
  EXPECT_FALSE(ByteDfa::regex("a+", false).with_length(2, 3).accepts("aaaa"));
}

TEST(GrammarLanguageTest, FollowsRules) {
  const LanguagePtr sums = grammar_language(
      "root ::= sum \"\\n\"?   # a line\n"
      "sum ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" sum\n | sum-in\n \")\"\nsum-in ::= \"-\"{1,2}\n");
  for (const char* text : {"1+2", "12\n", "--)", "(1+2)"}) {
    EXPECT_EQ(accepts(sums, text), std::string(text) != "(1+2)") << text;
  }
  const LanguagePtr nested = grammar_language("root ::= \"(\" root \")\" root | \"\"");
  EXPECT_TRUE(accepts(nested, "(()())()"));
  EXPECT_FALSE(accepts(nested, "(()"));
  EXPECT_TRUE(accepts(grammar_language(R"(root ::= "\U0001F600" [\U00000041])"), "\U0001F600A"));
}

TEST(GrammarLanguageTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"a ::= \"x\"", "no rule \"root\""},
      {"root ::= b", "no rule \"b\""},
      {"root ::= root \"x\" | \"y\"", "left recursion"},
      {"root ::= a root\na ::= \"\"", "never ends"},
      {"root ::= \"x\" root", "never ends"},
      {"root ::= \"x", "does not end"},
      {"root ::= \"\\U00110000\"", "no such character"},
      {"root = \"x\"", "::="},
      {"root ::= \"a\"\nroot ::= \"b\"", "twice"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(refusal(grammar_language, source), HasSubstr(message)) << source;
  }
}

// Instances and others by what JSON Schema says of them.
TEST(JsonSchemaLanguageTest, AcceptsExactlyTheInstances) {
  const Case cases[] = {
      {"{}",
       {"1", "-0.5e-3", "\"a\"", "[]", "{}", "null", "[1, {\"a\": [true]}]"},
       {"", "01", "+1", "1.", "nul", "[1,]"}},
      {"true", {"0"}, {"x"}},
      {R"({"type": "object"})",
       {"{}", R"({"a": 1,"b":[]})", "{\n  \"a\": 1\n}"},
       {"[]", R"({"a"})", R"({,})", R"({"a": 1} )"}},
      {R"({"type": ["integer", "null"]})", {"7", "-7", "null"}, {"7.0", "true", "\"7\""}},
      {R"({"minimum": -2, "exclusiveMaximum": 10.5, "type": "number"})",
       {"-2", "-1.99", "0", "10.49999", "10"},
       {"-2.01", "-3", "10.5", "11", "-20"}},
      {R"({"type": "integer", "maximum": 100})", {"0", "3", "-3", "100"}, {"00", "03", "-03", "007", "101"}},
      {R"({"type": "number", "maximum": 100})", {"0", "0.5", "-0.5"}, {"00", "03", "-03", "03.5", "00.5"}},
      {R"({"type": "integer", "minimum": 12, "maximum": 345})",
       {"12", "99", "345"},
       {"11", "346", "1", "3450", "-20"}},
      {R"({"type": "integer", "exclusiveMinimum": 0, "multipleOf": 6})",
       {"6", "72", "600"},
       {"0", "7", "-6"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("éé€")", R"("a\n\u00e9")", R"("\ud83d\ude00a")"},
       {R"("a")", R"("abcd")", R"("\ud83d")", R"("\q")", "\"a\nb\""}},
      {R"({"type": "string", "pattern": "^[ab]+$"})", {R"("ab")"}, {R"("")", R"("abc")"}},
      {R"({"type": "string", "pattern": "q\""})", {R"("a q\"")"}, {R"("q")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")"},
       {R"("2023-02-29")", R"("2024-13-01")"}},
      {R"({"enum": ["a", 1, null, [1, {"b": 2}]]})",
       {R"("a")", "1", "null", R"([1, {"b": 2}])"},
       {R"("b")", "[1]", "11"}},
      {R"({"enum": ["a", "bb", 3], "type": "string", "minLength": 2})", {R"("bb")"}, {R"("a")", "3"}},
      {R"({"enum": [2.0, 7]})", {"2", "2.0", "7", "7.0"}, {"2.", "2.5", "70"}},
      {R"({"enum": [1.0, 3, "a"], "const": 1})", {"1", "1.0"}, {"3", "\"a\""}},
      {R"({"enum": [[1, {"a": 2.0}]], "allOf": [{"const": [1.0, {"a": 2}]}]})", {R"([1,{"a":2}])"}, {"[1]"}},
      {R"({"enum": [1e-7, 1e20, 2.0, -1], "minimum": 0})", {"1e-07", "1e+20", "2", "2.0"}, {"-1", "-1.0"}},
      {R"({"enum": [1e-30, -1e-30, 0.5], "exclusiveMinimum": 0})", {"1e-30", "0.5"}, {"-1e-30"}},
      {R"({"enum": [1.0, 2.5, 12], "type": "integer", "maximum": 10})", {"1", "1.0"}, {"2.5", "12"}},
      {R"({"enum": [1.5, 6.0], "multipleOf": 3})", {"6"}, {"1.5"}},
      {R"({"type": "integer", "minimum": 18446744073709551614, "maximum": 18446744073709551615})",
       {"18446744073709551614", "18446744073709551615"},
       {"18446744073709551613", "18446744073709551616"}},
      {R"({"const": {"a": [true]}})", {R"({"a":[true]})"}, {R"({"a":[false]})", "{}"}},
      {R"({"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"], "additionalProperties": false, "type": "object"})",
       {R"({"b":1})", R"({"b":"x","a":2})", R"({"a":2,"b":[]})"},
       {R"({"a":1})", R"({"b":1,"c":1})", R"({"b":1,"b":1})", R"({"a":"x","b":1})"}},
      {R"({"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {R"({"ab":null,"a":1,"abc":2})", R"({"x":3})"},
       {R"({"ab":1})", R"({"a":null})"}},
      {R"({"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": {"type": "string"}})",
       {R"({"n1":1,"m":"x"})"},
       {R"({"n1":"x"})", R"({"m":1})"}},
      {R"({"type": "object", "minProperties": 1, "maxProperties": 2})",
       {R"({"a":1})", R"({"a":1,"b":2})"},
       {"{}", R"({"a":1,"b":2,"c":3})", R"({"a":1,"a":2})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
       {"[1]", "[1, 2]"},
       {"[]", "[1,2,3]", "[\"a\"]"}},
      {R"({"type": "array", "prefixItems": [{"type": "string"}], "items": false})",
       {"[]", "[\"a\"]"},
       {"[1]", "[\"a\",1]"}},
      {R"({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "null"}}]})",
       {"\"x\"", "[null]"},
       {"1", "[1]"}},
      {R"({"allOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"})", {"3", "5"}, {"2", "6"}},
      {R"({"oneOf": [{"type": "string"}, {"type": "integer"}]})", {"\"x\"", "1"}, {"null"}},
      {R"({"oneOf": [{"type":"object","properties": {"k": {"const": "a"}}, "required": ["k"]}, {"type":"object","properties": {"k": {"const": "b"}, "n": {"type": "integer"}}, "required": ["k", "n"]}]})",
       {R"({"k":"a"})", R"({"n":1,"k":"b"})", R"({"k":"a","n":"x"})"},
       {R"({"k":"b"})", R"({"k":"c"})"}},
      {R"({"oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}], "type": "object"})",
       {R"({"a":1})", R"({"b":1,"c":2})", R"({"b":1,"a":2})"},
       {"{}", R"({"a":1,"b":2,"c":3})", R"({"b":1})"}},
      {R"({"oneOf": [{"minimum": 3}, {"maximum": 5}], "type": "number"})",
       {"2.9", "5.1", "100"},
       {"3", "4", "5"}},
      {R"({"type": ["string", "integer", "null"], "not": {"enum": ["ab", "c", 7]}})",
       {R"("a")", R"("abc")", R"("é")", "6", "70", "null"},
       {R"("ab")", R"("c")", "7"}},
      {R"({"enum": ["ab", "cd", 3], "not": {"const": "cd"}})", {R"("ab")", "3"}, {R"("cd")"}},
      {R"({"not": {"type": ["object", "array", "number"]}})", {"null", "true", R"("x")"}, {"1", "[]"}},
      {R"({"type": "string", "not": {"pattern": "^x"}})", {R"("")", R"("ax")"}, {R"("x")", R"("xa")"}},
      {R"({"type": "object", "not": {"properties": {"a": {"type": "string"}}, "required": ["b"]}})",
       {"{}", R"({"a":1,"b":2})", R"({"a":"x"})"},
       {R"({"a":"x","b":2})", R"({"b":2})"}},
      {R"({"type": "array", "not": {"items": {"type": "null"}}})", {"[1]", "[null, 1]"}, {"[]", "[null]"}},
      {R"({"not": {"anyOf": [{"type": "string"}, {"not": {"minLength": 2}}]}, "type": ["array", "null"]})",
       {"[]", "null"},
       {R"("abc")"}},
      {R"({"type": "object", "if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["a"]}, "else": {"required": ["b"]}})",
       {R"({"k":1,"a":0})", R"({"b":0})", R"({"k":2,"b":0})", R"({"a":0,"k":1})"},
       {R"({"k":1,"b":0})", R"({"a":0})", "{}"}},
      {R"({"type": "array", "contains": {"type": "string"}, "maxItems": 2})",
       {R"(["a"])", R"([1, "a"])", R"(["a", 1])", R"(["a", "b"])"},
       {"[]", "[1]", "[1, 2]", R"([1, 2, "a"])"}},
      {R"({"type": "object", "propertyNames": {"pattern": "^[a-c]+$", "maxLength": 2}, "properties": {"d": {}}})",
       {"{}", R"({"ab":1})"},
       {R"({"d":1})", R"({"abc":1})", R"({"x":1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "patternProperties": {"^b": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {R"({"a":1,"b":null})"},
       {R"({"b":1})", R"({"a":null})", R"({"bb":null})", R"({"c":1})"}},
      {R"({"type": "string", "format": "uri-reference"})",
       {R"("../a?b#c")", R"("http://h:1/x")", R"("")"},
       {R"("a:b c")", R"("1:b")"}},
      {R"({"type": "string", "format": "phone", "javaType": "x", "$default": 3})", {R"("any")"}, {"3"}},
      {R"({"$ref": "#/$defs/list", "$defs": {"list": {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}, "v": {"type": "integer"}}, "required": ["v"], "additionalProperties": false}}})",
       {R"({"v":1,"next":{"v":2}})"},
       {R"({"v":1,"next":{}})"}},
      {R"({"$ref": "#/$defs/n", "maximum": 1, "$defs": {"n": {"type": "integer"}}})", {"1"}, {"5"}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n", "maximum": 1, "definitions": {"n": {"type": "integer"}}})",
       {"1", "5"},
       {"\"a\""}},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}})",
       {"{}", R"({"b":1})", R"({"a":1,"b":1})", R"({"b":1,"a":1})"},
       {R"({"a":1})"}},
  };
  for (const Case& one : cases) {
    const LanguagePtr language = json_schema_language(Json::parse(one.source));
    for (const std::string& text : one.yes) EXPECT_TRUE(accepts(language, text)) << one.source << " " << text;
    for (const std::string& text : one.no) EXPECT_FALSE(accepts(language, text)) << one.source << " " << text;
  }
}

TEST(JsonSchemaLanguageTest, BreaksLinesAsWritersDo) {
  const LanguagePtr language = json_schema_language(Json::parse(R"({"required":["a"]})"));
  for (const char* text :
       {"{\"a\":1}", "{ \"a\" : [1 , 2 ] }", "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}"})
    EXPECT_TRUE(accepts(language, text)) << text;
  for (const char* text : {"{\n\n\"a\":1}", "{\"a\"\n:1}", "{\"a\":\n1}", "{\"a\":[1\n,2]}",
                           "{\"a\":1\n,\"b\":2}", "{  \"a\":1}", "{\"a\":  1}"})
    EXPECT_FALSE(accepts(language, text)) << text;
}

TEST(JsonSchemaLanguageTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {}})", "no value fits"},
      {R"({"not": {"multipleOf": 2}})", "\"multipleOf\" at \"#/not\""},
      {R"({"not": {"additionalProperties": false}})", "\"additionalProperties\" at \"#/not\""},
      {R"({"contains": {}, "maxContains": 2})", "\"maxContains\""},
      {R"({"type": "integer", "min": 3})", "\"min\""},
      {R"({"Items": {}})", "did you mean \"items\"?"},
      {R"({"$schema": "http://json-schema.org/draft-04/schema#", "if": true, "then": false})", "draft 7"},
      {R"({"properties": {"a": {"uniqueItems": true}}})", "\"uniqueItems\" at \"#/properties/a\""},
      {R"({"minimun": 3})", "\"minimun\""},
      {R"({"type": "sting"})", "\"type\""},
      {R"({"type": "string", "format": "date_time"})", "\"date_time\""},
      {R"({"type": "string", "format": "regex"})", "\"regex\""},
      {R"x({"type": "string", "pattern": "(?=a)"})x", "look-around"},
      {R"({"$ref": "http://example.org/x"})", "\"$ref\""},
      {R"({"$ref": "#/$defs/x"})", "does not exist"},
      {R"({"type": "number", "multipleOf": 0.1})", "\"multipleOf\""},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "\"integer\" is not supported under"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no value fits"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no value fits"},
      {R"({"minLength": -1, "type": "string"})", "\"minLength\""},
      {"false", "no value fits"},
      {"3", "must be an object or a boolean"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(refusal([](const std::string& s) { json_schema_language(Json::parse(s)); }, source),
                HasSubstr(message))
        << source;
  }
}

// A bomb of combinations, a chain of references, and deep nesting end soon, one way or the other.
TEST(JsonSchemaLanguageTest, BoundsWhatASchemaMayCost) {
  std::string all = "[", chain = "{\"$ref\":\"#/$defs/d0\",\"$defs\":{";
  for (int i = 0; i < 20; ++i)
    all += concat(i > 0 ? "," : "", R"({"anyOf":[{"minLength":)", i, R"(},{"maxLength":)", 99 + i, "}]}");
  EXPECT_THROW(json_schema_language(Json::parse("{\"allOf\":" + all + "]}")), ValueError);
  for (int i = 0; i < 2000; ++i) chain += concat("\"d", i, R"(":{"$ref":"#/$defs/d)", i + 1, "\"},");
  EXPECT_TRUE(accepts(json_schema_language(Json::parse(chain + "\"d2000\":{\"type\":\"null\"}}}")), "null"));
  std::string deep(100, '[');
  EXPECT_FALSE(accepts(json_schema_language(Json::object()), deep + std::string(100, ']')));
  EXPECT_TRUE(accepts(json_schema_language(Json::object()), deep.substr(50) + std::string(50, ']')));
}

TEST(WalkerTest, ForgetsAllButAState) {
  const LanguagePtr language = json_schema_language(Json::parse(
      R"({"type":"object","properties":{"a":{"type":"integer","minimum":3}},"minProperties":2})"));
  Walker walker(language);
  for (const std::string before : {"{\"a\": 1", "{\"b\":1,\"c", "{\"b\": [\"x", "{"}) {
    Walker other(language);
    const int32_t state = other.run(before, other.start());
    ASSERT_NE(state, Walker::kDead);
    const int32_t kept = other.keep(state);
    for (const std::string after :
         {"2}", "2,\"x\":1}", "\":1}", "\"]}", "\"], \"b\":1}", "\"],\"a\":4}", "}"}) {
      const int32_t whole = walker.run(before + after, walker.start()), rest = other.run(after, kept);
      EXPECT_EQ(whole == Walker::kDead ? false : walker.accepts(whole),
                rest == Walker::kDead ? false : other.accepts(rest))
          << before << after;
    }
  }
}

// Each text of a counted name is a state of its own: those of a vocabulary's plain tokens would be too many.
TEST(WalkerTest, ACountedNameMayGoOnWithAnyPlainToken) {
  for (const char* rest : {R"("minProperties":1)", R"("maxProperties":2,"properties":{"ab":{}})"}) {
    Walker walker(json_schema_language(Json::parse(concat("{\"type\":\"object\",", rest, "}"))));
    const int32_t name = walker.run("{\"a", walker.start());
    EXPECT_EQ(walker.plain_run(name), kAnyLength) << rest;
    for (const char* after : {"b", "b cd", "\": 1"})
      EXPECT_NE(walker.run(after, name), Walker::kDead) << after;
    EXPECT_EQ(walker.run("\": 1, \"a\"", name), Walker::kDead);
  }
}

TEST(JsonPartsLanguageTest, CallsInFreeTexts) {
  const Json schema =
      Json::parse(R"({"type":"object","properties":{"x":{"type":"integer"}},"additionalProperties":false})");
  const LanguagePtr language =
      json_parts_language({{{.literal = "\n"}, {.schema = &schema}, {.literal = "</c>"}}}, "<c>");
  EXPECT_TRUE(accepts(language, "so < that <c"));
  EXPECT_TRUE(accepts(language, "a<<c>\n{\"x\":1}</c> b<c>\n{}</c>"));
  EXPECT_FALSE(accepts(language, "<c>\n{\"x\":1}"));
  EXPECT_FALSE(accepts(language, "<c>\n{\"y\":1}</c>"));
}

}  // namespace
}  // namespace multihead::text::grammar
