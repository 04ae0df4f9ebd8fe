"""Reasoning that stands before the answer, between markers or behind a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kvasir_engine.grammar.lark import ANY_TEXT, LarkWriter, Part, any_of, literal, regex, sequence
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pieces import Kind, TextMachine, find_first, held_back

PROMPT_END_CHARS = 64
"""Characters of a prompt that show whether its template has opened the reasoning."""
_SPACE = regex(r"\n{0,4}")
"""Line feeds around reasoning."""


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """End of a prompt, which leads the answer in: it may have opened the reasoning already."""

    text: str = ""
    """Last characters of the prompt, or the message that the answer continues."""
    continued: bool = False
    """The answer continues a message (continue_final_message)."""

    @classmethod
    def of_chat(cls, text: str, messages: Sequence[Any], *, continued: bool) -> Self:
        """Return the end of the prompt that a template has made of a chat."""
        last = messages[-1] if messages else None
        content = last.get("content") if isinstance(last, Mapping) else None
        if continued and isinstance(content, str):
            return cls(content, continued=True)
        return cls(text[-PROMPT_END_CHARS:])

    def opens(self, opener: str, closer: str) -> bool:
        """Return whether the answer begins within `opener` and `closer`."""
        if self.continued:
            return self.text.rfind(opener) > self.text.rfind(closer)
        return self.text.rstrip().endswith(opener)


@dataclass(frozen=True, slots=True)
class Lead:
    """Beginning of an answer, before the part whose form is enforced."""

    calls: Part | None
    """Before calls; None = none can be enforced."""
    content: Part
    """Before content."""


class ReasoningMachine(TextMachine):
    """Reasoning up to a closer, then content. White space around either is dropped.

    Reasoning is looked for at the beginning alone: an opener later on is content.
    """

    openers: Sequence[str] = ()
    closers: Sequence[str] = ()

    @classmethod
    def lead(cls, lark: LarkWriter, markers: Markers, prompt: PromptEnd) -> Lead:
        """Return the reasoning that an answer may begin with, whose markers are text."""
        if prompt.text.rstrip().endswith(tuple(cls.closers)):
            return Lead("", "")
        space = lark.terminal(_SPACE)
        closers = any_of(map(literal, cls.closers))
        within = lark.rule(f"{ANY_TEXT} {closers}", lazy=True)
        if any(prompt.opens(each, cls.closers[0]) for each in cls.openers):
            thought = sequence(within, space)
        else:
            thought = f"({space} {any_of(map(literal, cls.openers))} {within} {space})?"
        return Lead(thought, thought)

    def __init__(self, markers: Markers, prompt: PromptEnd) -> None:
        super().__init__()
        self._openers = markers.signs(self.openers)
        self._closers = markers.signs(self.closers)
        self._space = ""
        if any(prompt.opens(each, self.closers[0]) for each in self.openers):
            self._read = self._opened

    def _start(self) -> bool:
        """Tell whether the answer begins with reasoning."""
        text = self._rest.lstrip()
        if text.startswith(self._openers):
            return self._opened()
        if not self._ended and any(each.startswith(text) for each in self._openers):
            return False
        self._read = self._content
        return True

    def _opened(self) -> bool:
        """Drop the opener, which some models repeat, and the space behind it."""
        text = self._rest.lstrip()
        opener = next((each for each in self._openers if text.startswith(each)), "")
        if opener:
            text = text[len(opener) :].lstrip()
        elif not self._ended and any(each.startswith(text) for each in self._openers):
            return False
        if not text and not self._ended:
            return False
        self._rest = text
        self._read = self._reasoning
        return True

    def _reasoning(self) -> bool:
        at, closer = find_first(self._rest, self._closers)
        if closer:
            self._reason(self._rest[:at])
            self._rest = self._rest[at + len(closer) :]
            self._read = self._between
            return True
        kept = len(self._rest) - (0 if self._ended else held_back(self._rest, self._closers))
        self._reason(self._rest[:kept])
        self._rest = self._rest[kept:]
        return False

    def _reason(self, text: str) -> None:
        text = self._space + text
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        self._emit(Kind.REASONING, stripped)

    def _between(self) -> bool:
        self._rest = self._rest.lstrip()
        if not self._rest:
            return False
        self._read = self._content
        return True

    def _content(self) -> bool:
        text, self._rest = self._rest, ""
        self._emit(Kind.CONTENT, text)
        return False


class ThinkReasoning(ReasoningMachine):
    """`<think>...</think>`: Qwen 3, QwQ, DeepSeek-R1, SmolLM3 and many more."""

    openers = ("<think>",)
    closers = ("</think>",)


class MistralReasoning(ReasoningMachine):
    """Magistral: `[THINK]...[/THINK]`, in its first version `<think>...</think>`."""

    openers = ("[THINK]", "<think>")
    closers = ("[/THINK]", "</think>")


class GraniteReasoning(ReasoningMachine):
    """Granite 3.2: "Here is my thought process:" and "Here is my response:"; 3.3:
    `<think>...</think><response>...</response>`."""

    openers = ("Here is my thought process:", "Here's my thought process:", "<think>")
    closers = ("Here is my response:", "Here's my response:", "</think>")
    tags = ("<response>", "</response>")

    def _between(self) -> bool:
        self._rest = self._rest.lstrip()
        tag = self.tags[0]
        if not self._ended and tag.startswith(self._rest) and self._rest != tag:
            return False
        if self._rest.startswith(tag):
            self._rest = self._rest[len(tag) :].lstrip()
            self._read = self._response
            return True
        return super()._between()

    def _response(self) -> bool:
        """Content up to the tag that closes it."""
        at, end = find_first(self._rest, self.tags[1:])
        if end:
            text, self._rest = self._rest[:at], self._rest[at + len(end) :]
            self._emit(Kind.CONTENT, text)
            self._read = self._content
            return True
        kept = len(self._rest) - (0 if self._ended else held_back(self._rest, self.tags[1:]))
        self._emit(Kind.CONTENT, self._rest[:kept])
        self._rest = self._rest[kept:]
        return False
