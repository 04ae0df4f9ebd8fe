"""Decodes' keys in parts: every key once, as many parts as programs, the largest first."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.usefixtures("triton_interpreter")

lengths = st.lists(st.integers(1, 400), min_size=1, max_size=40)


def divided(lens, **given):
    from kvasir_engine.attention.triton.split_kv import split_keys

    seq_lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    return split_keys(seq_lens, **given).tolist()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    lens=lengths,
    extra=st.integers(1, 40),
    keys=st.sampled_from([16, 32]),
    least=st.sampled_from([16, 100]),
)
def test_every_key_is_in_one_part(lens, extra, keys, least) -> None:
    parts = divided(lens, extra=extra, keys=keys, least=least)
    assert len(parts) == len(lens) + extra
    used = [part for part in parts if part[0] >= 0]
    # What is none comes last: the programs of those before end the later.
    assert parts[: len(used)] == used
    tiles = [-(-(end - begin) // keys) for _, which, _, begin, end in used if which == 0]
    assert tiles == sorted(tiles, reverse=True)
    for entry, length in enumerate(lens):
        own = [(at, part) for at, part in enumerate(used) if part[0] == entry]
        count = len(own)
        assert [(at - own[0][0], *part[1:3]) for at, part in own] == [
            (n, n, count) for n in range(count)
        ]
        bounds = [(begin, end) for _, (*_, begin, end) in own]
        assert (bounds[0][0], bounds[-1][1]) == (0, length)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(bounds))
        assert all(begin < end for begin, end in bounds)
        assert all((end - begin) % keys == 0 for begin, end in bounds[:-1])
        assert count == 1 or bounds[0][1] >= least // 2


def test_a_long_context_among_short_ones_is_divided_and_they_are_not() -> None:
    parts = divided([64_000] + [1_000] * 63, extra=32, keys=128, least=128)
    used = [part for part in parts if part[0] >= 0]
    counts = {entry: count for entry, _, count, *_ in used}
    assert set(counts.values()) == {1, counts[0]}
    # Each as long as a thirty-second of all keys at most, 3,968.
    assert counts[0] >= 16
    assert max(end - begin for *_, begin, end in used) <= 4096
    # Its parts take longest.
    assert [entry for entry, *_ in used[: counts[0]]] == [0] * counts[0]


@pytest.mark.slow
def test_more_entries_than_a_kernel_is_made_for() -> None:
    lens = [1 + 7 * (entry % 50) for entry in range(700)]
    used = [part for part in divided(lens, extra=8, keys=16, least=16) if part[0] >= 0]
    assert {part[0] for part in used} == set(range(700))
