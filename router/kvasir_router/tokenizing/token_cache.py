"""Token ids of texts that begin as earlier ones did."""

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import xxhash

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.prompt_report.token_cuts import token_ends

MAX_TOKENS = 4_000_000
"""Maximum tokens of all texts kept; 8 bytes each."""

_BLOCK_CHARS = 1024
_OVERLAP = 64
"""Tokens of the known part that are made again with the new one..."""
_SYNCED = 32
"""...of which so many, the last ones, must come out as they were."""


class Tokens(NamedTuple):
    """A text's tokens: ids, and where each one ends in the text, in bytes of UTF-8."""

    ids: Sequence[int]
    ends: Sequence[int]


class _Entry(NamedTuple):
    chain: list[int]
    """Chained hashes of the text's blocks of _BLOCK_CHARS characters."""
    ids: "array[int]"
    ends: "array[int]"


class TokenCache:
    """Tokenise only what is new of a text.

    The tokens of the beginning that an earlier text shares are taken over up to 64 before where
    the texts may part; from there on the text is tokenised. What both have must be the same at its
    end: then the tokenizer has forgotten where it was begun, and goes on as it would have from the
    start. Otherwise the whole text is tokenised. The least recently used texts are forgotten.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int = MAX_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        """Entries by the last hash of their chain."""
        self._blocks: dict[int, int] = {}
        """Each chain's hashes -> the entry that was last stored with it."""
        self.size = 0
        """Tokens kept."""
        self.reused = 0
        """Tokens that were taken over, since the start."""

    def tokens(self, text: str, *, add_special_tokens: bool) -> Tokens | None:
        """None when it is not known where each token ends. Raises ValueError for text that is not
        valid Unicode."""
        chain = _chain(text, add_special_tokens)
        shared, entry = self._longest(chain)
        made = self._extended(text, shared, entry) if entry is not None else None
        if made is None:
            made = self._encoded(text, add_special_tokens=add_special_tokens)
        if made is not None and chain:
            self._keep(chain, made)
        return made

    def _encoded(self, text: str, *, add_special_tokens: bool) -> Tokens | None:
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        ends = token_ends(self._tokenizer, text, ids, add_special_tokens=add_special_tokens)
        return None if ends is None else Tokens(ids, ends)

    def _extended(self, text: str, shared: int, entry: _Entry) -> Tokens | None:
        """None when the known part does not fit, or is too short to tell."""
        known_bytes = len(text[: shared * _BLOCK_CHARS].encode())
        known = bisect_right(entry.ends, known_bytes) - 1
        start = known - _OVERLAP
        if start <= 0:
            return None
        cut = entry.ends[start - 1]
        tail = text.encode()[cut:]
        try:
            made = self._encoded(tail.decode(), add_special_tokens=False)
        except UnicodeDecodeError:
            return None  # within a character
        if made is None:
            return None
        old = [cut + end for end in made.ends]
        again = bisect_right(old, entry.ends[known - 1])
        synced = slice(known - _SYNCED, known)
        if again < _SYNCED or (
            list(made.ids[again - _SYNCED : again]) != list(entry.ids[synced])
            or old[again - _SYNCED : again] != list(entry.ends[synced])
        ):
            return None
        self.reused += known
        return Tokens([*entry.ids[:known], *made.ids[again:]], [*entry.ends[:known], *old[again:]])

    def _longest(self, chain: Sequence[int]) -> tuple[int, _Entry | None]:
        """Return how many blocks an earlier text shares, and that text's entry."""
        for shared in range(len(chain), 0, -1):
            entry = self._entries.get(self._blocks.get(chain[shared - 1], 0))
            if entry is not None:
                self._entries.move_to_end(entry.chain[-1])
                return shared, entry
        return 0, None

    def _keep(self, chain: list[int], made: Tokens) -> None:
        entry = _Entry(chain, array("i", made.ids), array("i", made.ends))
        for block in chain:
            longer = self._blocks.get(block)
            if longer is not None and longer == block:
                self._forget(block)  # it ended here: the new one has all of it
            self._blocks[block] = chain[-1]
        self._entries[chain[-1]] = entry
        self.size += len(entry.ids)
        while self.size > self._max_tokens:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: int) -> None:
        entry = self._entries.pop(key)
        self.size -= len(entry.ids)
        for block in entry.chain:
            if self._blocks.get(block) == key:
                del self._blocks[block]


def _chain(text: str, add_special_tokens: bool) -> list[int]:
    """Return the hashes of the full blocks of the text, each on top of the one before."""
    digest = xxhash.xxh3_64_intdigest
    ends = range(_BLOCK_CHARS, len(text) + 1, _BLOCK_CHARS)
    blocks = (text[end - _BLOCK_CHARS : end].encode("utf-8", "surrogatepass") for end in ends)
    chain = accumulate(
        blocks, lambda parent, block: digest(block, parent), initial=int(add_special_tokens)
    )
    return list(chain)[1:]
