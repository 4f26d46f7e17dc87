#include "multihead/text/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/testing/comma_locale.h"
#include "multihead/testing/processor_time.h"

namespace multihead::text {
namespace {

const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", " Hi "}, {"assistant", "Hello"}, {"user", "é?"}};

std::string render(const std::string& source, const std::vector<ChatMessage>& messages = kTalk,
                   bool generation = true) {
  return ChatTemplate(source).render(messages, generation,
                                     {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", ""}});
}

template <class Error>
std::string error_in(const std::string& source) {
  try {
    return "no error, but " + render(source);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ChatTemplate, RendersWhatModelsUse) {
  const std::string source = R"({{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{% for m in rest %}
  {% if m.role == 'user' %}
[{{ m.content | trim }}{{ ' (' ~ system ~ ')' if loop.last and system is defined }}]
  {% else %}
{{ m.content + eos_token }}
  {% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '>\n' }}{% endif %}
)";
  // transformers 5.23 gives the same.
  EXPECT_EQ(render(source), "<s>[Hi]\nHello</s>\n[é? (Be brief.)]\n>\n");
  EXPECT_EQ(render("{{ messages | length }}{{ pad_token }}{{ tools }}{{ messages[-1].content[0] }}"),
            "4Noneé");
}

TEST(ChatTemplate, NumbersHaveAPointInEveryLocale) {
  const testing::CommaLocale comma;
  if (!comma) GTEST_SKIP() << "no locale with a decimal comma here: it needs the package locales";
  EXPECT_EQ(render("{{ 0.5 > 0.25 }} {{ 2.75 }} {{ '%.2f' % 1.5 }} {{ '%d' % 3 }} {{ 2.345 | round(1) }}"),
            "True 2.75 1.50 3 2.3");
}

// As Jinja: a text has no such member, and that is no error (Mistral's templates ask for content.content).
TEST(ChatTemplate, PlainValuesHaveNoMembers) {
  EXPECT_EQ(
      render("{{ 'a'.content is defined }}[{{ 'a'.content }}]{{ [1].x is defined }}{{ (3).x is defined }}"),
      "False[]FalseFalse");
  EXPECT_THAT(error_in<FormatError>("{{ 'a'.upper }}"),
              ::testing::HasSubstr("\"upper\" of a string is not supported"));
  EXPECT_THAT(error_in<FormatError>("{{ 'a'.content.more }}"),
              ::testing::HasSubstr("because it is undefined"));
}

TEST(ChatTemplate, SlicesOfTuplesAreTuples) {
  EXPECT_EQ(render("{{ (1, 2)[:-1] }}{{ (1, 2)[::-1] }}{{ [1, 2][::-1] }}"), "(1,)(2, 1)[2, 1]");
  EXPECT_EQ(render("{{ (1, 2) + (3,) }}{{ [1] + [2] }}"), "(1, 2, 3)[1, 2]");
  EXPECT_THAT(error_in<FormatError>("{{ (1, 2) + [3] }}"), ::testing::HasSubstr("\"+\" of"));
}

TEST(ChatTemplate, WhiteSpaceControl) {
  EXPECT_EQ(render("a\n  {% if true %}\n b\n  {% endif %}\nc\n"), "a\n b\nc");
  EXPECT_EQ(render("a\n  {%+ if true +%}\n b {%- endif -%} \n c\r\n"), "a\n  \n bc");
  EXPECT_EQ(render("a {#- x -#} b {# y #}\nc\n  {{- 1 -}}  \n d"), "ab c1d");
  EXPECT_EQ(render("x\n\n"), "x\n");
}

TEST(ChatTemplate, WhatItCannotDoIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% include 'x' %}", "line 2: {% \"include\" %} is not supported"},
      {"{{ 'a'|nl2br }}", "line 1: the filter \"nl2br\" is not supported"},
      {"{{ 1 is prime }}", "the test \"prime\""},
      {"\n\n{{ 'a'.swapcase() }}", "line 3: the method \"swapcase\" of a string is not supported"},
      {"{{ 1.5 // 0 }}", "\"//\" of these numbers has no result"},
      {"{{ '%#x' | format(1) }}", "the format \"%#x\" is not supported"},
      {"{{ '%d' | format('1') }}", "the format \"%d\" is not supported"},
      {"{{ nope | int }}", "\"int\" of an undefined value"},
      {"{{ nope | float }}", "\"float\" of an undefined value"},
      {"{{ 1 | indent }}", "\"indent\" of an integer"},
      {"{{ ['a', 1] | sort }}", "\"<\" of"},
      {"{{ {'a': 1, 2: 3} | tojson(sort_keys=true) }}", "cannot sort strings and integers"},
      {"{{ 'a' | trim(chars='a', charz='b') }}", "\"trim\" of a string with these arguments"},
      {"{{ 'a'.strip(chars='a') }}", "\"strip\" of a string with these arguments"},
      {"{{ [1] | map('nope') }}", "the filter \"nope\" is not supported"},
      {"{{ 1.5 | round(-1) }}", "\"round\" of a number with these arguments"},
      {"{% raw %}{{ x }}", "expected {% endraw %}"},
      {"{% call f() %}{% endcall %}", "{% \"call\" %} is not supported"},
      {"{{ 'É'|lower }}", "non-ASCII letters"},
      {"{{ none_such.role }}", "because it is undefined"},
      {"{{ none_such + 'x' }}", "\"+\" of undefined and a string"},
      {"{{ lookup() }}", "the function \"lookup\""},
      {"{{ messages.append(1) }}", "method \"append\" of a list"},
      {"{{ 2 ** 3 }}", "\"**\""},
      {"{{ loop.cycle }}", "undefined"},
      {"{% for m in messages %}{{ loop.depth }}{% endfor %}", "loop.depth"},
      {"{% for m in messages recursive %}{% endfor %}", "recursive"},
      {"{{ strftime_now('%Z') }}", "strftime_now"},
      {"{{ messages[0] | tojson(separators=1) }}", "\"tojson\" of a dictionary with these arguments"},
      {"{{ 'x", "unterminated string"},
      {"{# x", "unterminated comment"},
      {"{% if x %}", "expected {% endif %}"},
      {"{{ }}", "expected an expression"},
      {"{% endfor %}", "\"endfor\""},
      {"{{ 9223372036854775807 }}", "number"},
      {"{{ 999999999999999999 * 999999999999999999 }}", "no result"},
      {"{{ 1 // 0 }}", "no result"},
      {"{{ messages[::0] }}", "step"},
      {"{{ messages | map(attribute='role') }}", "an iterator as text"},
      {"{{ messages | map(attribute='role') | tojson }}", "tojson of an iterator"},
      {"{{ messages | map(attribute='role') | length }}", "\"length\" of an iterator"},
      {"{{ (messages | map(attribute='role'))[1:] }}", "a slice of an iterator"},
      {"{{ messages | map(attribute='role') | last }}", "\"last\" of an iterator"},
      {"{% set m = messages | map(attribute='role') %}{% for r in m %}{% break %}{% endfor %}{{ m | list }}",
       "after a break"},
      {"{% set m = messages | map(attribute='role') %}{% for r in m %}{{ m | list }}{% endfor %}",
       "inside of a loop"},
      {"{{ messages[0].keys() | tojson }}", "tojson of a dictionary's view"},
      {"{{ messages[0].items() }}", "a dictionary's view as text"},
      {"{{ messages[0].keys() + [1] }}", "\"+\" of a dictionary's view and a list"},
      {"{{ range(3) }}", "a range as text"},
      {"{{ range(3) | tojson }}", "tojson of a range"},
      {"{{ messages[0].keys() == messages[0].keys() }}", "comparing a dictionary's view"},
      {"{{ (10000000000.0 * 1000000000) | int }}", "\"int\" of a number"},
      {"{{ {true: 1} }}", "truth"},
      {"{% with x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% endwith %}", "a macro inside"},
      {"{% macro m() %}{{ varargs }}{% endmacro %}{{ m() }}", "\"varargs\" is not supported"},
  };
  for (const auto& [source, expected] : cases) {
    const std::string error = error_in<FormatError>(source);
    EXPECT_NE(error.find(expected), std::string::npos) << source << " -> " << error;
  }
  EXPECT_EQ(error_in<ValueError>("{{ raise_exception('No ' + messages[0].role) }}"),
            "chat template: No system");
}

TEST(ChatTemplate, HostileOnesEnd) {
  const auto repeat = [](const std::string& text, size_t times) {
    std::string all;
    for (size_t i = 0; i < times / (testing::kSanitized ? 8 : 1); ++i) all += text;
    return all;
  };
  const auto around = [&](const std::string& begin, const std::string& end) {
    return repeat(begin, 20000) + "1" + repeat(end, 20000);
  };
  const std::string sources[] = {
      "{{ " + around("(", ")") + " }}",
      "{{ " + around("[", "]") + " }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ 1" + repeat("+1", 200000) + " }}",
      "{{ a" + repeat(".a", 200000) + " }}",
      "{{ 'a'" + repeat("|trim", 100000) + " }}",
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ 1" + repeat(" if 1", 100000) + " }}",
      repeat("{% if 1 %}", 50000),
      repeat("{% for a in [1] %}", 50000),
      "{% if 0 %}" + repeat("{% elif 0 %}", 50000) + "{% endif %}",
      "{% for a in range(100000000) %}{% endfor %}",
      "{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor "
      "%}",
      "{% set ns = namespace(x=[]) %}{% for a in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x|tojson }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ 'a' * 9000000000000000000 }}",
      "{{ '' * 900000000000000000 }}{{ namespace() }}",
      "{{ ('ab' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 1000000).split('a') | length }}{{ messages }}",
      "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor "
      "%}{% endfor %}",
      "{% for a in range(10000) %}{{ ('a' * 1000000) is in ('a' * 2000000) }}{% endfor %}",
      std::string(2 << 20, 'x'),
  };
  for (const std::string& source : sources) {
    const double seconds = testing::processor_seconds(
        [&] { EXPECT_THROW(render(source), FormatError) << source.substr(0, 60); });
    EXPECT_LT(seconds, 10 * testing::kSlowdown) << source.substr(0, 60);
  }
}

