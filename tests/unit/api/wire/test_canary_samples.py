"""Samples of canaries: bins that add up, and reports that are read back or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.wire.canary_samples import (
    LONGEST_SECONDS,
    MAX_BIN,
    SHORTEST_SECONDS,
    CanarySamples,
    RevisionSamples,
    bin_of,
    read_samples,
    seconds_of,
    total,
)

_counts = st.integers(0, 1 << 40)
_histograms = st.dictionaries(st.integers(0, MAX_BIN), _counts, max_size=5)
_revisions = st.builds(RevisionSamples, _counts, _counts, _counts, _histograms, _histograms)
_samples = st.builds(CanarySamples, st.just("s"), _revisions, _revisions)


@given(st.floats(SHORTEST_SECONDS, LONGEST_SECONDS))
def test_a_latency_is_known_to_its_bin(seconds: float) -> None:
    assert seconds_of(bin_of(seconds) - 1) <= seconds * (1 + 1e-9)
    assert seconds <= seconds_of(bin_of(seconds)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "place"), [(-1.0, 0), (0.0, 0), (1e-9, 0), (1e9, MAX_BIN), (float("inf"), MAX_BIN)]
)
def test_what_is_out_of_range_is_in_the_first_or_last_bin(seconds: float, place: int) -> None:
    assert bin_of(seconds) == place


@given(_samples)
def test_a_report_is_read_back(samples: CanarySamples) -> None:
    assert read_samples(json.loads(json.dumps(samples.report()))) == samples


@given(st.lists(_samples, max_size=4))
def test_sums_are_of_one_split(several: list[CanarySamples]) -> None:
    found = total("s", [*several, CanarySamples("other", RevisionSamples(answers=7))])
    assert found.canary.requests == sum(each.canary.requests for each in several)
    assert sum(found.stable.itl.values()) == sum(sum(each.stable.itl.values()) for each in several)


GOOD: dict[str, Any] = CanarySamples("s").report()


@pytest.mark.parametrize(
    "report",
    [
        None,
        [],
        {},
        {**GOOD, "split": 1},
        {**GOOD, "canary": None},
        {**GOOD, "stable": {**GOOD["stable"], "errors": -1}},
        {**GOOD, "stable": {**GOOD["stable"], "errors": True}},
        {**GOOD, "stable": {**GOOD["stable"], "errors": 1.5}},
        {**GOOD, "canary": {**GOOD["canary"], "ttft": {"-1": 1}}},
        {**GOOD, "canary": {**GOOD["canary"], "ttft": {"x": 1}}},
        {**GOOD, "canary": {**GOOD["canary"], "itl": {str(MAX_BIN + 1): 1}}},
        {**GOOD, "canary": {**GOOD["canary"], "itl": [1]}},
        {**GOOD, "canary": {**GOOD["canary"], "itl": {str(n): 1 for n in range(9999)}}},
    ],
)
def test_what_is_no_report_is_refused(report: object) -> None:
    with pytest.raises(ValueError, match=r"samples|a bin|a count|invalid literal"):
        read_samples(report)
