"""Limits to the byte, paths, deadlines, and the budget of all bodies."""

from __future__ import annotations

import pytest

from kvasir_router.wire.http_request import (
    BodyBudget,
    Limits,
    RequestError,
    _short_path,
    path_of,
    seconds_of,
)


def test_the_limits_of_a_request() -> None:
    limits = Limits()
    assert limits.header_bytes == 32_768
    assert limits.headers == 100
    assert limits.target_bytes == 8_192
    assert limits.body_bytes == 67_108_864
    assert limits.buffered_bytes == 536_870_912


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/models", "/v1/models"),
        (b"/v1/models?a=b", "/v1/models"),
        (b"/v1/models?a=b?c=d", "/v1/models"),
        (b"/?" + b"a" * 300, "/"),
        (b"/v1/a..b", "/v1/a..b"),
        (b"/v1/...", "/v1/..."),
    ],
)
def test_the_path_of_a_target(target: bytes, path: str) -> None:
    assert path_of(target) == path


@pytest.mark.parametrize(
    "target",
    [
        *(b"", b"v1/models", b"*", b"http://a/v1", b"/a b", b"/a#b", b"/a\x7f", b"/\xff"),
        *(b"//v1", b"/v1//models", b"/v1\\models", b"/.", b"/..", b"/./v1", b"/v1/../x"),
        *(b"/v1/%2e%2e/x", b"/v1/.%2E", b"/v1%2f..%2fx", b"/v1/..%2freset_prefix_cache"),
        b"/" + b"a" * 300 + b"/../x",
    ],
)
def test_a_target_that_could_be_read_in_two_ways_is_refused(target: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        path_of(target)
    assert refused.value.status == 400


def test_a_deadline_is_a_number_above_zero() -> None:
    assert seconds_of(b"1.5") == 1.5
    for value in (b"0", b"-1", b"inf", b"nan", b"", b"soon", b"1" * 400):
        with pytest.raises(RequestError) as refused:
            seconds_of(value)
        assert refused.value.status == 400
        assert "x-request-timeout" in refused.value.message
        assert len(refused.value.message) < 140


def test_bodies_beyond_the_budget_are_refused_but_for_short_ones() -> None:
    budget = BodyBudget(100_000)
    budget.take(100_000, 100_000)
    budget.take(1, 16_384)
    assert budget.used == 100_001
    for received in (16_385, 50_000):
        with pytest.raises(RequestError) as refused:
            budget.take(1, received)
        budget.give_back(1)
    budget.take(1, 100)
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert refused.value.retry_after == 1
    budget.give_back(100_002)
    assert budget.used == 0
    budget.take(100_000, 100_000)


def test_only_short_targets_are_remembered() -> None:
    _short_path.cache_clear()
    for size, remembered in ((257, 0), (256, 1)):
        target = b"/" + b"a" * (size - 1)
        assert path_of(target) == path_of(target) == target.decode()
        assert _short_path.cache_info().currsize == remembered