std::string render_json(const std::string& source, const char* messages, const char* variables = "{}") {
  return ChatTemplate(source).render(Json::parse(messages), true, Json::parse(variables));
}

// The results of jinja2 3.1, as transformers sets it up.
TEST(ChatTemplate, TuplesIntegersAndFormats) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% set a, b = 1, 'x' %}{{ a }}{{ b }}", "1x"},
      {"{% set t = (1, 2, 'z') %}{{ t[2] }}{{ t | length }}{{ 2 in t }}", "z3True"},
      {"{{ () | length }}{{ (3,) | first }}{{ (1, 2) == [1, 2] }}{{ (1, 2) == (1, 2) }}", "03FalseTrue"},
      {"{% for a, b in [(1, 2), (3, 4)] %}{{ a * b }},{% endfor %}", "2,12,"},
      {"{% for (k, v) in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "x1"},
      {"{% for x in 'a', 'b' %}{{ x }}{% endfor %}", "ab"},
      {"{% for i in range(5, 0, -2) %}{{ i }}{% endfor %}", "531"},
      {"{% for i in range(1, 8, 3) %}{{ i }}{% endfor %}", "147"},
      {"{{ '12' | int + 1 }}{{ ' -3 ' | int }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ 2.9 | int }}{{ true | int "
       "}}",
       "13-30721"},
      {"{{ '%s has %d%%' | format('x', 5) }}{{ '%s' % 'y' }}{{ '%s-%s' % (1, none) }}", "x has 5%y1-None"},
      {"{% set d = {1: 'one', 'two': 2} %}{{ d[1] }}{{ d['two'] }}{{ 1 in d }}{{ '1' in d }}{{ d.get(1) }}"
       "{% for k in d %}{{ k }}{% endfor %}{{ d | tojson }}",
       "one2TrueFalseone1two{\"1\": \"one\", \"two\": 2}"},
      {"{{ 1.5 }}{{ 2.0 * 3 }}{{ 0.1 + 0.2 }}", "1.56.00.30000000000000004"},
      {"{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}",
       "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
      {"{% for v in {'a': 1, 'b': 2}.values() %}{{ v }}{% endfor %}", "12"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(render(source), expected) << source;
  EXPECT_EQ(render(R"({{ [1, 'a', "it's", none, true, 1.0, (2,), {'k': [], 3: '\\\"\n\u00e9\u200b'}] }})"),
            "[1, 'a', \"it's\", None, True, 1.0, (2,), {'k': [], 3: '\\\\\"\\n\xC3\xA9\\u200b'}]");
  EXPECT_EQ(render("{% for k, v in {'b': 1, 'A': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}{{ 'x'|safe }}"),
            "A2b1x");
  EXPECT_EQ(error_in<FormatError>("{% for i in range(1, 2, 0) %}{% endfor %}"),
            "chat template, line 1: range: the step must not be 0");
}

// The results of jinja2 3.1, as transformers sets it up.
TEST(ChatTemplate, FiltersTestsAndMethods) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({{ "a\n\nb\r\nc" | indent }}|{{ "a\nb" | indent(2, true) }}|{{ "a\n\nb" | indent(width=3, blank=true) }}|{{ "a\nb" | indent("> ", first=true) }}|{{ "a\n" | indent }})",
       R"(a

    b
    c|  a
  b|a
   
   b|> a
> b|a
)"},
      {R"({{ ["b", "A", "c"] | sort | join }}{{ ["b", "A", "a"] | sort(case_sensitive=true) | join }}{{ [3, 1.5, 2] | sort(reverse=true) | list }})",
       R"(AbcAab[3, 2, 1.5])"},
      {R"({{ [{"k": "x", "n": 2}, {"k": "y", "n": 1}] | sort(attribute="n") | map(attribute="k") | join(",") }})",
       R"(y,x)"},
      {R"({{ ["a", "A", "b", 1, 1.0, true] | unique | list }}{{ "abca" | unique | join }})",
       R"(['a', 'b', 1]abc)"},
      {R"({{ [1, 2] | reverse | list }}{{ "aé" | reverse }})", R"([2, 1]éa)"},
      {R"({{ [" a ", "b"] | map("trim") | join("-") }}{{ ["a"] | map("replace", "a", "c") | first }})",
       R"(a-bc)"},
      {R"({{ [{"f": {"n": 1}}, {"f": {}}] | map(attribute="f.n", default="-") | join("|") }})", R"(1|-)"},
      {R"({{ [0, 1, none, "", "a"] | select | list }}{{ [0, 1, 2, 3] | select("odd") | list }}{{ [1, 2, 3] | reject("gt", 1) | list }})",
       R"([1, 'a'][1, 3][1])"},
      {R"({{ [{"f": {"n": 1}}, {"f": {"n": 2}}] | selectattr("f.n", ">=", 2) | list | length }})", R"(1)"},
      {R"({{ 2.5 | round }}{{ 3.5 | round }}{{ 2.675 | round(2) }}{{ 7 | round }}{{ 2.1 | round(0, "ceil") }}{{ 2.19 | round(1, "floor") }}{{ -3 | abs }}{{ (-2.5) | abs }}{{ "1e3" | float }}{{ "x" | float }})",
       R"(2.04.02.6773.02.132.51000.00.0)"},
      {R"({{ {"b": 1, "a": [1, "é"]} | tojson(sort_keys=true) }}{{ {"a": ["é😀", 1]} | tojson(ensure_ascii=true, separators=(",", ":")) }}{{ [1, {}] | tojson(indent=0) }})",
       R"({"a": [1, "é"], "b": 1}{"a":["\u00e9\ud83d\ude00",1]}[
1,
{}
])"},
      {R"({{ "%.2f" | format(2.675) }}{{ "%5d|%-5s|%05.1f|%r" % (42, "ab", 3.14159, "x") }}{{ "%+d" % 3 }}{{ "%.2s" % "abc" }}{{ "%e" % 12345.678 }}{{ "%g" % 0.0001 }})",
       R"(2.67   42|ab   |003.1|'x'+3ab1.234568e+040.0001)"},
      {R"({{ "abcabc".find("c") }}{{ "abcabc".rfind("c") }}{{ "éa".find("a") }}{{ "aaa".count("a") }}{{ "abc".removeprefix("a") }}{{ "abc".removesuffix("c") }}{{ "a\nb\r\n".splitlines() }})",
       R"(2513bcab['a', 'b'])"},
      {R"({{ "a,b,c".rsplit(",", 1) }}{{ " a  b c ".split(none, 1) }}{{ "a-b-c".split("-", maxsplit=1) }}{{ "12".isdigit() }}{{ "a1".isalnum() }}{{ "aB".isupper() }}{{ " ".isspace() }}{{ "".isalpha() }})",
       R"(['a,b', 'c']['a', 'b c ']['a', 'b-c']TrueTrueFalseTrueFalse)"},
      {R"({{ "hello wORLD-foo (bar" | title }}|{{ "hello wORLD's" .title() }})",
       R"(Hello World-Foo (Bar|Hello World'S)"},
      {R"({{ "ab".startswith(("x", "a")) }}{{ "aaa" | replace("a", "b", 2) }}{{ "aaa".replace("a", "b", 1) }})",
       R"(Truebbabaa)"},
      {R"({{ [{"n": 1}, {"n": 2}] | join("+", attribute="n") }}{{ {"b": 1, "a": 2} | dictsort(by="value") }}{{ {"b": 1, "a": 2} | dictsort(reverse=true) }})",
       R"(1+2[('b', 1), ('a', 2)][('b', 1), ('a', 2)])"},
      {R"(a {% raw %}{{ x }} {% if %}{% endraw %}
b {%- raw -%}  {{ y }}
  {% endraw -%}
  c)",
       R"(a {{ x }} {% if %}b{{ y }}
c)"},
      {R"({% filter upper | trim %} ab {{ 1 }} {% endfilter %}{% set x | trim | upper %}  a b  {% endset %}[{{ x }}])",
       R"(AB 1[A B])"},
      {R"({% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }})", R"(3False)"},
      {R"({{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 1 < 2 == 2 }}{{ 1 in [1] in [[1]] }})", R"(TrueFalseTrueTrue)"},
      {R"({{ {"a": 1, "a": 2} | tojson }}{{ {"a": 1, "a": 2} | length }}{{ 3 is gt 2 }}{{ 3 is le(2) }}{{ dict(a=1, b="x") | tojson }})",
       R"({"a": 2}1TrueFalse{"a": 1, "b": "x"})"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(render(source), expected) << source;
  EXPECT_EQ(render("{{ [nope, {'a': nope}] }}"), "[Undefined, {'a': Undefined}]");
  EXPECT_EQ(
      render("{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7 % 2.5 }} {{ -7 % 2.5 }} {{ 1 / 0.5 }} {{ 6 % -4.0 }}"),
      "3.0 -4.0 2.0 0.5 2.0 -2.0");
}

