"""The end of a value between tags: a tag within a string of a JSON value ends nothing."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir_engine.text.parsing.json_scanner import At, JsonScanner
from kvasir_engine.text.parsing.pieces import find_first

_IN_STRING = (At.STRING, At.KEY_STRING, At.ESCAPE)


class ValueEnd:
    """Finds the end of one value, whose text is given from its beginning each time, ever longer."""

    def __init__(self, ends: Sequence[str], *, is_json: bool) -> None:
        """With `is_json` what begins like an object or an array is taken for one, until it turns
        out to be none."""
        self._ends = ends
        self._is_json = is_json
        self._scanner = JsonScanner()
        self._scanned = 0
        """Characters that the scanner has taken."""
        self._start = 0
        """Place from which the next end is looked for."""
        self._first: tuple[int, str] | None = None

    def find(self, text: str, *, last: bool) -> tuple[int, str] | None:
        """Return where the value ends and what ends it; None while more text may tell, and where
        the `last` has no end."""
        if self._first is None:
            at, end = find_first(text, self._ends)
            if not end:
                return None
            self._first = at, end
        if not self._is_json or text.lstrip()[:1] not in ("{", "["):
            return self._first
        return self._behind_strings(text) or (self._first if last else None)

    def _behind_strings(self, text: str) -> tuple[int, str] | None:
        """Return the first end outside of strings, or the first of all where the text is no
        JSON."""
        while True:
            at, end = find_first(text[self._start :], self._ends)
            if not end:
                return None
            at += self._start
            if not all(map(self._scanner.step, text[self._scanned : at])):
                return self._first
            if self._scanner.state not in _IN_STRING:
                return (at, end) if self._scanner.state is At.DONE else self._first
            self._scanned, self._start = at, at + 1
