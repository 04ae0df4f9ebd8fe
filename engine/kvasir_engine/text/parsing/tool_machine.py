"""Base of the machines that find tool calls in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvasir_engine.text.parsing.call_grammar import CallBlock, CallGrammar
from kvasir_engine.text.parsing.json_call import CallReader
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pieces import Kind, Piece, TextMachine, find_first, held_back
from kvasir_engine.text.parsing.schema_values import ValueForm, parameter_schema


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The functions that a request offers, by name, with their parameters' schemas."""

    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> ToolSet:
        """Return the set of a body's `tools`, which were checked."""
        functions = [tool["function"] for tool in tools]
        return cls({each["name"]: each.get("parameters") or {} for each in functions})

    def value_form(self, function: str, name: str) -> ValueForm:
        """Return what is known of a function's parameter."""
        schema = self.parameters.get(function, {})
        return ValueForm.of(schema, parameter_schema(schema, name))


class ToolMachine(TextMachine):
    """Text with tool calls in it.

    White space before and behind a call is dropped, other text is content. What has begun as a call
    is held back until the call is certain; text that turns out to be none is content, as it was
    written.
    """

    openers: Sequence[str] = ()
    """Markers that a call may begin with, anywhere."""

    def __init__(self, tools: ToolSet, markers: Markers) -> None:
        super().__init__()
        self._tools = tools
        self._markers = markers
        self._openers = markers.signs(self.openers)
        self._space = ""
        """White space that is content unless a call follows."""
        self._raw = ""
        """Text of a call that is not certain yet."""
        self._called = False
        self._reader: CallReader | None = None

    @classmethod
    def block(cls, calls: CallGrammar) -> CallBlock | None:
        """Return how calls are written, for answers that are held to it; None = none can be."""
        return None

    def _start(self) -> bool:
        """Read the beginning; formats whose calls have no marker look for one here."""
        self._read = self._text
        return True

    def _text(self) -> bool:
        rest = self._rest
        at, opener = find_first(rest, self._openers)
        if opener:
            self._content(rest[:at])
            self._rest = rest[at + len(opener) :]
            self._raw, self._space = self._space + opener, ""
            self._open(opener)
            return True
        kept = len(rest) - (0 if self._ended else held_back(rest, self._openers))
        self._content(rest[:kept])
        self._rest = rest[kept:]
        if self._ended and not self._called:
            self._emit(Kind.CONTENT, self._space)
            self._space = ""
        return False

    def _content(self, text: str) -> None:
        text = self._space + text
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        self._emit(Kind.CONTENT, stripped)

    def _open(self, opener: str) -> None:
        """Set `_read` to what reads a call behind `opener`."""
        raise NotImplementedError

    def _take(self, size: int) -> str:
        """Take `size` characters of what may be a call."""
        taken, self._rest = self._rest[:size], self._rest[size:]
        self._raw += taken
        return taken

    def _skip_space(self) -> bool:
        """Take white space; False when nothing is left behind it."""
        self._take(len(self._rest) - len(self._rest.lstrip()))
        return bool(self._rest)

    def _broken(self) -> bool:
        """Go on with text: what was held back is no call."""
        self._reader = None
        raw, self._raw = self._raw, ""
        self._content(raw)
        self._read = self._text
        return True

    def _wait(self) -> bool:
        """Wait for more text; there is no call when there is none."""
        return self._broken() if self._ended else False

    def _call(self) -> bool:
        """Read a call with `_reader`, then go on with `_after_call`."""
        reader = self._reader
        if reader is None:
            raise AssertionError("no call is being read")
        self._take(reader.read(self._rest))
        self._pieces += reader.take_pieces()
        if reader.started:
            self._certain()
        if reader.failed:
            return self._broken()
        if not reader.done:
            return self._wait()
        self._reader = None
        self._read = self._after_call
        return True

    def _certain(self) -> None:
        """Drop the text that was held back: it is a call's."""
        self._raw = ""
        self._called = True

    def _after_call(self) -> bool:
        raise NotImplementedError

    def _whole_call(self, name: str, arguments: str) -> None:
        """Give out a call that was read in one piece."""
        self._certain()
        self._pieces += [Piece(Kind.CALL, name), Piece(Kind.ARGUMENTS, arguments)]
        self._pieces.append(Piece(Kind.CALL_END))
