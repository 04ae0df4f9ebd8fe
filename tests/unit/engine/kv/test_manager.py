from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

from kvasir.wire.block_hash import chain_hashes, root_hash
from kvasir_engine.kv.block_table import BlockTables
from kvasir_engine.kv.groups import NULL_BLOCK, KVGroupSpec
from kvasir_engine.kv.manager import KVManager

SIZE = 4


def tokens(count: int, start: int = 1) -> npt.NDArray[np.int32]:
    return np.arange(start, start + count, dtype=np.int32)


def make(*windows: int | None, num_blocks: int = 40, caching: bool = True) -> KVManager:
    groups = [KVGroupSpec((i,), SIZE, window) for i, window in enumerate(windows)]
    return KVManager(groups, [num_blocks] * len(groups), caching=caching)


def fill(kv: KVManager, ids: npt.NDArray[np.int32], salt: str = "") -> BlockTables:
    """Tables of a sequence whose tokens `ids` are all computed and findable."""
    tables = kv.new_tables(salt)
    kv.append(tables, kv.blocks_needed(tables, len(ids)))
    kv.commit(tables, ids, len(ids))
    return tables


def free(kv: KVManager, tables: BlockTables) -> None:
    kv.release([tables.held(group) for group in range(len(kv.groups))])


@pytest.mark.parametrize(("length", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (30, 12)])
def test_the_longest_prefix_leaves_one_token_to_compute(length: int, hit: int) -> None:
    kv = make(None)
    first = fill(kv, tokens(15))
    found = kv.find_prefix(tokens(length), root_hash(), b"")
    assert found.num_tokens == hit
    assert found.tables == [first.tables[0][: hit // SIZE]]


def test_hashes_made_elsewhere_are_used_and_never_trusted() -> None:
    kv = make(None)
    fill(kv, tokens(12))
    right = chain_hashes(tokens(12).tolist(), SIZE)
    assert kv.find_prefix(tokens(13), root_hash(), right).num_tokens == 12
    assert kv.find_prefix(tokens(13), root_hash(), right[:16]).num_tokens == 12
    # Another prompt that claims these hashes reads nothing of this one's.
    assert kv.find_prefix(tokens(13, start=50), root_hash(), right).num_tokens == 0
    assert kv.find_prefix(tokens(13), root_hash(), right[:15]).num_tokens == 0


def test_blocks_keep_the_hashes_that_were_made_elsewhere() -> None:
    kv = make(None)
    elsewhere = b"first-made-before"[:16] + b"other-made-before"[:16]
    tables = kv.new_tables(known_hashes=elsewhere)
    kv.append(tables, 3)
    kv.commit(tables, tokens(12), 4)
    kv.commit(tables, tokens(12), 12)
    assert tables.hashes[:2] == [elsewhere[:16], elsewhere[16:]]
    assert len(tables.hashes[2]) == 16
    assert kv.find_prefix(tokens(9), root_hash(), b"").num_tokens == 0
    assert kv.find_prefix(tokens(9), root_hash(), elsewhere).num_tokens == 8


def test_salted_prompts_share_nothing_with_others() -> None:
    kv = make(None)
    fill(kv, tokens(12), salt="a")
    assert kv.find_prefix(tokens(13), root_hash(), b"").num_tokens == 0
    assert kv.find_prefix(tokens(13), root_hash(cache_salt="b"), b"").num_tokens == 0
    assert kv.find_prefix(tokens(13), root_hash(cache_salt="a"), b"").num_tokens == 12


def test_taking_a_hit_holds_its_blocks() -> None:
    kv = make(None)
    free(kv, fill(kv, tokens(12)))
    assert kv.num_available == 39
    tables = kv.new_tables()
    kv.acquire_prefix(tables, kv.find_prefix(tokens(13), tables.root, b""))
    assert kv.num_available == 36
    assert len(tables.hashes) == 3
    kv.append(tables, 36)
    assert kv.find_prefix(tokens(13), tables.root, b"").num_tokens == 12, "held, so not evicted"
    kv.check_integrity()


def test_blocks_outside_the_window_are_given_up_once() -> None:
    kv = make(None, 6)
    tables = fill(kv, tokens(20))
    second = list(tables.tables[1])
    # A query at 12 sees 7 .. 12: block 0 (0 .. 3) is out, block 1 (4 .. 7) is not.
    assert kv.outside_windows(tables, 12) == [[], second[:1]]
    assert kv.outside_windows(tables, 12) == [[], []]
    assert kv.outside_windows(tables, 13) == [[], second[1:2]]
    assert tables.tables[1] == [NULL_BLOCK, NULL_BLOCK, *second[2:]]
    assert tables.tables[0].count(NULL_BLOCK) == 0


def test_a_hit_must_hold_in_every_group() -> None:
    kv = make(None, 6)
    tables = fill(kv, tokens(20))
    kv.release(kv.outside_windows(tables, 20))
    while kv.pools[1].num_available:
        # Whatever the window group no longer holds is overwritten.
        kv.pools[1].allocate(1)
    # Kept: positions 15 .. of 6 before 20, so blocks 3 and 4; a hit of 20 needs 15 .. 19.
    assert kv.find_prefix(tokens(21), tables.root, b"").num_tokens == 20
    # A hit of 16 would need 11 .. 15, and block 2 is gone.
    assert kv.find_prefix(tokens(17), tables.root, b"").num_tokens == 0


def test_a_hit_names_no_block_outside_the_window() -> None:
    kv = make(6)
    tables = fill(kv, tokens(20))
    hit = kv.find_prefix(tokens(21), tables.root, b"")
    assert hit.tables == [[NULL_BLOCK] * 3 + tables.tables[0][3:]]
    taken = kv.new_tables()
    kv.acquire_prefix(taken, hit)
    assert taken.windows_start == [3]


@given(
    windows=st.sampled_from([(None,), (6,), (5, 9), (None, 6), (None, None), (2, None, None)]),
    lost=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12),
    length=st.integers(1, 45),
)
def test_a_hit_is_the_longest_that_every_group_can_serve(
    windows: tuple[int | None, ...], lost: set[tuple[int, int]], length: int
) -> None:
    """Against a search over all lengths, with arbitrary blocks of each group evicted."""
    kv = make(*windows)
    ids = tokens(40)
    tables = kv.new_tables()
    kv.append(tables, 10)
    kept = [set(range(10)) - {i for g, i in lost if g == group} for group in range(len(windows))]
    kv.commit(tables, ids, 40)
    for group, pool in enumerate(kv.pools):
        for index in set(range(10)) - kept[group]:
            pool._drop_block(tables.tables[group][index])

    def served(blocks: int) -> bool:
        return all(
            index in kept[group] or (window and (index + 1) * SIZE <= blocks * SIZE - window + 1)
            for group, window in enumerate(windows)
            for index in range(blocks)
        )

    longest = max(b for b in range(min(10, (length - 1) // SIZE) + 1) if served(b))
    prompt = np.concatenate([ids, ids])[:length]
    assert kv.find_prefix(prompt, tables.root, b"").num_tokens == longest * SIZE


@given(window=st.integers(1, 20), chunk=st.integers(1, 12), length=st.integers(1, 90))
def test_a_sequence_holds_no_more_than_blocks_kept(window: int, chunk: int, length: int) -> None:
    kv = make(None, window)
    tables = kv.new_tables()
    most = [0, 0]
    for start in range(0, length, chunk):
        kv.release(kv.outside_windows(tables, start))
        kv.append(tables, kv.blocks_needed(tables, min(start + chunk, length)))
        most = [max(m, len(tables.held(group))) for group, m in enumerate(most)]
    bound = kv.max_blocks_held(length, chunk)
    assert most[0] == bound[0] == -(-length // SIZE)
    assert most[1] <= bound[1]


@pytest.mark.parametrize(
    ("window", "chunk", "most"),
    [(1, 1, 2), (1, 4, 2), (2, 3, 2), (2, 4, 3), (5, 4, 3), (6, 4, 4), (9, 4, 4), (5, 8, 4)],
)
def test_the_window_before_a_chunk_may_begin_anywhere_in_a_block(
    window: int, chunk: int, most: int
) -> None:
    kv = make(None, window)
    assert kv.max_blocks_held(100, chunk) == [25, most]
    assert kv.max_blocks_held(101, chunk) == [26, most]
    assert kv.max_blocks_held(1, chunk) == [1, 1]


def test_blocks_are_needed_for_what_does_not_fit() -> None:
    kv = make(None, 6)
    tables = kv.new_tables()
    kv.append(tables, 2)
    needed = [kv.blocks_needed(tables, count) for count in (0, 1, 8, 9, 12, 13)]
    assert needed == [0, 0, 0, 1, 1, 2]


def test_a_look_up_that_begins_like_the_last_looks_only_for_the_rest() -> None:
    kv = make(None)
    fill(kv, tokens(16))
    looked_for: list[bytes] = []
    find = kv.pools[0].find

    def noted(hash_: bytes, parent: bytes, token_bytes: bytes) -> int | None:
        looked_for.append(token_bytes)
        return find(hash_, parent, token_bytes)

    kv.pools[0].find = noted  # type: ignore[method-assign]

    def blocks_looked_for(ids: npt.NDArray[np.int32], salt: str = "") -> int:
        looked_for.clear()
        kv.find_prefix(ids, root_hash(cache_salt=salt), b"")
        return len(looked_for)

    assert blocks_looked_for(tokens(13)) == 3
    assert blocks_looked_for(tokens(17)) == 1
    assert blocks_looked_for(tokens(17)) == 0
    assert blocks_looked_for(np.append(tokens(7), [99, 99]).astype(np.int32)) == 1
    assert blocks_looked_for(tokens(17)) == 3
    assert blocks_looked_for(tokens(17), salt="other") == 1
    kv.reset_cache()
    assert blocks_looked_for(tokens(17)) == 1


def test_after_a_failure_all_blocks_are_free_and_nothing_is_known() -> None:
    kv = make(None, 6)
    fill(kv, tokens(20))
    assert kv.find_prefix(tokens(21), root_hash(), b"").num_tokens == 20
    kv.rebuild()
    assert kv.num_available == 39
    assert kv.usage() == 0
    assert kv.find_prefix(tokens(21), root_hash(), b"").num_tokens == 0
    kv.check_integrity()


def test_without_caching_no_hash_is_made() -> None:
    kv = make(None, caching=False)
    tables = fill(kv, tokens(12))
    assert tables.hashes == []
    assert kv.find_prefix(tokens(13), root_hash(), b"").hashes == []


def test_a_block_of_unknown_tokens_is_not_findable() -> None:
    kv = make(None)
    tables = kv.new_tables()
    kv.append(tables, 3)
    kv.commit(tables, tokens(12), 11)
    assert kv.find_prefix(tokens(13), tables.root, b"").num_tokens == 8
    kv.commit(tables, tokens(12), 12)
    assert kv.find_prefix(tokens(13), tables.root, b"").num_tokens == 12


def test_the_fullest_group_counts() -> None:
    groups = [KVGroupSpec((0,), SIZE), KVGroupSpec((1,), SIZE, 8)]
    kv = KVManager(groups, [21, 11])
    tables = kv.new_tables()
    kv.append(tables, 5)
    assert kv.usage() == 0.5
    assert kv.num_available == 5
    assert kv.can_append(5)
    assert not kv.can_append(6)


def test_without_caching_nothing_is_found() -> None:
    kv = make(None, caching=False)
    fill(kv, tokens(12))
    assert kv.find_prefix(tokens(13), root_hash(), b"").num_tokens == 0


def test_a_reset_forgets_every_group() -> None:
    kv = make(None, 6)
    tables = fill(kv, tokens(20))
    kv.reset_cache()
    assert kv.find_prefix(tokens(21), tables.root, b"").num_tokens == 0
    assert kv.usage() > 0, "what is held stays held"
    free(kv, tables)
    kv.check_integrity()


def test_a_second_look_up_sees_what_was_evicted_since() -> None:
    kv = make(None, num_blocks=6)
    tables = fill(kv, tokens(12))
    free(kv, tables)
    assert kv.find_prefix(tokens(13), root_hash(), b"").num_tokens == 12
    evicted = [pool.allocate(4) for pool in kv.pools]
    kv.release(evicted)
    assert kv.find_prefix(tokens(13), root_hash(), b"").num_tokens < 12


@pytest.mark.parametrize("same", [0, 3, 4, 9, 12])
def test_look_ups_that_begin_alike_find_the_same_as_alone(same: int) -> None:
    kv = make(None)
    one = tokens(16)
    other = np.concatenate([one[:same], tokens(16 - same, 100)])
    fill(kv, one)
    fill(kv, other)
    for ids in (one, other, one):
        found = kv.find_prefix(ids, root_hash(), b"")
        assert found.num_tokens == 12
        assert b"".join(found.hashes) == chain_hashes(ids[:12].tolist(), SIZE)
    salted = kv.find_prefix(one, root_hash(cache_salt="other"), b"")
    assert salted.num_tokens == 0


def test_a_tail_is_copied_where_one_token_is_left_to_compute() -> None:
    kv = make(None, None)
    first = fill(kv, tokens(10))
    kv.keep_tail(first, tokens(10), 10)
    root = kv.new_tables().parent
    hit = kv.find_prefix(tokens(11), root, b"")
    assert hit.num_tokens == 8
    tail = kv.find_tail(tokens(11), root, hit)
    assert tail == [table[2] for table in first.tables]

    # One token less, another token, one block more: nothing that a copy would do for.
    assert kv.find_tail(tokens(10), root, hit) is None
    assert kv.find_tail(np.append(tokens(9), [99, 11]).astype(np.int32), root, hit) is None
    assert kv.find_tail(tokens(13), root, hit) is None

    second = kv.new_tables()
    kv.acquire_prefix(second, hit)
    assert tail is not None
    pairs = kv.copy_tail(second, tail)
    assert [source for source, _ in pairs] == tail
    assert [copy for _, copy in pairs] == [table[2] for table in second.tables]
    assert [len(table) for table in second.tables] == [3, 3]
    free(kv, first)
    # The sources are held until the copy was made.
    assert all(pool.num_referenced == 4 for pool in kv.pools)
    kv.release([[block] for block in tail])
    assert all(pool.num_referenced == 3 for pool in kv.pools)


@pytest.mark.parametrize("length", [8, 12])
def test_a_whole_block_is_no_tail(length: int) -> None:
    kv = make(None)
    tables = fill(kv, tokens(length))
    kv.keep_tail(tables, tokens(length), length)
    root = kv.new_tables().parent
    hit = kv.find_prefix(tokens(length + 1), root, b"")
    assert kv.find_tail(tokens(length + 1), root, hit) is None


def test_what_is_more_than_a_block_beyond_the_findable_ones_is_no_tail() -> None:
    """As of a sequence whose last full block has not been committed yet."""
    kv = make(None)
    tables = kv.new_tables()
    kv.append(tables, 2)
    kv.keep_tail(tables, tokens(SIZE + 2), SIZE + 2)
    assert kv.pools[0].find_tail(tables.parent, tokens(SIZE + 2).tobytes()) is None


def test_a_tail_may_be_a_block_but_for_one_token() -> None:
    kv = make(None)
    first = fill(kv, tokens(11))
    kv.keep_tail(first, tokens(11), 11)
    root = kv.new_tables().parent
    hit = kv.find_prefix(tokens(12), root, b"")
    assert kv.find_tail(tokens(12), root, hit) == [first.tables[0][2]]
