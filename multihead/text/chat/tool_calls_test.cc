#include "multihead/text/chat/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <string>
#include <vector>

#include "multihead/core/error.h"

namespace multihead::text {
namespace {

// What the parser hears of a text that comes in pieces of so many bytes: content, and each call as NAME(ARGUMENTS).
std::string heard(ToolStyle style, bool in_call, const std::string& text, size_t piece,
                  bool only_one = false) {
  ToolCallParser parser(style, in_call, only_one);
  std::string content;
  std::vector<std::string> calls;
  const auto hear = [&](const std::vector<ToolCallParser::Event>& events) {
    for (const auto& event : events) {
      if (event.call < 0) {
        content += event.content;
      } else if (!event.name.empty()) {
        calls.push_back(event.name + "(");
      } else {
        calls.back() += event.arguments;
      }
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) hear(parser.add(text.substr(at, piece)));
  hear(parser.end());
  EXPECT_EQ(parser.calls(), std::ssize(calls));
  for (const std::string& call : calls) content += "|" + call + ")";
  return content;
}

TEST(ToolCallParserTest, SplitsTextAndCallsHoweverTheyCome) {
  const std::string a = R"({"name": "f", "arguments": {"x": "}]</tool_call>\""}})",
                    b = R"({"arguments":{},"name":"g"})";
  const std::string fa = R"(|f({"x": "}]</tool_call>\""}))", gb = "|g({})";
  struct Case {
    ToolStyle style;
    bool in_call;
    std::string text, heard;
  };
  const Case cases[] = {
      {ToolStyle::hermes, false, "just <tool text", "just <tool text"},
      {ToolStyle::hermes, false, "<tool_call>\n" + a + "\n</tool_call>", fa},
      {ToolStyle::hermes, false,
       "I see.\n<tool_call>\n" + a + "\n</tool_call>\n<tool_call>\n" + b + "\n</tool_call>",
       "I see." + fa + gb},
      {ToolStyle::hermes, true, a + "\n</tool_call>", fa},
      {ToolStyle::hermes, false, "<tool_call>\nnot so</tool_call>", "<tool_call>\nnot so</tool_call>"},
      {ToolStyle::hermes, false, "<tool_call>no</tool_call>\n<tool_call>" + a + "</tool_call>",
       "<tool_call>no</tool_call>" + fa},
      {ToolStyle::hermes, false, "<tool_call>\n{\"name\": \"f\", \"arg",
       "<tool_call>\n{\"name\": \"f\", \"arg"},
      {ToolStyle::hermes, false, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1", "|f({\"x\": 1)"},
      {ToolStyle::hermes, false, "<tool_call>\n{\"name\": \"\", \"arguments\": {}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"\", \"arguments\": {}}\n</tool_call>"},
      {ToolStyle::llama, false, R"({"name": "", "parameters": {}})", R"({"name": "", "parameters": {}})"},
      {ToolStyle::llama, false, R"({"name": "f", "parameters": {"x": 1}})", "|f({\"x\": 1})"},
      {ToolStyle::llama, false, "Hello {x}", "Hello {x}"},
      {ToolStyle::llama, false, R"({"city": "Rome"})", R"({"city": "Rome"})"},
      {ToolStyle::mistral, false, "[TOOL_CALLS][" + a + ", " + b + "]", fa + gb},
      {ToolStyle::mistral, false, "[TOOL", "[TOOL"},
      {ToolStyle::list, false, "<tool_call>[" + a + ",\n" + b + "]</tool_call>", fa + gb},
      {ToolStyle::list, true, "[" + b + "]</tool_call>", gb},
  };
  for (const Case& one : cases) {
    for (const size_t piece : {1, 3, 1000}) {
      EXPECT_EQ(heard(one.style, one.in_call, one.text, piece), one.heard) << one.text << " by " << piece;
      const std::string first = one.heard.substr(0, one.heard.find(gb, 1));
      EXPECT_EQ(heard(one.style, one.in_call, one.text, piece, true), first) << one.text << " by " << piece;
    }
  }
}

TEST(ToolCallsTest, KnowsStylesByTemplates) {
  EXPECT_EQ(tool_style("{{ messages }}"), ToolStyle::list);
  EXPECT_EQ(tool_style("{% if tools %}<tool_call>{% endif %}"), ToolStyle::hermes);
  EXPECT_EQ(tool_style("{% if tools %}[TOOL_CALLS]{% endif %}"), ToolStyle::mistral);
  EXPECT_EQ(tool_style("{% if tools %}ipython \"parameters\"{% endif %}"), ToolStyle::llama);
  EXPECT_EQ(tool_style("{% if tools %}<function={% endif %}"), std::nullopt);
}

TEST(ToolCallsTest, ArgumentsBecomeObjectsAndToolsAreTold) {
  const Json messages = Json::parse(R"([{"role":"user","content":"u"},{"role":"assistant","content":"",
      "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}])");
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"f"}}])");
  const Json hermes = tool_messages(ToolStyle::hermes, messages, tools);
  EXPECT_EQ(hermes.at(1).at("tool_calls").at(size_t{0}).at("function").at("arguments"),
            Json::parse(R"({"x":1})"));
  const Json list = tool_messages(ToolStyle::list, messages, tools);
  EXPECT_THAT(list.at(size_t{0}).at("content").as_string(), ::testing::HasSubstr(tools.dump()));
  EXPECT_EQ(list.at(2).at("content").as_string(),
            R"(<tool_call>[{"name":"f","arguments":{"x":1}}]</tool_call>)");
}

