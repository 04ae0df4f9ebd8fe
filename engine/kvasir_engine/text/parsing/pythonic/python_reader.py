"""One call in Python's form, read as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from kvasir_engine.text.parsing.json_call import CallReader
from kvasir_engine.text.parsing.pieces import Kind, Piece
from kvasir_engine.text.parsing.pythonic.python_values import PythonValue
from kvasir_engine.text.parsing.schema_values import ValueForm, json_of

MAX_HELD_CHARS = 256 * 1024
"""Characters of a value that is given out whole."""
MAX_KEY_CHARS = 256
KEY = re.compile(r"[\w-]+")


class PythonCallReader(CallReader):
    """Read `KEY=literal, ...)`, from behind the call's bracket on.

    A string that its parameter may be is given out as it comes, other values whole. The call is
    certain, and has `started`, when the first of them has begun to be given out.
    """

    def __init__(self, name: str, form_of: Callable[[str], ValueForm]) -> None:
        """`form_of` says what is known of a parameter."""
        super().__init__()
        self._name = name
        self._form_of = form_of
        self._form = ValueForm()
        self._key = ""
        self._is_spaced = False
        """White space stands behind the key."""
        self._count = 0
        self._value: PythonValue | None = None
        self._written: list[str] = []
        """Characters of the value, where they are kept."""
        self._held = 0
        """Number of these characters."""
        self._is_given = False
        """The value has begun to be given out."""

    def read(self, text: str) -> int:
        """CallReader.read."""
        at = 0
        while at < len(text) and not (self.done or self.failed):
            if size := self._run(text, at):
                at += size
            elif self._take(text[at]):
                at += 1
            else:
                self.failed = True
        return at

    def _run(self, text: str, at: int) -> int:
        """Take a part of a string at once, as much as may be kept; return its size."""
        if self._value is None:
            return 0
        size = self._value.take_run(text, at, at + MAX_HELD_CHARS - self._held)
        if size:
            self._goes_on(self._value, text[at : at + size])
        return size

    def _take(self, char: str) -> bool:
        if self._value is not None:
            return self._in_value(self._value, char)
        if char.isspace():
            self._is_spaced = bool(self._key)
            return True
        if char == ")" and not self._key:
            return self._close()
        if char == "=":
            self._form = self._form_of(self._key)
            self._value, self._written, self._is_given = PythonValue(), [], False
            self._held = 0
            return bool(self._key)
        self._key += char
        long = len(self._key) > MAX_KEY_CHARS
        return not (self._is_spaced or long) and bool(KEY.fullmatch(self._key))

    def _in_value(self, value: PythonValue, char: str) -> bool:
        took = value.take(char)
        if took is False:
            return False
        if not self._goes_on(value, char if took else ""):
            return False
        if took:
            return True
        if not self._is_given:
            self._give(self._fitting(value))
        self._value, self._key, self._is_spaced = None, "", False
        self._count += 1
        return self._close() if char == ")" else True

    def _goes_on(self, value: PythonValue, written: str) -> bool:
        """Give out what came of a value, or keep it; False where it is too long for that."""
        if value.is_text and (not self._form.kinds or "string" in self._form.kinds):
            self._give("".join(value.json))
            value.json.clear()
            return True
        self._written.append(written)
        self._held += len(written)
        return self._held <= MAX_HELD_CHARS

    def _give(self, text: str) -> None:
        if not self._is_given:
            self._is_given = True
            if not self.started:
                self._begin(self._name)
            head = ", " if self._count else "{"
            self._argument(f"{head}{json.dumps(self._key, ensure_ascii=False)}: ")
        self._argument(text)

    def _argument(self, text: str) -> None:
        if text:
            self.pieces.append(Piece(Kind.ARGUMENTS, text))

    def _fitting(self, value: PythonValue) -> str:
        """Return a whole value as JSON, of a type that its parameter has."""
        made, kinds = "".join(value.json), self._form.kinds
        if value.is_text:
            return json_of(json.loads(made), self._form)
        is_scalar = made[:1] not in ("[", "{") and not value.is_null
        if is_scalar and kinds == {"string"}:
            return json.dumps("".join(self._written).strip(), ensure_ascii=False)
        return made

    def _close(self) -> bool:
        if not self.started:
            self._begin(self._name)
        self._argument("}" if self._count else "{}")
        self._end()
        return True
