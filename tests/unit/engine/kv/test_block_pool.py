from __future__ import annotations

from collections import OrderedDict
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir_engine.kv.block_pool import BlockPool, OutOfBlocksError

NUM_BLOCKS = 9
ROOT = b"root"


class Mirror:
    """The findable blocks, rebuilt from the pool's events alone."""

    def __init__(self) -> None:
        self.findable: dict[bytes, tuple[bytes, bytes]] = {}
        self.cleared_times = 0

    def stored(self, hash_: bytes, parent: bytes, token_bytes: bytes) -> None:
        assert hash_ not in self.findable
        self.findable[hash_] = (parent, token_bytes)

    def removed(self, hash_: bytes) -> None:
        del self.findable[hash_]

    def cleared(self) -> None:
        self.findable.clear()
        self.cleared_times += 1


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model of dictionaries: holders by block, contents, order of eviction."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = Mirror()
        self.pool = BlockPool(NUM_BLOCKS, listener=self.mirror)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.evictable: OrderedDict[int, None] = OrderedDict()
        """Unreferenced blocks that had content when they were released, oldest first."""
        self.hashes = 0

    def references(self, block: int) -> int:
        return sum(blocks.count(block) for blocks in self.held)

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        available = self.pool.num_available
        if count > available:
            with pytest.raises(OutOfBlocksError, match=f"{count} blocks asked for, {available}"):
                self.pool.allocate(count)
            return
        plain = available - len(self.evictable)
        victims = list(self.evictable)[: max(0, count - plain)]
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not any(self.references(block) for block in blocks), "handed out twice"
        assert 0 not in blocks
        assert set(victims) <= set(blocks), "the least recently used go first, after the free ones"
        assert not (set(self.evictable) - set(victims)) & set(blocks)
        for block in blocks:
            self.evictable.pop(block, None)
            self.content.pop(block, None)
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(blocks)
        for block in reversed(blocks):
            if not self.references(block) and block in self.content:
                self.evictable[block] = None

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """A fork: another table with the same blocks."""
        blocks = list(data.draw(st.sampled_from(self.held)))
        self.pool.share(blocks)
        self.held.append(blocks)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([b for blocks in self.held for b in blocks]))
        known = sorted(self.content.values())
        again = bool(known) and data.draw(st.booleans())
        hash_ = data.draw(st.sampled_from(known)) if again else b"%04d" % self.hashes
        self.hashes += 1
        new = block not in self.content and hash_ not in self.content.values()
        assert self.pool.commit(block, hash_, ROOT, b"tokens" + hash_) is new
        if new:
            self.content[block] = hash_

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block, hash_ = data.draw(st.sampled_from(sorted(self.content.items())))
        found = self.pool.find(hash_, ROOT, b"tokens" + hash_)
        assert found == block
        self.pool.share([block])
        self.evictable.pop(block, None)
        self.held.append([block])

    @rule()
    def reset(self) -> None:
        before, had = self.mirror.cleared_times, bool(self.content)
        self.pool.reset_cache()
        assert self.mirror.cleared_times == before + had
        self.content.clear()
        self.evictable.clear()

    @invariant()
    def states_add_up(self) -> None:
        pool = self.pool
        pool.check_integrity()
        referenced = {block for blocks in self.held for block in blocks}
        cached = set(self.content) - referenced
        free = pool.capacity - len(referenced) - len(cached)
        assert pool.num_referenced == len(referenced)
        assert pool.num_available == free + len(cached)
        assert pool.num_cached == len(self.content)
        for block in range(1, NUM_BLOCKS):
            assert pool.references(block) == self.references(block)

    @invariant()
    def what_is_findable_is_what_was_announced(self) -> None:
        assert set(self.mirror.findable) == set(self.content.values())
        for block, hash_ in self.content.items():
            parent, token_bytes = self.mirror.findable[hash_]
            assert self.pool.find(hash_, parent, token_bytes) == block


TestPoolMachine = PoolMachine.TestCase


def test_a_hit_is_confirmed_by_parent_and_tokens() -> None:
    pool = BlockPool(3)
    [block] = pool.allocate(1)
    pool.commit(block, b"h", b"parent", b"tokens")
    assert pool.find(b"h", b"parent", b"tokens") == block
    for lower, higher in ((b"other", b"q"), (b"", b"parent2")):
        assert pool.find(b"h", lower, b"tokens") is None
        assert pool.find(b"h", higher, b"tokens") is None
    for token_bytes in (b"other", b"v"):
        assert pool.find(b"h", b"parent", token_bytes) is None
    assert pool.find(b"g", b"parent", b"tokens") is None


def test_a_prefix_outlives_its_tail() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for index, block in enumerate(blocks):
        pool.commit(block, b"%d" % index, ROOT, b"")
    pool.release(blocks)
    pool.allocate(2)
    assert pool.find(b"0", ROOT, b"") == blocks[0]
    assert pool.num_cached == 1


def test_nothing_is_findable_with_caching_off() -> None:
    pool = BlockPool(3, caching=False)
    [block] = pool.allocate(1)
    assert not pool.commit(block, b"h", ROOT, b"")
    assert pool.find(b"h", ROOT, b"") is None


