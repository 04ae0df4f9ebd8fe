"""The core's entries as dictionaries by token id."""

from __future__ import annotations

from kvasir_engine.outputs import Logprob
from kvasir_engine.request import LogprobEntry
from kvasir_engine.text.logprob_dicts import logprob_dicts


def test_a_token_outside_the_most_likely_comes_first_with_its_rank(byte_tokenizer) -> None:
    entry = LogprobEntry(40, -9.0, 77, [50, 60], [-0.1, -2.0])
    (found,) = logprob_dicts([entry], byte_tokenizer)
    assert list(found) == [40, 50, 60]
    assert [(each.logprob, each.rank) for each in found.values()] == [
        (-9.0, 77),
        (-0.1, 1),
        (-2, 2),
    ]
    assert [each.decoded_token for each in found.values()] == [
        byte_tokenizer.token_text(token) for token in (40, 50, 60)
    ]


def test_a_token_among_the_most_likely_stands_once_and_first() -> None:
    entry = LogprobEntry(60, -2.0, 2, [50, 60], [-0.1, -2.0])
    (found,) = logprob_dicts([entry], None)
    assert found == {60: Logprob(-2.0, 2), 50: Logprob(-0.1, 1)}
    assert list(found) == [60, 50]


def test_each_token_has_its_own(byte_tokenizer) -> None:
    entries = [LogprobEntry(token, -1.0, 1, [], []) for token in (40, 41)]
    assert [list(each) for each in logprob_dicts(entries, byte_tokenizer)] == [[40], [41]]