// As Jinja: what filters yield is true, has no items by number and is gone through once.
// As Jinja has it: what ends every turn early is as good as no turn.
TEST(ChatTemplate, ElseOfALoopComesUnlessATurnEnds) {
  EXPECT_EQ(render("{% for i in [1, 2] %}{{ i }}{% break %}{% else %}E{% endfor %}"), "1E");
  EXPECT_EQ(render("{% for i in [1, 2] %}{{ i }}{% continue %}{% else %}E{% endfor %}"), "12E");
  EXPECT_EQ(
      render("{% for i in [1, 2] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}"),
      "12");
  EXPECT_EQ(render("{% for i in [1] %}{% filter upper %}a{% break %}{% endfilter %}{% endfor %}b"), "b");
}

TEST(ChatTemplate, IteratorsAndViews) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 'y' if messages | selectattr('role', 'eq', 'none such') }}", "y"},
      {"{{ 'y' if messages | selectattr('role', 'eq', 'none such') | list }}", ""},
      {"{% set u = messages | selectattr('role', 'eq', 'user') %}{% for m in u %}a{% endfor %}"
       "{% for m in u %}b{% endfor %}",
       "aa"},
      {"{{ (messages | map(attribute='role'))[0] }}{{ messages | map(attribute='role') | first }}", "system"},
      {"{{ messages[0].keys()[0] }}{{ messages[0].keys() | list }}", "['role', 'content']"},
      {"{{ messages[0].items() | length }}{{ 'role' in messages[0].keys() }}", "2True"},
      {"{% set m = messages | map(attribute='role') %}{{ m | first }}{{ 'user' in m }}{{ m | join(',') }}",
       "systemTrueassistant,user"},
      {"{% set m = messages | map(attribute='role') %}{{ ','.join(m) }}|{{ ','.join(m) }}|{{ 'x' in m }}",
       "system,user,assistant,user||False"},
      {"{% set m = messages | map(attribute='role') %}{% for a in m %}{{ loop.length }}{% endfor %}{{ m | "
       "list }}",
       "4444[]"},
      {"{{ true in {'a': 1} }}{{ {1: 'x'}[true] }}{{ kwargs is defined }}{{ range(2) == range(2) }}",
       "FalsexFalseTrue"},
      {"{{ range(3) == [0, 1, 2] }}{{ range(3)[1] }}{{ range(3) | list }}", "False1[0, 1, 2]"},
      {"{{ [1, 2] | reverse is sequence }}{{ [1, 2] | reverse is iterable }}{{ range(2) is sequence }}",
       "FalseTrueTrue"},
      {"{{ 'user' in messages | map(attribute='role') }}{{ [3, 1] | reverse | reverse }}", "True[3, 1]"},
      {"{{ -0.0 }} {{ (9100000000.0 * 1000000000) | int }} {{ ['\x7f'] | tojson(ensure_ascii=true) }}",
       "-0.0 9100000000000000000 [\"\\u007f\"]"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(render(source), expected) << source;
}

