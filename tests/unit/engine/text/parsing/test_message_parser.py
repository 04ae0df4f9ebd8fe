"""Every answer of the tables, at once and in any cuts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answer_texts import (
    HARMONY_ANSWERS,
    REASONING_ANSWERS,
    TOOL_ANSWERS,
    TOOLS,
    Answer,
    expected,
    merged,
)
from support.engine_server import byte_tokenizer

from kvasir_engine.text.parsing.message_parser import MessageParser, Parsing
from kvasir_engine.text.parsing.pieces import Kind, Piece
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.parsing.tool_machine import ToolSet

ANSWERS = [
    *(("tools", answer) for answer in TOOL_ANSWERS),
    *(("both", answer) for answer in HARMONY_ANSWERS),
    *(("reasoning", answer) for answer in REASONING_ANSWERS),
]
TOKENIZER = byte_tokenizer()
PARSINGS: dict[tuple[str, str], Parsing] = {}


def parser(kind: str, name: str, skip: int = 0, **options: Any) -> MessageParser:
    tools = "none" if kind == "reasoning" else name
    reasoning = {"tools": "none", "both": "openai_gptoss", "reasoning": name}[kind]
    if (tools, reasoning) not in PARSINGS:
        PARSINGS[tools, reasoning] = Parsing.choose(
            TOKENIZER, None, tools=tools, reasoning=reasoning
        )
    made = PARSINGS[tools, reasoning].parser(
        None if kind == "reasoning" else ToolSet.of(TOOLS), PromptEnd(), skip=skip, **options
    )
    assert made is not None
    return made


def pushed(made: MessageParser, texts: list[str], *, last: bool = True) -> list[Piece]:
    pieces = [piece for text in texts for piece in made.push(text, last=False)]
    return [*pieces, *(made.push("", last=True) if last else ())]


def units(pieces: list[Piece]) -> int:
    return sum(piece.units for piece in pieces)


@pytest.mark.parametrize(
    ("kind", "answer"), ANSWERS, ids=lambda each: getattr(each, "format", each)
)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_an_answer_is_what_its_template_says(kind: str, answer: Answer, size: int) -> None:
    texts = [answer.text[at : at + size] for at in range(0, len(answer.text), size)]
    made = parser(kind, answer.format)
    assert merged(pushed(made, texts)) == expected(answer)
    assert made.calls == len(answer.calls)
    assert made.finished_with_calls == bool(answer.calls and answer.calls[-1][2])


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, Answer, str]:
    """An answer's text, perhaps of two, with a part cut out, doubled or cut off."""
    kind, answer = draw(st.sampled_from(ANSWERS))
    text = answer.text
    if draw(st.booleans()):
        text += draw(st.sampled_from([each.text for which, each in ANSWERS if which == kind]))
    start, end = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    change = draw(st.sampled_from(["none", "cut out", "double", "cut off"]))
    changed = {
        "none": text,
        "cut out": text[:start] + text[end:],
        "double": text[:end] + text[start:],
        "cut off": text[:start],
    }
    return kind, answer, changed[change]


