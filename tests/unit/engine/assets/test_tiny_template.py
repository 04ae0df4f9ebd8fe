"""The shipped chat template, as the model card describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.tiny_model.data import Encoder, Message
from tokenizers import Tokenizer
from transformers import AutoTokenizer

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "get_weather", "description": "Weather", "parameters": {"type": "object"}}
CALL = {"name": "get_weather", "arguments": {"city": "Oslo"}}
CALL_TEXT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny)


def _render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return text


def test_turns(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    assert _render(tokenizer, messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_no_system_prompt_is_made_up(tokenizer: Any) -> None:
    assert _render(tokenizer, [USER]) == "<|im_start|>user\nHi<|im_end|>\n"


def test_the_last_message_can_be_continued(tokenizer: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "Hello, I"}]
    rendered = _render(tokenizer, messages, continue_final_message=True)
    assert rendered.endswith("<|im_start|>assistant\nHello, I")


def test_content_may_come_in_parts(tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    in_parts = [{"role": "user", "content": parts}]
    assert _render(tokenizer, in_parts) == _render(tokenizer, [USER])


def test_tools_are_listed_in_the_system_turn(tokenizer: Any) -> None:
    tools = [{"type": "function", "function": TOOL}]
    listed = (
        'Tools:\n{"name": "get_weather", "description": "Weather", '
        '"parameters": {"type": "object"}}<|im_end|>\n'
    )
    assert _render(tokenizer, [USER], tools=tools).startswith(f"<|im_start|>system\n{listed}")
    system = {"role": "system", "content": "Be brief."}
    rendered = _render(tokenizer, [system, USER], tools=tools)
    assert rendered.startswith(f"<|im_start|>system\nBe brief.\n{listed}")


@pytest.mark.parametrize("arguments", [CALL["arguments"], '{"city": "Oslo"}'])
@pytest.mark.parametrize("content", [None, ""])
def test_tool_calls_render_as_the_model_writes_them(
    tokenizer: Any, arguments: Any, content: str | None
) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    said = {"role": "assistant", "content": content, "tool_calls": [call]}
    messages: list[dict[str, Any]] = [USER, said, {"role": "tool", "content": "21"}]
    assert _render(tokenizer, messages) == (
        "<|im_start|>user\nHi<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n"
        "<|im_start|>tool\n21<|im_end|>\n"
    )


def test_thinking_is_opened_where_it_is_asked_for(tokenizer: Any) -> None:
    asked = _render(tokenizer, [USER], add_generation_prompt=True, enable_thinking=True)
    assert asked.endswith("<|im_start|>assistant\n<think>\n")
    for off in ({}, {"enable_thinking": False}):
        rendered = _render(tokenizer, [USER], add_generation_prompt=True, **off)
        assert rendered.endswith("<|im_start|>assistant\n")


def test_earlier_thoughts_are_left_out(tokenizer: Any) -> None:
    said = {"role": "assistant", "content": "Hello!", "reasoning_content": "They talk to me."}
    rendered = _render(tokenizer, [USER, said, USER], enable_thinking=True)
    assert "They talk" not in rendered


def test_training_saw_the_tokens_of_thinking(tokenizer: Any, tiny: Path) -> None:
    encoder = Encoder(Tokenizer.from_file(str(tiny / "tokenizer.json")))
    asked, _ = encoder.message(Message("user", USER["content"]))
    answer, mask = encoder.message(Message("assistant", "Hello!", "They talk to me."))
    prompt = _render(tokenizer, [USER], add_generation_prompt=True, enable_thinking=True)
    begun = tokenizer(prompt)["input_ids"]
    assert (asked + answer)[: len(begun)] == begun
    learned = [t for t, said in zip(answer, mask, strict=True) if said]
    assert learned == (asked + answer)[len(begun) : -1]
    assert tokenizer.decode(learned) == "They talk to me.\n</think>\n\nHello!<|im_end|>"


def test_training_saw_the_tokens_that_the_template_gives(tokenizer: Any, tiny: Path) -> None:
    messages = [USER, {"role": "assistant", "content": "Hello! How are you?"}]
    encoder = Encoder(Tokenizer.from_file(str(tiny / "tokenizer.json")))
    parts = [encoder.message(Message(turn["role"], turn["content"])) for turn in messages]
    ids = [token for part, _ in parts for token in part]
    assert ids == tokenizer(_render(tokenizer, messages))["input_ids"]
    learned = [t for part, mask in parts for t, said in zip(part, mask, strict=True) if said]
    assert tokenizer.decode(learned) == "Hello! How are you?<|im_end|>"
