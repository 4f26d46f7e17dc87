"""Chat templates beside jinja2, set up as transformers does."""

import json
import random

import pytest

import multihead as mh

# In the manner of published models, without their texts.
TEMPLATES = {
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
Be helpful.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "brackets": """{%- if messages[0].role == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, ...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] <<SYS>>\\n" + system_message + "\\n<</SYS>>\\n\\n" + message["content"].strip() + " [/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"].strip() + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " ~ message["content"] | trim ~ " " ~ eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant, got " + message.role) }}
    {%- endif %}
{%- endfor %}
""",
    "headers": """{% set loop_messages = messages %}
{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{ content -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
""",
    "turns": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Alternate!') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}
""",
    "bars": """{% for message in messages %}
{% if message['role'] in ['user', 'system'] %}
{{ '<|' ~ message.role ~ '|>\n' ~ message.content ~ '<|end|>' }}
{% elif message['role'] == 'assistant' and not loop.last %}
<|assistant|>
{{ message['content'] }}<|end|>{#- a remark -#}

{% else %}{{ message.content|upper if message.content == 'x' else message.content|length }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>
{% else %}{{ eos_token }}{% endif %}
""",
    "thinking": """{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<a>\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<a>' + content }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- raise_exception('tools') }}
    {%- else %}
        {{- '<' + message.role[0] + '>' + content + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{- '<a>' }}{%- if enable_thinking is defined and enable_thinking is false %}{{ 'no' }}{% endif %}{%- endif %}
""",
    "macros": """{%- macro turn(role, text, end='</t>') -%}
<t {{ role }}>{{ text|trim }}{{ end }}
{%- endmacro -%}
{% for role, text in [['a', 'b'], ['c', ' d ']] %}{{ turn(role, text) }}{% endfor %}
{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ turn(m.role|capitalize, m['content'], end='!') }}
{% else %}nothing{% endfor %}
{% set all %}{{ messages | map(attribute='role') | join(', ') }}{% endset %}({{ all }})
{%+ if messages|selectattr('role', 'equalto', 'user')|list|length > 1 +%}
many{% endif %}
{{ messages[-1].content | tojson }} {{ messages[0] | tojson }}
{{ 'a' if none_such else 'b' }}{{ none_such }}{{ none }}{{ true }}{{ 7 // 2 - 3 * -2 }}{{ -7 % 3 }}{{ 'ab' * 2 }}
{{ messages[-1].content[1:3] }}{{ messages[-1].content[::-1] }}{{ messages[-1].content.split() | join('|') }}
{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{{ loop.previtem.role if loop.previtem is defined }}{% endfor %}
{{ messages[9] is defined }}{{ messages[0].role|default('x') }}{{ nothing|default('y') }}{{ ''|default('z', true) }}
{%- for c in messages[0].role if c not in 'aeiou' %}{{ c }}{% endfor %}
{% for key, value in messages[0].items() %}{{ key }}={{ value|length }}{{ ',' if not loop.last }}{% endfor %}
{% generation %}{{ messages[0].get('role') }}{{ messages[0].get('x', 'none') }}{% endgeneration %}

""",
}  # fmt: skip

WORDS = ["", " ", "Hi", " two words ", "\n", "x", "é日本", "\u00a0", "\u3000end", "<think>", "</think>", "\n\nso", "<tool>", "</tool>",
         "'", '"q"', "\\n", "{{ x }}", "{% if %}", "\t", "\x1c", "<|im_end|>", "\r\n", "\u2028", "\x7f\x01", "a b  c"]  # fmt: skip


def conversations(count, seed):
    rng = random.Random(seed)
    for i in range(count):
        messages = [{"role": "system", "content": "".join(rng.choices(WORDS, k=2))}] if rng.random() < 0.4 else []
        for turn in range(rng.randint(0 if messages else 1, 6)):
            role = ["user", "assistant"][turn % 2]
            if rng.random() < 0.03:
                role = rng.choice(["user", "assistant", "system", "tool"])
            messages.append({"role": role, "content": "".join(rng.choices(WORDS, k=rng.randint(0, 5)))})
        yield messages, i % 2 == 0


def environment():
    sandbox = pytest.importorskip("jinja2.sandbox")
    env = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def raise_exception(message):
        raise AssertionError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.globals["raise_exception"] = raise_exception
    env.filters["tojson"] = tojson
    return env


def theirs(env, template, messages, generation, **special):
    source = template.replace("{% generation %}", "{% if true %}").replace("{% endgeneration %}", "{% endif %}")
    try:
        return env.from_string(source).render(
            messages=messages, add_generation_prompt=generation, tools=None, documents=None, **special
        )
    except AssertionError as error:
        return error


@pytest.fixture
def with_template(tmp_path):
    plain = mh.Tokenizer.train_bpe("the cat", vocab_size=300, eos="</s>")
    plain.save(tmp_path / "plain")

    def make(template, name="tokenizer_config.json"):
        folder = tmp_path / "templated"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(plain.to_json())
        config = {"bos_token": "</s>", "eos_token": {"content": "</s>"}}
        if name == "tokenizer_config.json":
            config["chat_template"] = template
        else:
            (folder / name).write_text(template)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return mh.Tokenizer.load(folder)

    return make


@pytest.mark.parametrize("name", TEMPLATES)
def test_same_prompt_as_jinja(with_template, name):
    env = environment()
    tokenizer = with_template(TEMPLATES[name])
    for messages, generation in conversations(500, seed=name):
        expected = theirs(env, TEMPLATES[name], messages, generation, bos_token="</s>", eos_token="</s>")
        if isinstance(expected, str):
            got = tokenizer.apply_chat_template(messages, add_generation_prompt=generation, tokenize=False)
            assert got == expected, messages
        else:
            with pytest.raises(ValueError, match=str(expected).split(",")[0]):
                tokenizer.apply_chat_template(messages, add_generation_prompt=generation)


def test_where_templates_come_from(with_template, tmp_path):
    messages = [{"role": "user", "content": "the"}]
    source = "{{ messages[0].content }}{{ eos_token }}"
    assert with_template(source).chat_template == source
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": source}]
    tokenizer = with_template(several)
    assert tokenizer.chat_template == source
    ids = tokenizer.apply_chat_template(messages)
    assert ids == tokenizer.encode("the") + [tokenizer.eos_id]
    tokenizer.save(tmp_path / "saved")
    assert mh.Tokenizer.load(tmp_path / "saved").chat_template == source
    assert with_template(source, name="chat_template.jinja").apply_chat_template(messages) == ids
    with pytest.raises(ValueError, match="has no chat template"):
        mh.Tokenizer.load(tmp_path / "plain").apply_chat_template(messages)
    for wrong in [[{"content": "x"}], ["user"], [messages]]:
        with pytest.raises(TypeError, match="apply_chat_template"):
            tokenizer.apply_chat_template(wrong)


def test_an_empty_template_is_one_and_integers_have_any_size(with_template):
    tokenizer = with_template("{{ messages[0].content }}{{ n }}")
    messages = [{"role": "user", "content": "the"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, chat_template="") == ""
    assert tokenizer.apply_chat_template(messages, tokenize=False, n=2**63 - 1) == f"the{2**63 - 1}"
    for variables in ({"x": {1: "a"}}, {"x": [{"y": {None: 1}}]}):
        with pytest.raises(TypeError, match="keys must be strings, got (1|None)"):
            tokenizer.apply_chat_template(messages, **variables)
    assert tokenizer.apply_chat_template(messages, tokenize=False, n=[-(10**25)]) == f"the{[-(10**25)]}"


def test_keywords_of_transformers_are_no_variables(with_template):
    tokenizer = with_template("{{ messages[0].content }}{{ truncation is defined }}")
    messages = [{"role": "user", "content": "a"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, truncation=False, return_dict=False)
    assert text == "aFalse"
    for name in ("continue_final_message", "return_dict", "return_tensors", "truncation", "max_length"):
        with pytest.raises(TypeError, match=name):
            tokenizer.apply_chat_template(messages, **{name: 5})
