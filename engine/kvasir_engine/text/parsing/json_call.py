"""Tool calls as JSON, read as they come: name and arguments in an object, or arguments alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from kvasir_engine.text.parsing.json_scanner import At, JsonScanner, is_object, is_unicode
from kvasir_engine.text.parsing.pieces import Kind, Piece

ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
MAX_HELD_CHARS = 1024 * 1024
"""Characters of a call that are held back until its name is known; a longer one is content."""
_RUN = re.compile(r'[^"\\\x00-\x1f]+')


class CallReader:
    """Base of readers of one call. `read` says how much of a text belongs to it.

    Once the call has `started`, it stands: what breaks it (`failed`) only ends it.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.started = False
        self.done = False
        self.failed = False
        self._scanner = JsonScanner()

    def read(self, text: str) -> int:
        """Take as much of `text` as is the call's; the character that breaks it is not."""
        at, size = 0, len(text)
        while at < size and not (self.done or self.failed):
            if self._in_arguments_string() and (run := _RUN.match(text, at)):
                self._argument(run.group())
                at = run.end()
                continue
            if not self._take(text[at]):
                self.failed = True
                return at
            at += 1
        return at

    def take_pieces(self) -> list[Piece]:
        """Return what was read since the last time, adjacent parts of arguments joined."""
        made, self.pieces = self.pieces, []
        texts = [piece.text for piece in made if piece.kind is Kind.ARGUMENTS]
        joined = [Piece(Kind.ARGUMENTS, "".join(texts))] if texts else []
        return [
            *(piece for piece in made if piece.kind is Kind.CALL),
            *joined,
            *(piece for piece in made if piece.kind is Kind.CALL_END),
        ]

    def _in_arguments_string(self) -> bool:
        raise NotImplementedError

    def _argument(self, text: str) -> None:
        raise NotImplementedError

    def _take(self, char: str) -> bool:
        raise NotImplementedError

    def _begin(self, name: str) -> None:
        self.started = True
        self.pieces.append(Piece(Kind.CALL, name))

    def _end(self) -> None:
        self.done = True
        self.pieces.append(Piece(Kind.CALL_END))


class ArgumentsReader(CallReader):
    """Read the arguments of a call whose name is known already."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _in_arguments_string(self) -> bool:
        return self._scanner.state is At.STRING

    def _argument(self, text: str) -> None:
        self.pieces.append(Piece(Kind.ARGUMENTS, text))

    def _take(self, char: str) -> bool:
        before = self._scanner.state
        if not self._scanner.step(char):
            return False
        if not self.started:
            if char.isspace():
                return True
            if char != "{":
                return False
            self._begin(self._name)
        self._argument(_escaped(char, before))
        if self._scanner.state is At.DONE:
            self._end()
        return True


class NamedCallReader(CallReader):
    """Read an object that has a name and arguments, whichever comes first.

    `accepts` says whether a name is one of a function. Arguments may be an object, an object
    written as a JSON string, null, or missing; anything else is no call.
    """

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        super().__init__()
        self._accepts = accepts
        self._name: str | None = None
        self._key = ""
        self._field: str | None = None
        self._value: list[str] = []
        self._arguments: list[str] | None = None
        self._held = 0

    def _in_arguments_string(self) -> bool:
        # Another field's value may follow the arguments.
        inside = self._field is not None and self._arguments is self._value
        return self.started and inside and self._scanner.state is At.STRING

    def _argument(self, text: str) -> None:
        self.pieces.append(Piece(Kind.ARGUMENTS, text))

    def _take(self, char: str) -> bool:
        scanner = self._scanner
        before, depth = scanner.state, scanner.depth
        if not scanner.step(char):
            return False
        if depth == 0:
            return char.isspace() or char == "{"
        if not self._take_inside(char, before, depth):
            return False
        return scanner.state is not At.DONE or self._close()

    def _take_inside(self, char: str, before: At, depth: int) -> bool:
        scanner = self._scanner
        if self._field is None:
            if before in (At.KEY_STRING, At.ESCAPE):
                self._key_char(char)
            return True
        if depth == 1:
            if before is At.COLON or (before is At.VALUE and char.isspace()):
                return True
            if before is At.LITERAL and scanner.state is not At.LITERAL:
                return self._field_ends()
        if not self._value_char(_escaped(char, before)):
            return False
        ended = scanner.depth == 1 and scanner.state is At.NEXT
        return not ended or self._field_ends()

    def _key_char(self, char: str) -> None:
        if self._scanner.state is not At.COLON:
            self._key += char
            return
        key, self._key = self._key, ""
        self._field = json.loads(f'"{key}"', strict=False)
        self._value = []

    def _value_char(self, char: str) -> bool:
        """Take one character of a field's value."""
        if self.started and self._arguments is self._value:
            self._argument(char)
            return True
        self._held += len(char)
        self._value.append(char)
        if self._held > MAX_HELD_CHARS:
            return False
        if len(self._value) == 1 and self._field in ARGUMENT_KEYS and self._arguments is None:
            if char == "{":
                self._arguments = self._value
                self._start_if_known()
            return char in '{"n'
        return True

    def _field_ends(self) -> bool:
        field, self._field = self._field, None
        if self._arguments is self._value:
            return True
        text = "".join(self._value)
        if field == "name" and self._name is None:
            name = json.loads(text, strict=False) if text.startswith('"') else ""
            if not is_unicode(name) or not self._accepts(name):
                return False
            self._name = name
            self._start_if_known()
        elif field in ARGUMENT_KEYS and self._arguments is None:
            return self._written_arguments(text)
        return True

    def _written_arguments(self, text: str) -> bool:
        """Take arguments that are a string or null."""
        given = json.loads(text, strict=False)
        if given is None:
            given = "{}"
        if not is_object(given) or not is_unicode(given):
            return False
        self._arguments = [given]
        self._start_if_known()
        return True

    def _start_if_known(self) -> None:
        if self._name is not None and self._arguments is not None and not self.started:
            self._begin(self._name)
            self.pieces += [Piece(Kind.ARGUMENTS, text) for text in self._arguments]

    def _close(self) -> bool:
        if self._name is None:
            return False
        if not self.started:
            self._arguments = ["{}"]
            self._start_if_known()
        self._end()
        return True


def _escaped(char: str, before: At) -> str:
    """A raw control character within a string, as JSON has it."""
    if char < " " and before in (At.STRING, At.KEY_STRING):
        return json.dumps(char)[1:-1]
    return char
