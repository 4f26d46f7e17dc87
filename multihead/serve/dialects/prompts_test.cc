// Chats have the prompts that transformers makes of the same messages and tools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/serve/test_models-inl.h"

namespace multihead::serve {
namespace {

constexpr const char* kTexts = "{% for m in messages %}{{ m.role }}: {{ m.content|trim }}\n{% endfor %}";
constexpr const char* kTools =
    "{% if tools %}<tool_call>{% for t in tools %}{{ t|tojson }}{% endfor %}{% endif %}";
constexpr const char* kParts =
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text|trim }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}\n{% "
    "endfor %}";

text::Tokenizer with_template(const std::string& chat_template) {
  const text::Tokenizer plain = test_tokenizer();
  Json config = Json::parse(plain.config_json());
  config["chat_template"] = chat_template;
  return text::Tokenizer::from_contents(plain.to_json(), config.dump());
}

class PromptsTest : public ::testing::Test {
 protected:
  explicit PromptsTest(const std::string& chat_template = concat(kTools, kParts))
      : tokenizer_(with_template(chat_template)) {
    models::LanguageModelConfig c;
    c.vocab_size = 262, c.context = 1024, c.num_layers = 1, c.num_heads = 2, c.embed_dim = 16;
    c.init_std = 0.3;
    Rng rng(3);
    std::vector<Model> models;
    models.push_back({.name = "lm", .any = Writer{{models::LanguageModel(c, rng), tokenizer_}, {}}});
    service_ = std::make_unique<Service>(std::move(models), ServiceOptions{});
  }

  // The chat's answer is that to the template's text of what is expected.
  void expect_prompt(const char* messages, const char* expected, const char* tools = "[]",
                     const char* expected_tools = "[]") {
    const Json own = Json::parse(tools);
    Json variables = Json::object(),
         chat = Json::object({{"model", "lm"}, {"temperature", 0}, {"max_tokens", 4}});
    chat["messages"] = Json::parse(messages);
    if (own.size() > 0) variables["tools"] = Json::parse(expected_tools), chat["tools"] = own;
    const Answer said = ask(*service_, kChat, chat.dump());
    ASSERT_EQ(said.status, 200) << said.body;
    const std::string prompt = tokenizer_.apply_chat_template(Json::parse(expected), true, variables);
    Json ids = Json::array();
    for (const int32_t id : tokenizer_.encode(prompt, {.parse_special = true, .add_template = false}))
      ids.push_back(id);
    const Json written =
        ask(*service_, kCompletions,
            Json::object({{"model", "lm"}, {"temperature", 0}, {"max_tokens", 4}, {"prompt", ids}}).dump())
            .json();
    EXPECT_EQ(said.json().at("usage").at("prompt_tokens"), written.at("usage").at("prompt_tokens")) << prompt;
    EXPECT_EQ(said.json().at("choices").at(size_t{0}).at("message").at("content"),
              written.at("choices").at(size_t{0}).at("text"))
        << prompt;
  }

  text::Tokenizer tokenizer_;
  std::unique_ptr<Service> service_;
};
class TextPromptsTest : public PromptsTest {
 protected:
  TextPromptsTest() : PromptsTest(kTexts) {}
};

class PartsPromptsTest : public PromptsTest {
 protected:
  PartsPromptsTest() : PromptsTest(kParts) {}
};

constexpr const char* kUser = R"([{"role":"user","content":"a"}])";

TEST_F(PromptsTest, ToolsAreWrittenAsTheyCame) {
  for (const char* tools :
       {R"([{"type":"function","function":{"name":"f","description":"","parameters":{}}}])",
        R"([{"type":"function","function":{"parameters":{"type":"object"},"strict":false,"name":"f"}}])",
        R"([{"function":{"name":"f","description":null,"parameters":{}},"type":"function"}])"})
    expect_prompt(kUser, kUser, tools, tools);
  expect_prompt(
      kUser, kUser, R"([{"type":"function","function":{"name":"f","parameters":null}}])",
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}])");
}

constexpr const char* kTwoParts =
    R"([{"role":"user","content":[{"type":"text","text":" a "},{"type":"text","text":"b"}]}])";

TEST_F(PromptsTest, ATemplateThatReadsPartsGetsThem) { expect_prompt(kTwoParts, kTwoParts); }
TEST_F(PartsPromptsTest, OneWithoutToolsToo) { expect_prompt(kTwoParts, kTwoParts); }

TEST_F(TextPromptsTest, AnotherGetsTheTextsInARow) {
  expect_prompt(kTwoParts, R"([{"role":"user","content":" a b"}])");
}

// Templates that would lose the text, fail for a system's parts, or print the list.
class OddPromptsTest : public PromptsTest, public ::testing::WithParamInterface<const char*> {
 protected:
  OddPromptsTest() : PromptsTest(GetParam()) {}
};
TEST_P(OddPromptsTest, GetTexts) {
  expect_prompt(
      R"([{"role":"system","content":[{"type":"text","text":"s"}]},{"role":"user","content":[{"type":"text","text":"u"}]}])",
      R"([{"role":"system","content":"s"},{"role":"user","content":"u"}])");
}
INSTANTIATE_TEST_SUITE_P(
    , OddPromptsTest,
    ::testing::Values(
        "A word. {% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'system' %}{{ 'S ' + m.content }}{% elif m.content is string "
        "%}"
        "{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}{% endfor %}",
        "{% for m in messages %}{{ m.content|tojson }}{% endfor %}"));

TEST_F(PromptsTest, ACallWithoutArgumentsHasNone) {
  expect_prompt(
      R"([{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":""}}]}])",
      R"([{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}]}])");
}

}  // namespace
}  // namespace multihead::serve