TEST(ToolCallsTest, AnswersAreHeldToCalls) {
  const std::vector<Json> functions = {
      Json::parse(
          R"({"name":"f","parameters":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}})"),
      Json::parse(R"({"name":"g"})")};
  struct Case {
    ToolStyle style;
    std::string yes, no;
  };
  const Case cases[] = {
      {ToolStyle::hermes, "{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
       "{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"},
      {ToolStyle::llama, R"({"name": "g", "parameters": {}})", R"({"name": "h", "parameters": {}})"},
      {ToolStyle::mistral, R"([{"name": "g", "arguments": {}}])", R"({"name": "g", "arguments": {}})"},
      {ToolStyle::list, R"([{"name": "f", "arguments": {"x":2}}]</tool_call>)", "no"},
  };
  for (const Case& one : cases) {
    grammar::Walker walker(call_language(one.style, functions));
    const int32_t yes = walker.run(one.yes, walker.start()), no = walker.run(one.no, walker.start());
    EXPECT_TRUE(yes != grammar::Walker::kDead && walker.accepts(yes)) << one.yes;
    EXPECT_FALSE(no != grammar::Walker::kDead && walker.accepts(no)) << one.no;
    EXPECT_EQ(heard(one.style, true, one.yes, 1).front(), '|');
  }
  EXPECT_THROW(text_or_call_language(ToolStyle::llama, functions), ValueError);
  const Json schema = Json::parse(R"({"type":"array","items":{"type":"integer"}})");
  EXPECT_THROW(value_or_call_language(ToolStyle::mistral, functions, schema), ValueError);
  for (const auto& [style, call] : std::map<ToolStyle, std::string>{
           {ToolStyle::hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":2}}\n</tool_call>"},
           {ToolStyle::llama, R"({"name": "f", "parameters": {"x":2}})"},
           {ToolStyle::list, R"(<tool_call>[{"name": "f", "arguments": {"x":2}}]</tool_call>)"}}) {
    grammar::Walker walker(value_or_call_language(style, functions, schema));
    const auto accepts = [&](const std::string& text) {
      const int32_t state = walker.run(text, walker.start());
      return state != grammar::Walker::kDead && walker.accepts(state);
    };
    EXPECT_TRUE(accepts("[1, 2]"));
    EXPECT_FALSE(accepts("[1, 2] or"));
    EXPECT_TRUE(accepts(call)) << call;
  }
}

}  // namespace
}  // namespace multihead::text
