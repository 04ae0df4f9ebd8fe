"""Positions at which a tokenised text can be cut so that later text cannot change earlier
tokens."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from kvasir.text.tokenizer import Tokenizer

_MAX_STEPS_BACK = 256
_WHITESPACE = b" \t\n\r\x0b\x0c"
_BEFORE_SPACE = re.compile(rb"[^\s](?= )")


class CutRules:
    """Properties of a tokenizer that decide whether a boundary is safe; made once a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added: dict[int, Any] = tokenizer.backend.get_added_tokens_decoder()
        self.splitting = frozenset(
            token_id
            for token_id, token in added.items()
            if token.special and not (token.lstrip or token.rstrip or token.single_word)
        )
        """Special tokens: the text is split at them before anything else happens to it."""
        self.crossing = frozenset(
            match[0]
            for token_id in range(tokenizer.vocab_size)
            if token_id not in added
            for match in _BEFORE_SPACE.finditer(tokenizer.token_bytes(token_id))
        )
        """Bytes that some token has before a space within itself: a merge may cross there."""


class TokenCuts:
    """Boundaries of one tokenised text, by byte offset."""

    def __init__(
        self, text: bytes, token_ids: Sequence[int], ends: Sequence[int], rules: CutRules
    ) -> None:
        self._text = text
        self._token_ids = token_ids
        self._ends = ends
        self._rules = rules

    def tokens_within(self, end: int) -> int:
        """Return the number of leading tokens that `text[:end]` determines, whatever follows it."""
        count = bisect_right(self._ends, end)
        lowest = max(0, count - _MAX_STEPS_BACK)
        while count > lowest and not self._safe(count, end):
            count -= 1
        return count if count > lowest else 0

    def _safe(self, count: int, end: int) -> bool:
        ids, at = self._token_ids, self._ends[count - 1]
        if ids[count - 1] in self._rules.splitting:
            return True
        if count < len(ids) and ids[count] in self._rules.splitting and self._ends[count] <= end:
            return True
        text = self._text
        if not 0 < at < end or text[at : at + 1] != b" ":
            return False
        before = text[at - 1 : at]
        return before not in _WHITESPACE and before not in self._rules.crossing


def token_ends(
    tokenizer: Tokenizer, text: str, token_ids: Sequence[int], *, add_special_tokens: bool
) -> list[int] | None:
    """Return where each token ends in the text, in bytes; None when the ids are not this text's.

    Usually the tokens' own bytes are the text, but for special tokens put before it; else the
    text is encoded again for its offsets.
    """
    encoded = text.encode("utf-8", "surrogatepass")
    pieces = [tokenizer.token_bytes(token_id) for token_id in token_ids]
    for skipped in range(3 if add_special_tokens else 1):
        if b"".join(pieces[skipped:]) == encoded:
            return [0] * skipped + list(accumulate(map(len, pieces[skipped:])))
    encoding = tokenizer.backend.encode(text, add_special_tokens=add_special_tokens)
    if encoding.ids != list(token_ids):
        return None
    byte_at = [0, *accumulate(len(char.encode("utf-8", "surrogatepass")) for char in text)]
    return [byte_at[end] for _, end in encoding.offsets]
