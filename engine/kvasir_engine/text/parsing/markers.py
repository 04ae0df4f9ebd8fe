"""Markers that are special tokens, kept apart from text that only looks like them.

A special token has no text in an answer. One that a parser needs is given out as one of Unicode's
noncharacters instead, which no ordinary token gives here: so it is found by its id, the same text
written in ordinary tokens is not, and no stop string matches it. A marker that is no special token
stays text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.detokenizer import Detokenizer

_FIRST = 0xFDD0
_REPLACEMENT = "\ufffd"
MAX_MARKERS = 32
"""Noncharacters from U+FDD0 on."""


class Markers:
    """The markers of the formats in use, for one tokenizer.

    Raises ValueError for more than MAX_MARKERS.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        self._signs: dict[str, str] = {}
        self._ids: dict[str, int] = {}
        self.by_id: dict[int, str] = {}
        """The sign of each marker that is a special token."""
        special = tokenizer.special_ids
        for text in dict.fromkeys(texts):
            token_id = tokenizer.backend.token_to_id(text)
            if token_id is None or token_id not in special:
                continue
            if len(self.by_id) == MAX_MARKERS:
                raise ValueError(f"a parser names more than {MAX_MARKERS} special tokens")
            sign = chr(_FIRST + len(self.by_id))
            self._signs[text] = self.by_id[token_id] = sign
            self._ids[text] = token_id
        self._texts = str.maketrans({sign: text for text, sign in self._signs.items()})

    def token(self, text: str) -> int | None:
        """Return the id of a marker that is a special token, None for one that is text."""
        return self._ids.get(text)

    def signs(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return what stands for each marker in the text that a parser reads."""
        return tuple(self._signs.get(text, text) for text in texts)

    def restore(self, text: str) -> str:
        """Return `text` with the markers spelt out."""
        return text.translate(self._texts) if self._signs and not text.isascii() else text


class MarkedDetokenizer:
    """A detokenizer that gives a sign for each special token that is a marker."""

    __slots__ = ("_forged", "_inner", "_signs")

    def __init__(self, inner: Detokenizer, signs: Mapping[int, str]) -> None:
        self._inner = inner
        self._signs = signs
        self._forged = str.maketrans(dict.fromkeys(signs.values(), _REPLACEMENT))

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        sign = self._signs.get(token_id)
        if sign is None:
            text = self._inner.push(token_id)
            return text if text.isascii() else text.translate(self._forged)
        return self.flush() + sign  # a marker ends an unfinished character

    def flush(self) -> str:
        """See Detokenizer."""
        return self._inner.flush().translate(self._forged)