TEST(ChatTemplate, ThoughtsHaveAllTheirNames) {
  const std::string source =
      "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }}]{% endfor %}";
  EXPECT_EQ(render_json(source, R"([{"role": "user"}, {"role": "a", "reasoning": "r"},
      {"role": "a", "reasoning_content": "c", "thinking": "t"}, {"role": "a", "thinking": "t", "reasoning": null}])"),
            "[||][r|r|r][c|t|][t|t|]");
  EXPECT_EQ(render_json("{{ messages }}", R"([{"role": "a", "reasoning": "r"}])"),
            "[{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}]");
  EXPECT_THROW(render_json("x", R"([{"role": "user", "\u0000x": 1}])"), FormatError);
}

TEST(ChatTemplate, MessagesAndVariablesOfAnyKind) {
  const char* const talk = R"([{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}])";
  EXPECT_EQ(render_json("{{ messages[0].content[0].text }}{{ messages[1].content }}"
                        "{{ messages[1].tool_calls[0].function.arguments | tojson }}",
                        talk),
            "Hi{\"a\": 1.5}");
  const std::string thinks =
      "{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}";
  EXPECT_EQ(render_json(thinks, talk), "on");
  EXPECT_EQ(render_json(thinks, talk, R"({"enable_thinking": false})"), "off");
  EXPECT_EQ(render_json("{{ tools[0].name }}{{ documents }}", talk, R"({"tools": [{"name": "f"}]})"),
            "fNone");
  EXPECT_THROW(render_json("x", R"(["user"])"), ValueError);
  EXPECT_THROW(render_json("x", "{}"), ValueError);
  EXPECT_THROW(render_json("x", talk, R"({"messages": []})"), ValueError);
}

