"""Faults come in a random order that a seed repeats, and within the rules."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soaking.cluster_faults import KINDS
from soaking.schedule import Kind, Schedule

EFFECTS = {kind.name: kind.effect for kind in KINDS}


def draws(seed: int, count: int = 180) -> list[str]:
    schedule = Schedule(KINDS, seed)
    return [schedule.draw(i / count, (), engines_ready=True).name for i in range(count)]


def test_a_seed_repeats_the_order_and_an_hour_has_every_kind_several_times() -> None:
    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    counts = Counter(draws(1))
    assert set(counts) == set(EFFECTS)
    assert min(counts.values()) >= 3


@given(st.integers(0, 2**32))
def test_two_deaths_are_never_next_to_each_other(seed: int) -> None:
    for before, after in pairwise(draws(seed, 40)):
        assert (EFFECTS[before], EFFECTS[after]) != ("death", "death")


def test_the_operator_is_spared_after_a_third_of_the_run() -> None:
    names = draws(3)
    last = max(i for i, n in enumerate(names) if n.startswith(("operator", "API server")))
    assert 0.2 < last / len(names) <= 0.35


@given(st.sets(st.sampled_from(sorted(EFFECTS))), st.booleans(), st.integers(0, 1000))
def test_what_is_under_way_or_has_no_engines_waits(
    busy: set[str], engines_ready: bool, seed: int
) -> None:
    schedule = Schedule(KINDS, seed)
    try:
        kind = schedule.draw(0.1, busy, engines_ready=engines_ready)
    except LookupError:
        return
    assert kind.name not in busy
    assert engines_ready or kind.effect not in ("death", "engines", "nodes")
    if kind.effect in ("nodes", "cluster"):
        assert kind.effect not in {EFFECTS[name] for name in busy}


def test_where_nothing_is_possible_it_says_so() -> None:
    schedule = Schedule([Kind("x", "death")], 0)
    with pytest.raises(LookupError):
        schedule.draw(0.0, (), engines_ready=False)
