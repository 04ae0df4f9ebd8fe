"""Forms behind reasoning: where single tokens enclose it, and where a grammar has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine_server import EOS, byte_tokenizer

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.text.parsing.call_grammar import CallGrammar
from kvasir_engine.text.parsing.formats import ReasoningFormat
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoned_form import behind_reasoning
from kvasir_engine.text.parsing.reasoning import PromptEnd, ThinkReasoning

TOKENIZER = byte_tokenizer()
GRAMMARS = GuidanceBackend(TOKENIZER, TOKENIZER.backend.get_vocab_size(), [EOS])
FORM = '{"json": {"type": "integer"}}'


def think_parsing(name: str = "think", *, as_tokens: bool) -> tuple[Parsing, Tokenizer]:
    tokenizer = byte_tokenizer()
    if as_tokens:
        tokenizer.backend.add_special_tokens(["<think>", "</think>"])
    return Parsing.choose(tokenizer, None, tools="none", reasoning=name), tokenizer


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        (PromptEnd("<user>hi<assistant>"), False),
        (PromptEnd("<assistant><think>\n"), True),
        (PromptEnd("<think>half a", continued=True), True),
        (PromptEnd("<think>done</think>", continued=True), None),
        (PromptEnd("<assistant><think>\n\n</think>\n\n"), None),
    ],
)
def test_a_form_begins_behind_the_reasoning_that_a_prompt_leaves(
    prompt: PromptEnd, opened: bool | None
) -> None:
    parsing, tokenizer = think_parsing(as_tokens=True)
    form, thinking = behind_reasoning(parsing, tokenizer, prompt, FORM, calls=False)
    assert form == FORM
    if opened is None:
        assert thinking is None
        return
    assert thinking is not None
    ids = (thinking.opener, thinking.closer)
    assert [tokenizer.backend.id_to_token(each) for each in ids] == ["<think>", "</think>"]
    assert thinking.opened is opened


def test_no_reasoning_is_looked_for_where_a_model_has_none() -> None:
    parsing = Parsing.choose(TOKENIZER, None, tools="none", reasoning="none")
    assert behind_reasoning(parsing, TOKENIZER, PromptEnd(), FORM, calls=False) == (FORM, None)


def takes(name: str, text: str, prompt: str = "") -> bool:
    """Whether an answer whose reasoning is text may be `text`."""
    parsing, _ = think_parsing(name, as_tokens=False)
    form, thinking = behind_reasoning(parsing, TOKENIZER, PromptEnd(prompt), FORM, calls=False)
    assert thinking is None
    matcher = GRAMMARS.compile(parse_constraint(form)).matcher([EOS])
    return all(map(matcher.accept, [*TOKENIZER.encode(text, add_special_tokens=False), EOS]))


@pytest.mark.parametrize(
    ("name", "prompt", "right", "wrong"),
    [
        (
            "think",
            "",
            ["12", "<think>\nx 1</think>\n\n12", "\n<think></think>1"],
            ["x", "<think>1"],
        ),
        ("think", "<think>\n", ["x</think>\n\n12"], ["12", "<think>"]),
        ("think", "<think>\n\n</think>\n\n", ["12"], ["<think></think>12"]),
        (
            "granite",
            "",
            ["12", "Here is my thought process:\n\nHm.\n\nHere is my response:\n\n12"],
            ["Here is 12", "Here is my thought process: 12"],
        ),
    ],
)
def test_reasoning_that_no_single_tokens_enclose_is_a_part_of_the_grammar(
    name: str, prompt: str, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not takes(name, text, prompt)] == []
    assert [text for text in wrong if takes(name, text, prompt)] == []


def test_granite_may_think_before_it_has_to_call() -> None:
    parsing = Parsing.choose(TOKENIZER, None, tools="granite", reasoning="granite")
    calls = CallGrammar({"now": None}, parsing.markers, one_call=True)
    block = parsing.tools and parsing.tools.block(calls)
    assert block
    form, _ = behind_reasoning(parsing, TOKENIZER, PromptEnd(), calls.required(block), calls=True)
    matcher = GRAMMARS.compile(parse_constraint(form)).matcher([EOS])
    said = '<think>I call.</think>\n\n<|tool_call|>[{"name": "now", "arguments": {}}]'
    assert all(map(matcher.accept, [*TOKENIZER.encode(said, add_special_tokens=False), EOS]))


def test_reasoning_of_a_package_that_says_nothing_of_grammars_is_refused_by_name() -> None:
    mine = ReasoningFormat("mine", "mine", ThinkReasoning)
    parsing = Parsing(None, mine, Markers(TOKENIZER, ()))
    with pytest.raises(ValueError, match="reasoning in the format mine"):
        behind_reasoning(parsing, TOKENIZER, PromptEnd(), FORM, calls=False)


@pytest.mark.parametrize("as_tokens", [True, False])
def test_a_form_stands_alone_where_the_prompt_would_have_opened_the_reasoning(
    as_tokens: bool,
) -> None:
    parsing, tokenizer = think_parsing(as_tokens=as_tokens)
    parsing = replace(parsing, prompt_opens=True)
    prompt = PromptEnd("<user>hi<assistant>")
    assert behind_reasoning(parsing, tokenizer, prompt, FORM, calls=False) == (FORM, None)
