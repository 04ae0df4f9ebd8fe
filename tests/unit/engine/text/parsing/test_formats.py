# ruff: noqa: RUF001 (templates as they are)

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.text.parsing import formats
from kvasir_engine.text.parsing.formats import (
    REASONING_GROUP,
    TOOL_GROUP,
    ToolFormat,
    choose_reasoning_format,
    choose_tool_format,
    format_names,
)
from kvasir_engine.text.parsing.json_tools import HermesTools

TEMPLATES = {
    "Qwen3": (
        '<|im_start|> <tool_call>\n{"name": <function-name> </tool_call> </think>',
        "hermes",
        "think",
    ),
    "Qwen2.5": ("<|im_start|> <tools></tools> <tool_call>", "hermes", None),
    "Qwen3-Coder": ("<tool_call>\n<function=example>\n<parameter=p>", "qwen3_coder", None),
    "Llama 3.1": (
        '<|start_header_id|> {"name": function name, "parameters": dictionary <|python_tag|>',
        "llama3_json",
        None,
    ),
    "Llama 3": ("<|start_header_id|>{{ message.role }}<|end_header_id|>", None, None),
    "Llama 4": (
        "<|header_start|> [func_name1(params_name1=value1)] <|python_start|>",
        "pythonic",
        None,
    ),
    "Mistral 0.3": ("[AVAILABLE_TOOLS] [TOOL_CALLS] [", "mistral", None),
    "Magistral": ("[THINK] [/THINK] [TOOL_CALLS] [ARGS]", "mistral", "mistral"),
    "gpt-oss": ("<|start|> <|channel|>analysis<|message|>", "openai", "openai_gptoss"),
    "Granite 3.3": ("<|start_of_role|> <|tool_call|> thinking <think>", "granite", "granite"),
    "Granite 4": (
        "<|start_of_role|> within <tool_call></tool_call> XML tags",
        "hermes",
        None,
    ),
    "Hermes 4": ("<|start_header_id|> parameters <tool_call> </tool_call>", "hermes", None),
    "Phi-4-mini": ("<|system|> <|tool|> <|/tool|>", "phi4_mini_json", None),
    "Gemma 3": ("<start_of_turn>", None, None),
    "Gemma 3 with tools": ("<start_of_turn> {% if tools %}", "gemma3", None),
    "DeepSeek-R1": ("<｜tool▁calls▁begin｜> </think>", None, "think"),
    "ChatML": ("<|im_start|>", None, None),
}


@pytest.mark.parametrize("model", TEMPLATES)
def test_the_template_says_which_formats_a_model_has(model: str) -> None:
    template, tools, reasoning = TEMPLATES[model]
    found, thinks = choose_tool_format("auto", template), choose_reasoning_format("auto", template)
    assert (found and found.name, thinks and thinks.name) == (tools, reasoning)


def test_a_name_overrules_the_template() -> None:
    template = TEMPLATES["Qwen3"][0]
    assert choose_tool_format("none", template) is None
    chosen = choose_tool_format("mistral", template)
    assert chosen is not None
    assert chosen.name == "mistral"
    assert choose_reasoning_format("auto", None) is None


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="--tool-call-parser 'x' is not one of auto, none, gemma3"):
        choose_tool_format("x", None)
    with pytest.raises(ValueError, match=f"entry point group {REASONING_GROUP}"):
        choose_reasoning_format("x", None)


MINE = ToolFormat("mine", "mine", HermesTools)


def test_another_package_may_register_one(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{__name__}:MINE", TOOL_GROUP)

    def registered(group: str) -> Any:
        return EntryPoints([point] if group == TOOL_GROUP else [])

    monkeypatch.setattr(formats, "entry_points", registered)
    monkeypatch.setattr(EntryPoint, "load", lambda _: MINE)
    formats._foreign.cache_clear()
    try:
        assert choose_tool_format("mine", None) is MINE
        assert "mine" in format_names(TOOL_GROUP)
    finally:
        formats._foreign.cache_clear()


def test_the_page_has_every_format() -> None:
    page = (Path(__file__).parents[5] / "docs/tools.md").read_text()
    for kind in (formats.TOOL_FORMATS, formats.REASONING_FORMATS):
        listed = [f"| `{each.name}` | {each.models} |" for each in kind]
        assert [line for line in listed if line not in page] == []
    rows = [line for line in page.splitlines() if re.match(r"\| `[a-z0-9_]+` \| [A-Zg]", line)]
    assert len(rows) == len(formats.TOOL_FORMATS) + len(formats.REASONING_FORMATS)
