"""Grammars of answers in the Harmony format: reasoning, calls, and what else there may be.

A message is a header, whose parts are divided by special tokens, and text up to the next one; so
text needs no care. A call ends the answer: the model's stop token `<|call|>` stands behind it.
"""

from __future__ import annotations

from kvasir_engine.grammar.lark import (
    ANY_TEXT,
    LarkWriter,
    Part,
    any_of,
    literal,
    optional,
    regex,
    sequence,
    token,
)
from kvasir_engine.text.parsing.call_grammar import CallForms, CallGrammar
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.reasoning import Lead, PromptEnd

BEGIN, CHANNEL, CONSTRAIN, MESSAGE, END = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
)
FUNCTIONS = "functions."
_SPACE = regex(" ?")


class _Messages:
    """Parts of a grammar for the special tokens of one tokenizer."""

    def __init__(self, lark: LarkWriter, markers: Markers) -> None:
        """Raises ValueError where the format's markers are no special tokens."""
        self._markers = markers
        self._lark = lark
        self.text = lark.terminal(ANY_TEXT)
        self.next = sequence(self.sign(END), self.sign(BEGIN), literal("assistant"))
        """End of a message, and the beginning of the next one."""
        self.type = sequence(lark.terminal(_SPACE), self.sign(CONSTRAIN), literal("json"))
        """Part of a header: JSON follows."""

    def sign(self, marker: str) -> Part:
        found = self._markers.token(marker)
        if found is None:
            raise ValueError(f"a tokenizer without the special token {marker}")
        return token(found)

    def header(self, channel: str, *more: Part) -> Part:
        return sequence(self.sign(CHANNEL), literal(channel), *more, self.sign(MESSAGE))

    def left(self, channel: str) -> Part:
        """Return a message behind which there are others."""
        return self._lark.rule(sequence(self.header(channel), self.text, self.next))

    def call(self, name: str, arguments: Part) -> Part:
        """Return a call, whose function stands before the channel or behind it."""
        to = f" to={FUNCTIONS}{name}"
        known = any_of([literal(" json"), self.type])
        before = sequence(literal(to), self.header("commentary", optional(known)))
        behind = self.header(f"commentary{to}", optional(any_of([literal(" json"), self.type])))
        return sequence(any_of([before, behind]), arguments)


def harmony_lead(lark: LarkWriter, markers: Markers, prompt: PromptEnd) -> Lead:
    """Return the reasoning that an answer may begin with. Raises ValueError where a message is
    continued with calls, and for tokenizers without the markers."""
    messages = _Messages(lark, markers)
    if prompt.continued:
        return Lead(calls=None, content="")
    thoughts = f"{messages.left('analysis')}*"
    return Lead(thoughts, sequence(thoughts, messages.header("final", optional(messages.type))))


def harmony_forms(calls: CallGrammar) -> CallForms | None:
    """Return the answers that call, or may call; None for tokenizers without the markers."""
    try:
        messages = _Messages(calls.lark, calls.markers)
        call = calls.each(lambda name: messages.call(name, calls.arguments(name)))
        said = sequence(messages.left("commentary"), f"{messages.left('analysis')}*")
        ends = [messages.header(channel) for channel in ("commentary", "final")]
        ends.append(messages.header("final", messages.type))
        content = messages.header("final", optional(messages.type))
    except ValueError:
        return None
    last = any_of([call, sequence(any_of(ends), messages.text)])
    return CallForms(required=call, permitted=f"({said})* {last}", content=content)
