"""Who gets a canary, and what is counted of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.wire.canary_samples import CanarySamples
from kvasir_router.discovery.specs import MatchSpec, ReplicaSpec, SplitSpec
from kvasir_router.fleet.canary.conversation import conversation_key
from kvasir_router.fleet.canary.split import BURST, KEPT_SECONDS, CanarySplit
from kvasir_router.fleet.replica import Replica
from kvasir_router.wire.envelope import UNREAD, Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.wire.usage import Usage


def query(*, headers: dict[bytes, bytes] | None = None, key_id: str = "", **body: Any) -> Query:
    request = Request()
    request.lines = [name + b": " + value for name, value in (headers or {}).items()]
    found = Query(request, Envelope(**body))
    found.key_id = key_id
    return found


def chat(first: str, *later: str, system: str = "Be brief.") -> Query:
    turns = [
        {"role": "system", "content": system},
        {"role": "user", "content": first},
        *(
            {"role": "assistant" if at % 2 == 0 else "user", "content": it}
            for at, it in enumerate(later)
        ),
    ]
    return query(messages=turns)


def replica(name: str, revision: str) -> Replica:
    pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
    return Replica(ReplicaSpec(name, "127.0.0.1", 1, revision=revision), pool, 100, lambda: None)


def split(weight: float | None = 0.1, *matches: MatchSpec, clock: Any = None) -> CanarySplit:
    spec = SplitSpec("new.1.1", "new", weight, matches, 50)
    return CanarySplit(spec) if clock is None else CanarySplit(spec, clock)


@given(st.integers(1, 99), st.integers(1, 3000))
def test_requests_without_a_key_go_in_turn(percent: int, count: int) -> None:
    one = split(percent / 100)
    sent = sum(one.sends_to_canary(query()) for _ in range(count))
    assert abs(sent - count * percent / 100) <= 1


@pytest.mark.parametrize("percent", [1, 10, 50, 99])
def test_conversations_get_their_share(percent: int) -> None:
    one = split(percent / 100)
    sent = sum(one.sends_to_canary(chat(f"question {n}")) for n in range(5000))
    assert sent == pytest.approx(5000 * percent / 100, abs=BURST + 1)


def test_a_conversation_stays_with_its_revision() -> None:
    one = split(0.3)
    for n in range(40):
        first = conversation_key(chat(f"q{n}"), 7)
        assert conversation_key(chat(f"q{n}", "an answer", "and then?"), 7) == first
        assert conversation_key(chat(f"q{n}", system="Be long."), 7) != first
    turns = Counter(one.sends_to_canary(chat("q1", *["x"] * n)) for n in range(0, 8, 2))
    assert len(turns) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda n: query(headers={b"X-Session-Id": b"s%d" % n}),
        lambda n: query(user=f"u{n}"),
        lambda n: query(user="\ud800", headers={b"x-session-id": b"%d" % n}),
    ],
)
def test_a_larger_weight_only_adds_sessions(make: Any) -> None:
    few, many = split(0.2), split(0.6)
    before = {n for n in range(30) if few.sends_to_canary(make(n))}
    after = {n for n in range(30) if many.sends_to_canary(make(n))}
    assert before <= after


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_one_user_alone_gives_the_canary_its_share_all_the_same(weight: float) -> None:
    one = split(weight)
    sent = sum(one.sends_to_canary(query(user="the only one")) for _ in range(2000))
    assert sent == pytest.approx(2000 * weight, abs=BURST + 2)


@pytest.mark.parametrize(
    "odd",
    [
        query(messages=UNREAD),
        query(messages="text"),
        query(messages=[1, None, {"role": "user", "content": "\ud800"}]),
        query(messages=[]),
        query(user=7),
    ],
)
def test_what_is_no_conversation_has_no_key(odd: Query) -> None:
    assert conversation_key(odd, 0) is None


def test_matches_go_to_the_canary_beside_its_share() -> None:
    matches = (MatchSpec("x-canary", "yes"), MatchSpec(key_id="team-a"))
    one = split(0.0, *matches)
    assert one.sends_to_canary(query(headers={b"X-Canary": b"yes"}))
    assert one.sends_to_canary(query(key_id="team-a"))
    assert not one.sends_to_canary(query(headers={b"x-canary": b"YES"}))
    assert not one.sends_to_canary(query(key_id="team-b"))
    assert not one.sends_to_canary(query())


async def test_candidates_are_those_of_the_requests_revision() -> None:
    old, new = replica("a", "old"), replica("b", "new")
    one, asked = split(), query()
    assert one.among(asked, [old, new], again=False) == [old]
    asked.to_canary = True
    assert one.among(asked, [old, new], again=False) == [new]
    assert one.among(asked, [old, new], again=True) == [old]
    assert one.among(asked, [old], again=False) == [old], "the canary is full or gone"
    assert split(None).among(asked, [old, new], again=False) == [old, new]


async def test_what_is_counted() -> None:
    old, new = replica("a", "old"), replica("b", "new")
    one, stream, unary = split(), query(stream=True), query()
    one.answered(stream, new, 200, 0.5, 2.5, Usage(5, 101))
    one.answered(unary, new, 200, 0.5, 2.5, Usage(5, 101))
    one.answered(stream, old, 400, 0.0, 0.1, None)
    for status in (408, 429, 499, 500, 503, 504):
        one.answered(stream, old, status, 0.0, 0.1, None)
    one.failed(new)
    found = one.samples()
    assert (found.canary.answers, found.canary.errors, found.canary.refused) == (2, 1, 0)
    assert (found.stable.answers, found.stable.errors, found.stable.refused) == (0, 0, 1)
    assert sum(found.canary.ttft.values()) == sum(found.canary.itl.values()) == 1


async def test_the_time_that_a_failed_canary_took_is_not_the_stable_ones() -> None:
    old, one, asked = replica("a", "old"), split(), query(stream=True)
    asked.to_canary = True
    one.answered(asked, old, 200, 9.0, 10.0, Usage(5, 11))
    assert one.samples().stable.answers == 1
    assert one.samples().stable.ttft == {}


async def test_old_samples_are_forgotten_when_there_are_new_ones_enough() -> None:
    now = [0.0]
    old, new = replica("a", "old"), replica("b", "new")
    one = split(clock=lambda: now[0])

    def count(errors: int) -> CanarySamples:
        for _ in range(50):
            one.answered(query(), new, 200, 0.1, 0.2, None)
            one.answered(query(), old, 200, 0.1, 0.2, None)
        for _ in range(errors):
            one.failed(new)
        return one.samples()

    assert count(30).canary.errors == 30
    now[0] += KEPT_SECONDS
    assert count(0).canary.errors == 30
    assert count(0).canary.answers == 150
    now[0] += KEPT_SECONDS
    after = count(0)
    assert (after.canary.errors, after.canary.answers) == (0, 150)
    assert after.stable.answers == 150
    now[0] += 10 * KEPT_SECONDS
    assert one.samples() == after, "nothing is forgotten while nothing new comes"
