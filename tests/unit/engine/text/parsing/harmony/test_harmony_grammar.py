"""Answers of gpt-oss that are enforced: what a grammar lets through is read as what it is."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import kvasir_engine
from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.call_grammar import CallForms
from kvasir_engine.text.parsing.reasoned_form import behind_reasoning, form_part
from kvasir_engine.text.parsing.reasoning import PromptEnd

from ..call_model import Model

OSLO = '{"city": "Oslo"}'
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
PARAMETERS: dict[str, dict[str, Any] | None] = {"get_weather": CITY, "now": None}
THOUGHT = "<|channel|>analysis<|message|>Hm, {.<|end|><|start|>assistant"
SAID = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{OSLO}"


@cache
def gpt_oss() -> Model:
    return Model("openai", special=True)


def form(*, free: bool = False, prompt: PromptEnd | None = None) -> str:
    return led(unled(free=free), prompt or PromptEnd(), calls=True)


def unled(*, free: bool = False) -> str:
    made = gpt_oss()
    calls = made.calls(PARAMETERS)
    block = made.format.block(calls)
    assert isinstance(block, CallForms)
    return calls.permitted(block) if free else calls.required(block)


def led(whole: str, prompt: PromptEnd, *, calls: bool) -> str:
    made = gpt_oss()
    found, thinking = behind_reasoning(made.parsing, made.tokenizer, prompt, whole, calls=calls)
    assert thinking is None
    return found


def takes(whole: str, text: str, *, end: bool = True) -> bool:
    made = gpt_oss()
    matcher = made.matcher(whole)
    return all(map(matcher.accept, [*made.tokens(text), *([made.end] if end else [])]))


@pytest.mark.parametrize(
    ("text", "required", "free"),
    [
        (CALL, True, True),
        (THOUGHT + CALL, True, True),
        (THOUGHT + THOUGHT + CALL, True, True),
        (CALL.replace(" <|constrain|>", "<|constrain|>"), True, True),
        (CALL.replace(" <|constrain|>json", " json"), True, True),
        (CALL.replace(" <|constrain|>json", ""), True, True),
        (
            f"{THOUGHT} to=functions.get_weather<|channel|>commentary json<|message|>{OSLO}",
            True,
            True,
        ),
        (CALL.replace("Oslo", "Bonn"), False, False),
        (CALL.replace("get_weather", "other"), False, False),
        (CALL[:-1], False, False),
        (THOUGHT, False, False),
        ("Well.", False, False),
        (f"{THOUGHT}{FINAL}Well.", False, True),
        (f"{FINAL}<|channel|>", False, False),
        (f"{THOUGHT}{SAID}{CALL}", False, True),
        (f"{THOUGHT}{SAID}{THOUGHT}{SAID}{FINAL}Well.", False, True),
        (f"{CALL}<|end|>", False, False),
    ],
)
def test_the_channels_of_an_answer(text: str, required: bool, free: bool) -> None:
    assert takes(form(), text) is required
    assert takes(form(free=True), text) is free


@pytest.mark.parametrize("free", [False, True])
def test_what_the_grammar_lets_through_is_read_as_calls(free: bool) -> None:
    made = gpt_oss()
    draw, names = random.Random(free), set()
    begun = made.tokens(CALL[: CALL.index(OSLO)])
    for _ in range(40):
        matcher = made.matcher(unled(free=free))
        first = begun if free else []
        assert all(map(matcher.accept, first))
        content, found = made.read(first + made.walk(matcher, draw), PARAMETERS)
        assert content == ""
        [(name, arguments)] = found
        Draft202012Validator(PARAMETERS[name] or {"maxProperties": 0}).validate(arguments)
        names.add(name)
    assert names == ({"get_weather"} if free else {*PARAMETERS})


def test_a_models_own_tokens_write_calls() -> None:
    tokenizer = Tokenizer.load(Path(kvasir_engine.__file__).parent / "assets" / "tiny")
    made = Model("openai", special=True, tokenizer=tokenizer)
    calls = made.calls(PARAMETERS)
    block = made.format.block(calls)
    assert isinstance(block, CallForms)
    draw = random.Random(0)
    for _ in range(20):
        output = made.walk(made.matcher(calls.required(block)), draw)
        _, [(name, arguments)] = made.read(output, PARAMETERS)
        Draft202012Validator(PARAMETERS[name] or {"maxProperties": 0}).validate(arguments)


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        ('{"json": {"type": "integer"}}', "12", '"12"'),
        ('{"json": "{\\"type\\": \\"integer\\"}"}', "12", "a"),
        ('{"json_object": true}', "{}", "[]"),
        ('{"regex": "[a-c]+\\\\d"}', "ab1", "ab"),
        ('{"choice": ["yes", "no {"]}', "no {", "maybe"),
        ('{"lark": "start: TEXT0\\nTEXT0: /[{}]+/"}', "{}}", "a"),
    ],
)
def test_a_form_begins_in_the_channel_of_the_answer(asked: str, right: str, wrong: str) -> None:
    whole = led(asked, PromptEnd(), calls=False)
    assert takes(whole, f"{THOUGHT}{FINAL}{right}")
    assert takes(whole, f"{FINAL.replace('final', 'final <|constrain|>json')}{right}")
    assert not takes(whole, f"{THOUGHT}{FINAL}{wrong}")
    assert not takes(whole, f"{SAID}{FINAL}{right}")
    assert not takes(whole, right)
    continued = led(asked, PromptEnd("x", continued=True), calls=False)
    assert continued == asked


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (CALL, True),
        (f"{THOUGHT}{CALL}", True),
        (f"{THOUGHT}{FINAL}{OSLO}", True),
        (f"{THOUGHT}<|channel|>final <|constrain|>json<|message|>{OSLO}", True),
        (f"{FINAL}Well.", False),
        (f"{SAID}{FINAL}{OSLO}", False),
        (CALL.replace("Oslo", "Bonn"), False),
    ],
)
def test_an_answer_calls_or_has_a_form_in_the_channel_of_the_answer(text: str, right: bool) -> None:
    made = gpt_oss()
    calls = made.calls(PARAMETERS)
    block = made.format.block(calls)
    assert block is not None
    either = calls.either(block, form_part(json.dumps({"json": CITY})))
    assert either is not None
    assert takes(led(either, PromptEnd(), calls=True), text) is right


def test_what_cannot_stand_behind_reasoning_is_refused_by_name() -> None:
    for asked, name in (
        ('{"grammar": "root ::= \\"a\\""}', "grammar behind reasoning in the format openai_gptoss"),
        ('{"json": {"not": {}}}', "#/not cannot be enforced"),
        ('{"regex": "a("}', "regex is none"),
    ):
        with pytest.raises(ValueError, match=name):
            led(asked, PromptEnd(), calls=False)
    with pytest.raises(ValueError, match="continue_final_message"):
        form(prompt=PromptEnd("x", continued=True))


def test_a_tokenizer_without_the_markers_has_no_grammar() -> None:
    made = Model("openai", special=False)
    assert made.format.block(made.calls(PARAMETERS)) is None
    with pytest.raises(ValueError, match="without the special token"):
        behind_reasoning(
            made.parsing, made.tokenizer, PromptEnd(), '{"json_object": true}', calls=False
        )
