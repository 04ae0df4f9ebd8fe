"""Which rows share leading blocks, against trying every group."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from kvasir_engine.runner.prefix_groups import (
    MAX_GROUPS,
    PrefixGroup,
    PrefixGroups,
    PrefixTiles,
    best_groups,
)
from kvasir_engine.step_plan import RowInit, RowSampling, StepPlan


def table(*blocks: int) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


def common(tables: list[np.ndarray]) -> int:
    columns = zip(*(each.tolist() for each in tables), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def most_saved(tables: list[np.ndarray]) -> int:
    """What the best single group saves."""
    return max(
        (size - 1) * common([tables[i] for i in chosen])
        for size in range(2, len(tables) + 1)
        for chosen in itertools.combinations(range(len(tables)), size)
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_first_group_saves_most_and_groups_are_apart(seed: int) -> None:
    draw = random.Random(seed)
    tables = [
        table(*(draw.choice((1, 1, 2)) * 10 + depth for depth in range(draw.randint(0, 6))))
        for _ in range(7)
    ]
    groups = best_groups(tables)
    assert max((group.saved for group in groups), default=0) == most_saved(tables)
    entries = [entry for group in groups for entry in group.entries]
    assert len(entries) == len(set(entries))
    for group in groups:
        assert group.blocks <= common([tables[entry] for entry in group.entries])
        assert len(group.entries) > 1


def test_no_more_groups_than_tiles_are_kept_for() -> None:
    tables = [table(i // 2, i) for i in range(20)]
    assert len(best_groups(tables)) == MAX_GROUPS == 8


def test_tiles() -> None:
    tiles = PrefixTiles(block_size=16, entries=32)
    many = tuple(range(2, 2 + 32 + 1))
    packed = tiles.pack([PrefixGroup(many, 3), PrefixGroup((0, 1), 2)], 40)
    count = tiles.count(40)
    members, lens, by_entry = np.split(packed, [count * 32, count * 33])
    members = members.reshape(count, 32)
    assert members[0].tolist() == list(many[:-1])
    assert members[1, :2].tolist() == [many[-1], -1]
    assert members[2, :3].tolist() == [0, 1, -1]
    assert (members[3:] == -1).all()
    assert lens[:4].tolist() == [48, 48, 32, 0]
    assert by_entry[:3].tolist() == [32, 32, 48]
    assert by_entry[-5:].tolist() == [0] * 5


def test_a_tile_is_as_many_queries_as_a_program_takes() -> None:
    assert [PrefixTiles.for_heads(group, 16).entries for group in (1, 2, 4, 7, 8, 32)] == [
        128,
        64,
        32,
        16,
        16,
        16,
    ]


def plan(tables: dict[int, np.ndarray]) -> StepPlan:
    nothing = table()
    inits = [
        RowInit(row, table(1), 1, 0, [blocks], RowSampling(seed=0))
        for row, blocks in tables.items()
    ]
    return StepPlan(0, nothing, nothing, nothing, 0, nothing, nothing, inits=inits)


def test_a_group_must_save_more_than_it_costs() -> None:
    groups = PrefixGroups(block_bytes=1 << 20, query_bytes=0)
    groups.apply(plan({0: table(*range(1, 20)), 1: table(*range(1, 21)), 2: table(50)}))
    assert groups.groups_of(table(0, 1, 2)) == []
    groups.apply(plan({2: table(*range(1, 30))}))
    assert groups.groups_of(table(0, 1, 2)) == [PrefixGroup((0, 1, 2), 19)]


def test_groups_are_of_entries_and_follow_the_batch() -> None:
    groups = PrefixGroups(block_bytes=1 << 30, query_bytes=0)
    groups.apply(plan({3: table(1, 2, 9), 5: table(7), 8: table(1, 2, 4)}))
    assert groups.groups_of(table(3, 5, 8)) == [PrefixGroup((0, 2), 2)]
    assert groups.groups_of(table(3, 5)) == []
    assert groups.groups_of(table(5, 8, 3)) == [PrefixGroup((1, 2), 2)]
    kept = groups.groups_of(table(5, 8, 3))
    assert groups.groups_of(table(5, 8, 3)) is kept
    groups.apply(plan({8: table(6)}))
    assert groups.groups_of(table(5, 8, 3)) == []
