"""The pool of one KV group's physical blocks: allocation, reference counts, LRU of cached blocks.

A block is in exactly one of three states: *free* (no content worth keeping), *cached* (content
findable by hash, nobody holds it, evicted least recently used first) or *referenced* (held by at
least one table). free + cached + referenced = all blocks but the null block, always.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class BlockListener(Protocol):
    """Listener to blocks that become findable and that stop being so."""

    def stored(self, hash_: bytes, parent: bytes, token_bytes: bytes) -> None:
        """Note a full block's hash, its parent's, and its token ids (little-endian int32)."""
        ...

    def removed(self, hash_: bytes) -> None:
        """Note that the block was evicted or withdrawn."""
        ...

    def cleared(self) -> None:
        """Note that every cached block was forgotten at once."""
        ...


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free or evictable; the scheduler checks before."""


@dataclass(frozen=True, slots=True)
class _Content:
    """Content of a findable block, to confirm a hit beyond its hash."""

    hash: bytes
    parent: bytes
    token_bytes: bytes


class BlockPool:
    """Blocks 1 .. num_blocks - 1; block 0 is the null block and never handed out."""

    def __init__(
        self, num_blocks: int, *, caching: bool = True, listener: BlockListener | None = None
    ) -> None:
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks must be at least 2 (one is the null block), got {num_blocks}."
            )
        self.num_blocks = num_blocks
        self.caching = caching
        self._listener = listener
        self._refs = [0] * num_blocks
        self._content: list[_Content | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._tails: dict[tuple[bytes, bytes], int] = {}
        """Partly filled blocks by the hash before them and their token ids; no event names them."""
        self._tail_keys: dict[int, tuple[bytes, bytes]] = {}
        # A doubly linked list through two arrays, block 0 as its sentinel: the next victim is
        # next[0]. Blocks without content are put at the front, cached ones at the back.
        self._next = [*range(1, num_blocks), 0]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self._num_free = num_blocks - 1
        self.forgotten = 0
        """Number of contents dropped so far: while it stays, what was found before is still
        there."""

    @property
    def capacity(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def num_available(self) -> int:
        """Blocks that allocate() can hand out now: free ones and cached ones."""
        return self._num_free

    @property
    def num_referenced(self) -> int:
        """Blocks held by at least one table."""
        return self.capacity - self._num_free

    @property
    def num_cached(self) -> int:
        """Findable blocks, referenced or not."""
        return len(self._by_hash)

    def references(self, block: int) -> int:
        """Return the number of tables that hold `block`."""
        return self._refs[block]

    def num_held(self, blocks: Sequence[int]) -> int:
        """Return the number of `blocks` that some table holds; the null block never counts."""
        return sum(map(bool, map(self._refs.__getitem__, blocks)))

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each, evicting the least recently used."""
        if count > self._num_free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self._num_free} available.")
        blocks = []
        for _ in range(count):
            block = self._next[0]
            self._unlink(block)
            self._drop_block(block)
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each; a cached block leaves the eviction list."""
        refs = self._refs
        for block in blocks:
            count = refs[block]
            if not count:
                self._unlink(block)
            refs[block] = count + 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each, last block first so that a prefix outlives its tail."""
        counts = self._refs
        for block in reversed(blocks):
            refs = counts[block] - 1
            if refs < 0:
                raise AssertionError(f"block {block} was released more often than it was taken.")
            counts[block] = refs
            if refs == 0:
                keep = self._content[block] is not None or block in self._tail_keys
                self._link(block, at_back=keep)

    def find(self, hash_: bytes, parent: bytes, token_bytes: bytes) -> int | None:
        """Return the block with this content, or None; equal hashes of other content are no hit."""
        block = self._by_hash.get(hash_)
        if block is None:
            return None
        content = self._content[block]
        if content is None or content.parent != parent or content.token_bytes != token_bytes:
            return None
        return block

    def commit(self, block: int, hash_: bytes, parent: bytes, token_bytes: bytes) -> bool:
        """Make a referenced, fully written block findable; False if the same hash already is."""
        if not self.caching or hash_ in self._by_hash or self._content[block] is not None:
            return False
        self._content[block] = _Content(hash_, parent, token_bytes)
        self._by_hash[hash_] = block
        if self._listener is not None:
            self._listener.stored(hash_, parent, token_bytes)
        return True

    def keep_tail(self, block: int, parent: bytes, token_bytes: bytes) -> None:
        """Make a referenced, partly filled block findable by what it begins with, and only that.

        Its owner may write on behind these tokens.
        """
        key = (parent, token_bytes)
        if self.caching and key not in self._tails:
            self._forget_tail(block)
            self._tails[key], self._tail_keys[block] = block, key

    def find_tail(self, parent: bytes, token_bytes: bytes) -> int | None:
        """Return the block that begins with these tokens and ends with them, or None."""
        return self._tails.get((parent, token_bytes))

    def reset_cache(self) -> None:
        """Forget the content of every block, also of those in use."""
        self._tails.clear()
        self._tail_keys.clear()
        if not self._by_hash:
            return
        for block in self._by_hash.values():
            self._content[block] = None
        self._by_hash.clear()
        self.forgotten += 1
        if self._listener is not None:
            self._listener.cleared()

    def rebuilt(self) -> BlockPool:
        """Return a pool in its place, all of whose blocks are free."""
        if self._listener is not None:
            self._listener.cleared()
        return BlockPool(self.num_blocks, caching=self.caching, listener=self._listener)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the states add up; for tests and for an idle core."""
        listed, block = set(), self._next[0]
        while block:
            listed.add(block)
            block = self._next[block]
        unreferenced = {b for b in range(1, self.num_blocks) if self._refs[b] == 0}
        if listed != unreferenced or len(listed) != self._num_free:
            raise AssertionError("the eviction list does not hold exactly the unreferenced blocks.")
        contents = {b for b in range(self.num_blocks) if self._content[b] is not None}
        if contents != set(self._by_hash.values()) or self._refs[0] or 0 in contents:
            raise AssertionError("the hash index and the blocks' contents differ.")
        if {key: block for block, key in self._tail_keys.items()} != self._tails:
            raise AssertionError("the tails' index and their blocks differ.")

    def _drop_block(self, block: int) -> None:
        self._forget_tail(block)
        content = self._content[block]
        if content is not None:
            self._content[block] = None
            del self._by_hash[content.hash]
            self.forgotten += 1
            if self._listener is not None:
                self._listener.removed(content.hash)

    def _forget_tail(self, block: int) -> None:
        key = self._tail_keys.pop(block, None)
        if key is not None:
            del self._tails[key]

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self._num_free -= 1

    def _link(self, block: int, *, at_back: bool) -> None:
        before = self._prev[0] if at_back else 0
        after = 0 if at_back else self._next[0]
        self._prev[block], self._next[block] = before, after
        self._next[before] = self._prev[after] = block
        self._num_free += 1
