"""Stop strings over streamed text."""

from __future__ import annotations

from collections.abc import Sequence


def _failure_function(pattern: str) -> list[int]:
    """Knuth-Morris-Pratt: for each length, the longest proper border of that prefix."""
    failure = [0] * (len(pattern) + 1)
    border = 0
    for at in range(1, len(pattern)):
        while border and pattern[at] != pattern[border]:
            border = failure[border]
        if pattern[at] == pattern[border]:
            border += 1
        failure[at + 1] = border
    return failure


class StopStrings:
    """Find the stop string that completes first and hold back what may be the start of one.

    "First" is the match that ends earliest (of two that end together, the longer), which is what
    reading one character at a time finds; so the result does not depend on how text is grouped.
    """

    __slots__ = ("_failures", "_first", "_held", "_include", "_matched", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._failures = [_failure_function(stop) for stop in self._stops]
        self._first = frozenset(stop[0] for stop in self._stops)
        self._include = include_in_output
        # How many characters of each stop string the text so far ends with.
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str, *, armed: bool = True) -> str:
        """The text that may be sent now. With `armed` False no match may end in this text
        (`min_tokens`); it may begin in it. After a match nothing more comes out."""
        if self.matched is not None:
            return ""
        if not self._held and self._first.isdisjoint(text):
            return text
        for at, char in enumerate(text):
            stop = self._advance(char)
            if stop is not None and armed:
                return self._cut(stop, text[: at + 1])
        text = self._held + text
        hold = max(self._matched)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def flush(self) -> str:
        """Return what was held back, when the text ends without a match."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Read one character; the longest stop string that it completes."""
        complete = None
        matched = self._matched
        for number, stop in enumerate(self._stops):
            length = matched[number]
            failure = self._failures[number]
            if length == len(stop):
                length = failure[length]
            while length and stop[length] != char:
                length = failure[length]
            if stop[length] == char:
                length += 1
                if length == len(stop) and complete is None:
                    complete = stop
            matched[number] = length
        return complete

    def _cut(self, stop: str, text: str) -> str:
        self.matched = stop
        text = self._held + text
        self._held = ""
        return text if self._include else text[: len(text) - len(stop)]