def test_what_was_found_is_still_there_while_nothing_is_forgotten() -> None:
    pool = BlockPool(3)
    pool.reset_cache()
    assert pool.forgotten == 0
    blocks = pool.allocate(2)
    for index, block in enumerate(blocks):
        pool.commit(block, b"%d" % index, ROOT, b"")
    pool.release(blocks)
    assert pool.forgotten == 0
    pool.allocate(1)
    assert pool.forgotten == 1
    pool.reset_cache()
    assert pool.forgotten == 2


def test_held_blocks_are_counted_without_the_null_block() -> None:
    pool = BlockPool(4)
    one, two = pool.allocate(2)
    pool.release([two])
    assert pool.num_held([0, one, two, 0, one]) == 2


def test_a_pool_in_its_place_is_empty_and_says_so() -> None:
    for listener in (Mirror(), None):
        pool = BlockPool(3, listener=listener)
        [block] = pool.allocate(1)
        pool.commit(block, b"h", ROOT, b"")
        made = pool.rebuilt()
        assert (made.capacity, made.num_available, made.num_cached) == (2, 2, 0)
        if listener is not None:
            assert (listener.findable, listener.cleared_times) == ({}, 1)
        made.commit(made.allocate(1)[0], b"g", ROOT, b"")
        assert listener is None or set(listener.findable) == {b"g"}
    off = BlockPool(3, caching=False).rebuilt()
    assert not off.commit(off.allocate(1)[0], b"h", ROOT, b"")


def test_the_smallest_pool_has_one_block() -> None:
    assert BlockPool(2).allocate(1) == [1]


def test_releasing_twice_is_noticed() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(blocks)


def test_a_pool_needs_a_block_beside_the_null_block() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)


def test_integrity_check_sees_a_block_that_is_neither_free_nor_held() -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    pool._refs[1] = 0
    with pytest.raises(AssertionError, match="eviction list"):
        pool.check_integrity()


def test_integrity_check_sees_a_hash_without_content() -> None:
    pool = BlockPool(4)
    [block] = pool.allocate(1)
    pool.commit(block, b"h", ROOT, b"")
    pool._content[block] = None
    with pytest.raises(AssertionError, match="hash index"):
        pool.check_integrity()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda pool: pool._by_hash.clear(), "hash index"),
        (lambda pool: setattr(pool, "_num_free", 4), "eviction list"),
        (lambda pool: setattr(pool, "_num_free", 0), "eviction list"),
        (lambda pool: pool._refs.__setitem__(0, 1), "hash index"),
        (lambda pool: pool._by_hash.__setitem__(b"g", 2), "hash index"),
        (lambda pool: pool._tails.clear(), "tails"),
        (lambda pool: pool._tail_keys.clear(), "tails"),
    ],
)
def test_integrity_check_sees_what_does_not_add_up(spoil: Any, told: str) -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.commit(first, b"h", ROOT, b"")
    pool.keep_tail(second, ROOT, b"abc")
    pool.check_integrity()
    spoil(pool)
    with pytest.raises(AssertionError, match=told):
        pool.check_integrity()


def test_integrity_check_sees_content_of_the_null_block() -> None:
    pool = BlockPool(4)
    pool.commit(0, b"h", ROOT, b"")
    with pytest.raises(AssertionError, match="hash index"):
        pool.check_integrity()


def test_a_tail_is_findable_until_its_block_is_handed_out_and_no_event_names_it() -> None:
    mirror = Mirror()
    pool = BlockPool(4, listener=mirror)
    [tail] = pool.allocate(1)
    pool.keep_tail(tail, ROOT, b"abc")
    assert pool.find_tail(ROOT, b"abc") == tail
    assert pool.find_tail(ROOT, b"ab") is pool.find_tail(b"other", b"abc") is None
    pool.release([tail])
    assert tail not in pool.allocate(2), "blocks with nothing in them go first"
    assert pool.find_tail(ROOT, b"abc") == tail
    pool.check_integrity()
    assert pool.allocate(1) == [tail]
    assert pool.find_tail(ROOT, b"abc") is None
    pool.check_integrity()
    assert not mirror.findable


def test_of_two_equal_tails_the_first_is_kept() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.keep_tail(first, ROOT, b"abc")
    pool.keep_tail(second, ROOT, b"abc")
    pool.release([first, second])
    assert pool.find_tail(ROOT, b"abc") == first
    pool.check_integrity()


def test_a_block_that_is_written_on_has_its_last_tail_only() -> None:
    pool = BlockPool(4)
    [block] = pool.allocate(1)
    for tail in (b"abc", b"abcd"):
        pool.keep_tail(block, ROOT, tail)
        pool.check_integrity()
    assert (pool.find_tail(ROOT, b"abc"), pool.find_tail(ROOT, b"abcd")) == (None, block)


def test_a_reset_and_a_pool_without_caching_forget_tails() -> None:
    for pool in (BlockPool(4), BlockPool(4, caching=False)):
        [tail] = pool.allocate(1)
        pool.keep_tail(tail, ROOT, b"abc")
        assert (pool.find_tail(ROOT, b"abc") == tail) is pool.caching
        pool.reset_cache()
        assert pool.find_tail(ROOT, b"abc") is None
        pool.check_integrity()
