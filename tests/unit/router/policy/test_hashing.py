"""Consistent hashing with bounded loads, by prefix and by session."""

from collections import Counter

import pytest

from kvasir_router.options.policy_options import SessionOptions
from kvasir_router.policy.hash_ring import Ring
from kvasir_router.policy.hashing import PrefixHash, Session

SYSTEM = "You are a helpful assistant. " * 100
KEYS = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(5000)]


async def test_keys_are_spread_evenly(make_replicas) -> None:
    ring = Ring(make_replicas(8))
    counts = Counter(ring.walk(key).id for key in KEYS)
    assert len(counts) == 8
    assert max(counts.values()) < 1.5 * len(KEYS) / 8


async def test_a_replica_that_goes_moves_only_its_own_keys(make_replicas) -> None:
    replicas = make_replicas(8)
    all_of_them, fewer = Ring(replicas), Ring(replicas[:5] + replicas[6:])
    for key in KEYS:
        before = all_of_them.walk(key)
        assert fewer.walk(key) is before or before is replicas[5]


async def test_no_replica_gets_more_than_its_bound(make_replicas) -> None:
    """One popular key overflows to its neighbours, always the same."""
    replicas = make_replicas(8)
    ring = Ring(replicas)
    for number in range(400):
        chosen = ring.walk(KEYS[7])
        assert chosen.in_flight + 1 <= -(-1.25 * (number + 1) // 8)
        chosen.acquire()
    assert sum(replica.in_flight for replica in replicas) == 400


async def test_rings_are_made_once_for_each_set(make_replicas, ask) -> None:
    policy, replicas = PrefixHash(), make_replicas(40)
    for candidates in (replicas, list(replicas), replicas[1:]):
        policy.choose(ask(SYSTEM), candidates)
    assert policy._ring.cache_info()[:2] == (1, 2)  # hits, misses
    for start in range(2, 30):
        policy.choose(ask(SYSTEM), replicas[start:])
    assert policy._ring.cache_info().currsize == 16
    policy.forget_replica(replicas[0])
    assert policy._ring.cache_info().currsize == 0


async def test_prefix_hash_keeps_a_prefix_together(make_replicas, ask) -> None:
    policy, replicas = PrefixHash(), make_replicas(8)
    chosen = {policy.choose(ask(SYSTEM, f"q{i}"), replicas).replica.id for i in range(20)}
    assert len(chosen) == 1
    others = {policy.choose(ask(f"{i} {SYSTEM}"), replicas).replica.id for i in range(100)}
    assert len(others) == 8
    explained = policy.explain(ask(SYSTEM, "q"), replicas)
    assert {row.replica for row in explained if row.chosen} == chosen


async def test_without_a_key_it_is_the_least_load(make_replicas, ask) -> None:
    replicas = make_replicas(3)
    replicas[0].acquire()
    replicas[2].acquire()
    for policy in (PrefixHash(), Session(SessionOptions())):
        assert policy.choose(ask("short"), replicas).replica is replicas[1]


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"lines": (b"X-Session-Id: a\r\n",)}, {"lines": (b"x-session-id: a\r\n",), "user": "u"}),
        ({"user": "abc"}, {"lines": (b"X-Session-Id: abc\r\n",)}),
        ({"lines": (b"Cookie: a=1; session_id=abc; b=2\r\n",)}, {"user": "abc"}),
        ({"user": "ab\u00e9"}, {"user": "ab\u00e9", "temperature": 1}),
    ],
)
async def test_a_session_is_known_by_header_cookie_or_user(ask, given, same) -> None:
    policy = Session(SessionOptions())
    key = policy.key(ask(**given))
    assert key is not None
    assert key == policy.key(ask("another text", **same))
    assert policy.key(ask()) is None
    assert policy.key(ask(user=7)) is None


async def test_sessions_stay_and_are_spread(make_replicas, ask) -> None:
    policy, replicas = (
        Session(SessionOptions(header="x-conversation", cookie="conversation")),
        make_replicas(8),
    )
    homes = {}
    for number in range(200):
        query = ask(lines=(b"X-Conversation: %d\r\n" % number,))
        homes[number] = policy.choose(query, replicas).replica
        again = ask("longer", "and longer", lines=(b"Cookie: conversation=%d\r\n" % number,))
        assert policy.choose(again, replicas).replica is homes[number]
    assert len(set(homes.values())) == 8
