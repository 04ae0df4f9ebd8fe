"""The search against a dense reference, and against all sequences of a tiny vocabulary."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from kvasir_engine.core.beam_search import NEVER, BeamSearch
from kvasir_engine.request import FinishReason

Table = dict[tuple[int, ...], npt.NDArray[np.float32]]


def random_model(seed: int, vocab: int, length: int) -> Table:
    """Log-probabilities after every prefix shorter than `length`."""
    draw = np.random.default_rng(seed)
    table: Table = {}
    for size in range(length):
        for prefix in itertools.product(range(vocab), repeat=size):
            logits = draw.normal(size=vocab) * 2
            table[prefix] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
    return table


def run(search: BeamSearch, table: Table) -> list[tuple[tuple[int, ...], float]]:
    steps = 0
    while not search.done:
        offers = [table[beam.tokens] for beam in search.running]
        best = [np.argsort(-o, kind="stable")[: search.candidates] for o in offers]
        search.advance(
            [b.astype(np.int32) for b in best],
            [o[b] for o, b in zip(offers, best, strict=True)],
        )
        steps += 1
        assert steps <= search.max_new_tokens
    return [(beam.tokens, beam.score) for beam in search.finished]


def dense(
    table: Table, vocab: int, width: int, stops: set[int], most: int, penalty: float, early: bool
) -> list[tuple[tuple[int, ...], float]]:
    """transformers' rules, over full arrays: a beam not yet in use has a score of -1e9."""
    nothing: tuple[int, ...] = ()
    running = [(nothing, 0.0)] + [(nothing, NEVER)] * (width - 1)
    finished = [(nothing, NEVER)] * width
    filled = 0
    improvable = True
    for length in range(1, most + 1):
        grown = [
            ((*tokens, token), score + float(table[tokens][token]))
            for tokens, score in running
            for token in range(vocab)
        ]
        grown.sort(key=lambda each: -each[1])
        top = grown[: max(2, 1 + len(stops)) * width]
        ends = [tokens[-1] in stops or length == most for tokens, _ in top]
        if improvable and not (early and filled == width):
            new = [
                (tokens, score / length**penalty)
                for (tokens, score), end in zip(top[:width], ends[:width], strict=True)
                if end and score > NEVER / 2
            ]
            filled = min(width, filled + len(new))
            finished = sorted([*new, *finished], key=lambda each: -each[1])[:width]
        running = [each for each, end in zip(top, ends, strict=True) if not end][:width]
        if not running:
            break
        worst = finished[-1][1] if filled == width else NEVER
        improvable = improvable and running[0][1] / length**penalty > worst
        if not improvable or (early and filled == width):
            break
    return [each for each in finished if each[1] > NEVER / 2]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.integers(3, 5),
    width=st.integers(1, 4),
    stops=st.sets(st.integers(0, 2), max_size=2),
    most=st.integers(1, 4),
    penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early=st.booleans(),
)
def test_the_beams_are_those_of_the_dense_rules(
    seed: int, vocab: int, width: int, stops: set[int], most: int, penalty: float, early: bool
) -> None:
    table = random_model(seed, vocab, most)
    found = run(BeamSearch(width, penalty, early, frozenset(stops), most), table)
    wanted = dense(table, vocab, width, stops, most, penalty, early)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    assert [score for _, score in found] == pytest.approx([s for _, s in wanted], abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), penalty=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_a_width_that_cuts_nothing_finds_the_best_of_all_sequences(
    seed: int, penalty: float
) -> None:
    """Without stop ids, 3 tokens of 4: the last step looks at all 64 sequences."""
    vocab, most = 4, 3
    table = random_model(seed, vocab, most)
    scores = {
        tokens: sum(float(table[tokens[:i]][tokens[i]]) for i in range(most)) / most**penalty
        for tokens in itertools.product(range(vocab), repeat=most)
    }
    best = sorted(scores, key=lambda tokens: -scores[tokens])[:16]
    found = run(BeamSearch(16, penalty, False, frozenset(), most), table)
    assert [tokens for tokens, _ in found] == best


def test_a_stop_id_beyond_the_width_ends_nothing() -> None:
    search = BeamSearch(1, 1.0, False, frozenset({9}), 5)
    search.advance([np.array([4, 9], np.int32)], [np.array([-0.1, -0.2], np.float32)])
    assert search.finished == []
    assert [beam.tokens for beam in search.running] == [(4,)]


def test_reasons_tell_stop_ids_from_the_limit() -> None:
    search = BeamSearch(2, 1.0, False, frozenset({9}), 1)
    search.advance([np.array([4, 9, 5], np.int32)], [np.array([-0.1, -0.2, -0.3], np.float32)])
    assert search.done
    assert [beam.reason for beam in search.finished] == [FinishReason.LENGTH, FinishReason.STOP]
