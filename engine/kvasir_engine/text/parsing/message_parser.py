"""Parser of one choice: its text to pieces, by the formats that the model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.text.parsing.formats import (
    HARMONY_REASONING,
    HARMONY_TOOLS,
    ReasoningFormat,
    ToolFormat,
    choose_reasoning_format,
    choose_tool_format,
)
from kvasir_engine.text.parsing.harmony.harmony_parser import Harmony
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pieces import Kind, Piece, TextMachine
from kvasir_engine.text.parsing.reasoning import PromptEnd, ReasoningMachine
from kvasir_engine.text.parsing.tool_machine import ToolSet


@dataclass(frozen=True, slots=True)
class Parsing:
    """The formats of a model's answers, and their markers for its tokenizer."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    markers: Markers
    prompt_opens: bool = False
    """The chat template opens the reasoning where it is asked for: behind a prompt that does not,
    the answer has none."""

    @classmethod
    def choose(
        cls, tokenizer: Tokenizer, template: str | None, *, tools: str, reasoning: str
    ) -> Parsing:
        """Choose by the flags --tool-call-parser and --reasoning-parser, and the chat template.

        Raises ValueError for an unknown name, and for Harmony with another format beside it.
        """
        of_tools = choose_tool_format(tools, template)
        of_reasoning = choose_reasoning_format(reasoning, template)
        if (of_tools is not None and of_tools.name == HARMONY_TOOLS) != (
            of_reasoning is not None and of_reasoning.name == HARMONY_REASONING
        ):
            raise ValueError(
                f"--tool-call-parser {tools} and --reasoning-parser {reasoning} do not go "
                f"together: {HARMONY_TOOLS} and {HARMONY_REASONING} read one format; give both, or "
                "leave both out."
            )
        formats = [each for each in (of_tools, of_reasoning) if each is not None]
        return cls(of_tools, of_reasoning, Markers(tokenizer, _marker_texts(formats)))

    def opened_by(self, prompt: PromptEnd) -> bool:
        """Return whether an answer begins within its reasoning."""
        return any(prompt.opens(opener, closer) for opener, closer in self._pairs())

    def may_reason(self, prompt: PromptEnd) -> bool:
        """Return whether an answer may begin with reasoning, or within it."""
        if self.reasoning is None:
            return False
        return not self.prompt_opens or self.opened_by(prompt)

    def _pairs(self) -> list[tuple[str, str]]:
        """Markers that may stand around the reasoning."""
        machine = None if self.reasoning is None else self.reasoning.make
        if isinstance(machine, type) and issubclass(machine, ReasoningMachine):
            return list(zip(machine.openers, machine.closers, strict=True))
        return []

    def enclosing(self, tokenizer: Tokenizer) -> tuple[str, str] | None:
        """Return the markers around the reasoning of answers where both are single tokens."""
        for pair in self._pairs():
            if all(tokenizer.backend.token_to_id(each) is not None for each in pair):
                return pair
        return None

    def thinking(
        self, tokenizer: Tokenizer, prompt: PromptEnd, pair: tuple[str, str]
    ) -> Thinking | None:
        """Return the tokens around the reasoning that an answer may begin with; None where it has
        none, or the prompt has closed it."""
        opener, closer = pair
        first, last = map(tokenizer.backend.token_to_id, pair)
        if first is None or last is None:
            raise AssertionError(f"{opener} and {closer} are not tokens")
        if prompt.text.rstrip().endswith(closer) or not self.may_reason(prompt):
            return None
        return Thinking(first, last, opened=prompt.opens(opener, closer))

    def stop_ids(self, tokenizer: Tokenizer) -> list[int]:
        """Return the special tokens that end an answer of the format of calls."""
        stops = () if self.tools is None else self.tools.stops
        ids = map(tokenizer.backend.token_to_id, stops)
        return [each for each in ids if each is not None and each in tokenizer.special_ids]

    def signs(self, *, with_tools: bool) -> Mapping[int, str]:
        """Return the special tokens that a parser reads, with what stands for each in its text."""
        formats = [self.tools] if with_tools and self.tools is not None else []
        wanted = _marker_texts([*formats, *([self.reasoning] if self.reasoning else [])])
        signs = set(self.markers.signs(wanted))
        return {token: sign for token, sign in self.markers.by_id.items() if sign in signs}

    def parser(
        self,
        tools: ToolSet | None,
        prompt: PromptEnd,
        *,
        one_call: bool = False,
        with_reasoning: bool = True,
        skip: int = 0,
    ) -> MessageParser | None:
        """Return the parser of one choice; None when its text is its content.

        `tools` None leaves calls in the content, `one_call` drops all but the first,
        `with_reasoning` False drops reasoning. `skip` counts the units that a client has already.
        """
        stages: list[TextMachine] = []
        if self.reasoning is not None and self.reasoning.name == HARMONY_REASONING:
            stages.append(Harmony(self.markers, with_tools=tools is not None))
        else:
            if self.reasoning is not None and self.may_reason(prompt):
                stages.append(self.reasoning.make(self.markers, prompt))
            if tools is not None and self.tools is not None:
                stages.append(self.tools.make(tools, self.markers))
        if not stages:
            return None
        return MessageParser(
            stages, self.markers, one_call=one_call, with_reasoning=with_reasoning, skip=skip
        )