// As Python has them: hashes are often such.
TEST(ChatTemplate, IntegersBeyond64BitsKeepTheirDigits) {
  const char* const ids = R"({"a": 9223372036854775808, "b": -100000000000000000000, "c": 1e20})";
  EXPECT_EQ(
      render_json("{{ a }} {{ b|tojson }} {{ [a] }} {{ a|string }} {{ c }} {{ a is integer }}", "[]", ids),
      "9223372036854775808 -100000000000000000000 [9223372036854775808] 9223372036854775808 1e+20 True");
  EXPECT_EQ(render_json("{{ a == a }}{{ a == b }}{{ a == 1 }}{% if a %}yes{% endif %}", "[]", ids),
            "TrueFalseFalseyes");
  for (const char* source :
       {"{{ a + 1 }}", "{{ a > 1 }}", "{{ a is odd }}", "{{ a == c }}", "{{ -a }}", "{{ [a, 1]|sort }}"})
    EXPECT_THROW(render_json(source, "[]", ids), FormatError) << source;
}

TEST(ChatTemplate, ManyArgumentsAndLongNeedlesCostWhatTheyTake) {
  std::string parameters, arguments;
  for (int i = 0; i < 40000; ++i) {
    parameters += concat(i > 0 ? "," : "", "p", i);
    arguments += concat(i > 0 ? "," : "", "p", 39999 - i, "=", i % 10);
  }
  const double seconds = testing::processor_seconds([&] {
    EXPECT_EQ(render("{% macro f(" + parameters + ") %}{{ p0 }}{{ p39999 }}{% endmacro %}{{ f(" + arguments +
                     ") }}"),
              "90");
    EXPECT_EQ(render("{% set a = 'a' * 2000000 %}{{ ('a' * 60 + 'b') in a }}{{ ('a' * 1000 + 'b') in a }}"),
              "FalseFalse");
    EXPECT_THAT(error_in<FormatError>("{% set a = 'a' * 2000000 %}{% for i in range(1000) %}"
                                      "{% if ('a' * 60 + 'b') in a %}{% endif %}{% endfor %}"),
                ::testing::HasSubstr("takes too much time"));
  });
  EXPECT_LT(seconds, 5 * testing::kSlowdown);
}

}  // namespace
}  // namespace multihead::text
