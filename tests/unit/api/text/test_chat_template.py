from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from kvasir.text import chat_template as module
from kvasir.text.chat_template import ChatTemplate, TemplateError, load_chat_template
from kvasir.text.json_files import TokenizerError

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.reasoning_content %}
        {{- '<|im_start|>assistant\\n<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}
        {{- message.content + '<|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {% generation %}{{- " " + message["content"] + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}
{%- for message in messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

TEMPLATES = {"llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "gemma": GEMMA}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHATS = {
    "one": [{"role": "user", "content": " What is <b>2 & 2</b>?\n"}],
    "system": [
        {"role": "system", "content": "Be brief. "},
        {"role": "user", "content": "Höflich?"},
        {"role": "assistant", "content": "Ja, 你好 "},
    ],
    "long": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "because"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "to be continued  "},
    ],
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "größe <&>"}}]


def by_transformers(source, messages, **options):
    rendered, _ = render_jinja_template(
        conversations=[messages], chat_template=source, **options, **SPECIAL
    )
    return rendered[0]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_a_prompt_is_what_transformers_makes(name, chat, prompt):
    ours = ChatTemplate(TEMPLATES[name], SPECIAL).render(
        CHATS[chat], add_generation_prompt=prompt, tools=TOOLS
    )
    assert ours == by_transformers(
        TEMPLATES[name], CHATS[chat], add_generation_prompt=prompt, tools=TOOLS
    )


@pytest.mark.parametrize("chat", ["system", "long"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_continued_message_is_what_transformers_makes(name, chat):
    options = {"add_generation_prompt": False, "continue_final_message": True}
    ours = ChatTemplate(TEMPLATES[name], SPECIAL).render(CHATS[chat], **options)
    assert ours == by_transformers(TEMPLATES[name], CHATS[chat], **options)
    assert ours.rstrip().endswith(CHATS[chat][-1]["content"].strip())


def test_a_continued_message_of_parts():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat = [{"role": "assistant", "content": parts}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    ours = ChatTemplate(GEMMA, SPECIAL).render(chat, **options)
    assert ours == by_transformers(GEMMA, chat, **options)
    assert ours.endswith("onetwo")
    assert parts[-1]["text"] == "two"


def test_template_kwargs_reach_the_template():
    template = ChatTemplate(QWEN, SPECIAL)
    assert template.render(CHATS["one"], template_kwargs={"enable_thinking": False}).endswith(
        "<think>\n\n</think>\n\n"
    )
    dated = ChatTemplate(LLAMA3, SPECIAL).render(
        CHATS["one"], template_kwargs={"date_string": "1 Jan 2001", "messages": []}
    )
    assert "1 Jan 2001" in dated
    assert "2 & 2" in dated


def test_the_templates_own_words_are_in_the_error():
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate(MISTRAL, SPECIAL).render([{"role": "assistant", "content": "x"}])


def test_a_failing_template_is_a_template_error():
    with pytest.raises(TemplateError, match="failed on the messages"):
        ChatTemplate("{{ messages[0].content + 1 }}").render(CHATS["one"])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% set x = messages.append(1) %}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(source):
    with pytest.raises((TemplateError, TokenizerError)):
        ChatTemplate(source).render(CHATS["one"])


def test_output_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(module, "MAX_RENDERED_CHARS", 1000)
    with pytest.raises(TemplateError, match="without an end"):
        ChatTemplate("{% for i in range(99999) %}aaaaaaaaaa{% endfor %}").render([])


def test_syntax_errors_name_the_line():
    with pytest.raises(TokenizerError, match="line 2"):
        ChatTemplate("\n{% for %}")


def test_nothing_to_continue_is_an_error():
    template = ChatTemplate(QWEN, SPECIAL)
    for chat in ([], [{"role": "assistant", "content": None}]):
        with pytest.raises(TemplateError, match="continue_final_message"):
            template.render(chat, continue_final_message=True)
    dropping = ChatTemplate("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}")
    with pytest.raises(TemplateError, match="cannot be continued"):
        dropping.render(CHATS["long"], continue_final_message=True)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config.json": {"chat_template": "A"}, "chat_template.jinja": "J"}, "J"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "T"},
                        {"name": "default", "template": "D"},
                    ]
                }
            },
            "D",
        ),
        ({"chat_template.json": {"chat_template": "C"}}, "C"),
    ],
)
def test_where_a_template_is_found(tmp_path, files, expected):
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    template = load_chat_template(tmp_path, {})
    assert template is not None
    assert template.render([]) == expected


def test_a_model_without_a_template_has_none(tmp_path):
    assert load_chat_template(tmp_path, {}) is None


def test_named_templates_without_a_default_are_refused(tmp_path):
    named = {"chat_template": [{"name": "rag", "template": "R"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(TokenizerError, match="rag"):
        load_chat_template(tmp_path, {})


def test_the_override_is_a_file_or_a_template(tmp_path):
    (tmp_path / "my.jinja").write_text("from a file")
    for override, expected in [(str(tmp_path / "my.jinja"), "from a file"), ("{{ 1 + 1 }}", "2")]:
        template = load_chat_template(tmp_path, {}, override=override)
        assert template is not None
        assert template.render([]) == expected
    with pytest.raises(TokenizerError, match="neither a template"):
        load_chat_template(tmp_path, {}, override="missing.jinja")


def test_a_model_may_have_a_template_for_tools(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_chat_template(tmp_path, {})
    assert template is not None
    assert template.shows_tools
    assert template.render([]) == template.render([], tools=[]) == "plain"
    assert template.render([], tools=[{}]) == "1 tools"
    assert "plain" in template.all_sources
    assert "tools" in template.all_sources


@pytest.mark.parametrize(
    ("source", "shows", "knows"),
    [
        ("{{ messages[0].content }}", False, False),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}", True, True),
        ("{%- if tools %}{{ tools | tojson }}{% endif %}", True, True),
        ("{% for m in messages %}{{ m.tool_calls }}{% endfor %}", False, True),
        ("{# tools #}{{ 'tools' }}", False, False),
    ],
)
def test_a_template_says_whether_it_knows_tools(source: str, shows: bool, knows: bool) -> None:
    template = ChatTemplate(source)
    assert (template.shows_tools, template.knows_tool_messages) == (shows, knows)
