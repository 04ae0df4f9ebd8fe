"""Answers with tool calls whose grammars are measured: those that have to call, or may."""

from __future__ import annotations

from dataclasses import dataclass

from grammar_schemas import SCHEMAS

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.call_grammar import CallGrammar
from kvasir_engine.text.parsing.formats import choose_tool_format
from kvasir_engine.text.parsing.markers import Markers

FUNCTIONS = {
    name.replace(" ", "_"): SCHEMAS[name] for name in ("weather call", "search call", "flight call")
}
FORMATS = {"hermes": "<tool_call>", "pythonic": "[weather_call("}
"""Formats, and texts with which a call begins."""


@dataclass(frozen=True)
class CallForm:
    """Form of answers, and the text that one has before its masks are measured."""

    name: str
    form: str
    begun: str = ""


def call_forms(tokens: Tokenizer) -> list[CallForm]:
    """Return forms of each format: calls that are required, and free text that may call."""
    made = []
    for name, opening in FORMATS.items():
        markers = Markers(tokens, ())
        of_format = choose_tool_format(name, None)
        assert of_format is not None
        calls = CallGrammar(FUNCTIONS, markers, one_call=False)
        block = of_format.block(calls)
        assert block is not None
        may = calls.permitted(block)
        made += [
            CallForm(f"{name}, required", calls.required(block)),
            CallForm(f"{name}, auto: text", may, "Well, "),
            CallForm(f"{name}, auto: a call", may, opening),
        ]
    return made