@given(damaged(), st.data())
def test_any_cuts_give_the_same_and_any_break_is_continued(
    case: tuple[str, Answer, str], data: st.DataObject
) -> None:
    kind, answer, text = case
    whole = merged(pushed(parser(kind, answer.format), [text]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert merged(pushed(parser(kind, answer.format), texts)) == whole
    # Broken off anywhere: another parser reads it again, and skips what was sent.
    broken = data.draw(st.integers(0, len(texts)))
    before = pushed(parser(kind, answer.format), texts[:broken], last=False)
    after = pushed(parser(kind, answer.format, skip=units(before)), [text])
    joined = before + [piece for piece in after if piece.kind is not Kind.CALL_END]
    ends = [piece for piece in after if piece.kind is Kind.CALL_END]
    assert {**merged(joined), "calls": []} == {**whole, "calls": []}
    assert [c[:2] for c in merged(joined)["calls"]] == [c[:2] for c in whole["calls"]]
    assert len(ends) == sum(call[2] for call in whole["calls"])


@given(damaged())
def test_nothing_is_lost_where_there_is_no_call(case: tuple[str, Answer, str]) -> None:
    kind, answer, text = case
    made = merged(pushed(parser(kind, answer.format), [text]))
    if kind == "tools" and not made["calls"]:
        assert made["content"] == text


def test_only_the_first_call_is_kept() -> None:
    two = next(answer for answer in TOOL_ANSWERS if len(answer.calls) == 2)
    made = parser("tools", two.format, one_call=True)
    assert merged(pushed(made, [two.text]))["calls"] == [list(two.calls[0])]
    assert made.finished_with_calls


def test_reasoning_that_nobody_wants_is_dropped() -> None:
    made = parser("reasoning", "think", with_reasoning=False)
    assert merged(pushed(made, ["<think>a</think>b"])) == {
        "content": "b",
        "reasoning": "",
        "calls": [],
    }


def test_calls_are_looked_for_behind_reasoning_alone() -> None:
    parsing = Parsing.choose(TOKENIZER, None, tools="hermes", reasoning="think")
    made = parsing.parser(ToolSet.of(TOOLS), PromptEnd())
    assert made is not None
    call = '<tool_call>{"name": "now"}</tool_call>'
    assert merged(pushed(made, [f"<think>{call}</think>\n{call}"])) == {
        "content": "",
        "reasoning": call,
        "calls": [["now", "{}", True]],
    }


def test_text_without_formats_has_no_parser() -> None:
    assert (
        Parsing.choose(TOKENIZER, None, tools="none", reasoning="none").parser(
            ToolSet(), PromptEnd()
        )
        is None
    )
    assert (
        Parsing.choose(TOKENIZER, None, tools="hermes", reasoning="none").parser(None, PromptEnd())
        is None
    )


@pytest.mark.parametrize(("tools", "reasoning"), [("openai", "none"), ("hermes", "openai_gptoss")])
def test_harmony_goes_with_nothing_else(tools: str, reasoning: str) -> None:
    with pytest.raises(ValueError, match="do not go together"):
        Parsing.choose(TOKENIZER, None, tools=tools, reasoning=reasoning)


@pytest.mark.parametrize("size", [255, 256, 257, 1019, 1024, 1025, 1100])
@pytest.mark.parametrize(
    ("kind", "name", "before", "behind"),
    [
        ("tools", "mistral", "[TOOL_CALLS]", "[ARGS]{}"),
        ("tools", "qwen3_coder", "<function=", "></function>"),
        ("tools", "qwen3_coder", "<function=now><parameter=", ">1</parameter></function>"),
        ("both", "openai", "<|channel|>commentary to=functions.now ", "<|message|>{}<|call|>"),
    ],
)
def test_bounds_do_not_depend_on_the_cuts(
    kind: str, name: str, before: str, behind: str, size: int
) -> None:
    text = before + "x" * size + behind
    whole = merged(pushed(parser(kind, name), [text]))
    assert merged(pushed(parser(kind, name), list(text))) == whole


@pytest.mark.parametrize(
    ("messages", "continued", "end"),
    [
        ([{"content": "hi"}], False, PromptEnd("y" * 61 + "end")),
        ([{"content": "hi"}, {"content": "<think>a"}], True, PromptEnd("<think>a", True)),
        ([{"content": [{"text": "hi"}]}], True, PromptEnd("y" * 61 + "end")),
    ],
)
def test_the_end_of_a_chat_is_its_prompts_or_the_message_that_goes_on(
    messages: list[Any], continued: bool, end: PromptEnd
) -> None:
    assert PromptEnd.of_chat("y" * 99 + "end", messages, continued=continued) == end


def test_no_reasoning_is_looked_for_where_the_prompt_would_have_opened_it() -> None:
    parsing = replace(
        Parsing.choose(TOKENIZER, None, tools="none", reasoning="think"), prompt_opens=True
    )
    assert parsing.parser(None, PromptEnd("<assistant>")) is None
    assert parsing.parser(None, PromptEnd("<think>done</think>so", continued=True)) is None
    assert parsing.parser(None, PromptEnd("<assistant><think>\n")) is not None
    assert parsing.parser(None, PromptEnd("<think>half", continued=True)) is not None
