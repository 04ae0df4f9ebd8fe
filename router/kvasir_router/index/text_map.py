"""Which KV blocks a prompt's text determines, as engines report it."""

from collections.abc import Iterator, Sequence

from kvasir.wire.block_hash import HASH_BYTES
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.options.policy_options import MAX_TEXT_BLOCKS

BYTES_PER_BLOCK = 150
"""Bytes of memory for a text block: its hash, what it determines, their place in a dictionary."""

_KEY_BITS = 8 * HASH_BYTES
_KEY = (1 << _KEY_BITS) - 1


class TextMap:
    """Text block -> the KV blocks that the text up to its end determines.

    Bounded by two generations: when the younger is full it becomes the older, and what the older
    one then still has is forgotten. A chain that is used goes into the younger one as a whole.
    """

    def __init__(self, max_blocks: int = MAX_TEXT_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self._room = max(1, max_blocks // 2)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        return len(self) * BYTES_PER_BLOCK

    def learn(self, report: PromptReport) -> None:
        """Take what a report says; a later one is believed over a former one. A report whose parts
        do not fit together is left out."""
        hashes = report.kv_hashes
        if len(hashes) != HASH_BYTES * len(report.text_hashes):
            return
        for at, (text, blocks) in enumerate(zip(report.text_hashes, report.kv_blocks, strict=True)):
            key = hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES]
            self._young[text] = blocks << _KEY_BITS | int.from_bytes(key, "little")
        self._turn()

    def at(self, text: int) -> tuple[int, int]:
        """Return what the text up to this block determines: how many KV blocks, from the first on,
        and the last one's hash as a little-endian number. (0, 0) if nothing, or if it is not
        known."""
        found = self._young.get(text) or self._old.get(text, 0)
        return found >> _KEY_BITS, found & _KEY

    def known(self, chain: Sequence[int]) -> int:
        """Up to which of its blocks the chain is known: to the deepest one that is.

        A bisection, as engines report what they have not reported, and chains are forgotten as a
        whole; if the first block is unknown none the less, a search from the end.
        """
        young, old = self._young, self._old
        if not chain or not (young or old):
            return 0
        if chain[0] not in young and chain[0] not in old:
            ends = range(len(chain), 0, -1)
            return next((n for n in ends if chain[n - 1] in young or chain[n - 1] in old), 0)
        low, high = 0, len(chain)
        while high - low > 1:
            middle = (low + high) // 2
            if chain[middle] in young or chain[middle] in old:
                low = middle
            else:
                high = middle
        return high

    def contents(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield what is known now, the younger half last: text block, number of KV blocks, the last
        one's hash."""
        known = [*self._old.items(), *self._young.items()]
        for text, found in known:
            yield text, found >> _KEY_BITS, (found & _KEY).to_bytes(HASH_BYTES, "little")

    def clear(self) -> None:
        """Know nothing any more."""
        self._young, self._old = {}, {}

    def used(self, chain: Sequence[int]) -> None:
        """The chain is wanted in future too, as far as it is known."""
        if not self._old:
            return
        known = self.known(chain)
        if known and chain[known - 1] not in self._young:
            for text in chain[:known]:
                found = self._old.pop(text, None)
                if found is not None:
                    self._young[text] = found
            self._turn()

    def _turn(self) -> None:
        if len(self._young) >= self._room:
            self._young, self._old = {}, self._young