def _marker_texts(formats: list[ToolFormat | ReasoningFormat]) -> tuple[str, ...]:
    return tuple(text for each in formats for text in each.markers)


class MessageParser:
    """Pieces of one choice. What it gives out depends on the text alone, not on its cuts."""

    def __init__(
        self,
        stages: list[TextMachine],
        markers: Markers,
        *,
        one_call: bool,
        with_reasoning: bool,
        skip: int,
    ) -> None:
        self._stages = stages
        self._restore = markers.restore
        self._one_call = one_call
        self._with_reasoning = with_reasoning
        self._skip = skip
        self._dropping = False
        self.calls = 0
        """Calls that have begun, those that the client has already included."""
        self.complete = False
        """The last call is complete."""
        self.units: dict[Kind, int] = {}
        """Characters so far by kind, those that are not sent included."""

    @property
    def finished_with_calls(self) -> bool:
        """True when the answer so far has called, and no call is cut off."""
        return self.calls > 0 and self.complete

    def push(self, text: str, *, last: bool) -> list[Piece]:
        """Return what became certain with `text`, without what the client has already."""
        pieces = self._through(self._stages, text, last)
        return [kept for piece in pieces if (kept := self._sent(piece)) is not None]

    def _through(self, stages: list[TextMachine], text: str, last: bool) -> list[Piece]:
        machine, behind = stages[0], stages[1:]
        pieces = machine.push(text) if text else []
        if last:
            pieces += machine.finish()
        if not behind:
            return pieces
        made: list[Piece] = []
        for piece in pieces:
            if piece.kind is Kind.CONTENT:
                made += self._through(behind, piece.text, False)
            else:
                made.append(piece)
        return made + self._through(behind, "", True) if last else made

    def _sent(self, piece: Piece) -> Piece | None:
        """The part of a piece that is to be sent."""
        self.units[piece.kind] = self.units.get(piece.kind, 0) + len(piece.text)
        if piece.kind is Kind.CALL:
            if self._one_call and self.calls:
                self._dropping = True
                return None
            self.calls += 1
            self.complete = False
        if self._is_dropped(piece.kind):
            return None
        if piece.kind is Kind.CALL_END:
            self.complete = True
            return piece
        return self._unsent(Piece(piece.kind, self._restore(piece.text)))

    def _is_dropped(self, kind: Kind) -> bool:
        if kind in (Kind.ARGUMENTS, Kind.CALL_END):
            return self._dropping
        return kind is Kind.REASONING and not self._with_reasoning

    def _unsent(self, piece: Piece) -> Piece | None:
        """The part of a piece that the client does not have."""
        skipped = min(self._skip, piece.units)
        self._skip -= skipped
        if not skipped:
            return piece
        return None if skipped == piece.units else Piece(piece.kind, piece.text[skipped:])
