"""Affinity against load."""

import time
from collections import Counter

import pytest

from kvasir.wire.block_hash import HASH_BYTES
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.options.policy_options import KvAwareOptions
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.policy.token_load import REQUEST_TOKENS, STALE_TOKENS, token_loads
from kvasir_router.wire.usage import Usage

DECODE_WEIGHT, BARRIER_TOKENS = 0.05, 1500.0
MIN_LOAD_TOKENS = KvAwareOptions().min_load_tokens
SYSTEM = "You are a helpful assistant. " * 800
"""About 23 KB, 5,800 tokens."""


def report(replica, inflight: int = 0, kv_usage: float = 0.0, age: float = 0.0) -> None:
    replica.load.report_every = 0.2
    replica.load.reported(LoadReport(0, 0, inflight, kv_usage, time.monotonic() - age))


def send(policy: KvAware, query, replicas):
    """As the relay does it."""
    choice = policy.choose(query, replicas)
    choice.replica.acquire()
    choice.replica.load.give(choice.new_tokens)
    policy.sent(query, choice)
    return choice


def prefilled(policy: KvAware, query, replicas):
    """The replica of a request whose first byte has come."""
    choice = send(policy, query, replicas)
    choice.replica.load.take_back(choice.new_tokens)
    return choice.replica


def end(policy: KvAware, query, choice, cached: int) -> None:
    choice.replica.load.take_back(choice.new_tokens)
    choice.replica.release()
    policy.ended(query, choice, Usage(6000, 10, cached))


async def test_a_small_kv_cache_is_believed_to_hold_little(replicas, ask) -> None:
    policy, replica = KvAware(), replicas[0]
    replica.load.kv_capacity = 2_000
    for number in range(50):
        query = ask(f"{number} " * 400, "question")
        policy.sent(query, policy.choose(query, [replica]))
    assert 0 < policy.index.approximate.size(replica) < 10_000, "2,000 tokens of some 4 bytes"


async def test_a_shared_prefix_goes_where_it_is(replicas, ask) -> None:
    policy = KvAware()
    holder = prefilled(policy, ask(SYSTEM, "first"), replicas)
    for number in range(5):
        choice = policy.choose(ask(SYSTEM, f"question {number}"), replicas)
        assert choice.replica is holder
        assert choice.hit_tokens > 5000
        assert choice.new_tokens < 600


async def test_what_nobody_has_goes_to_the_least_loaded(replicas, ask) -> None:
    policy = KvAware()
    for replica, tokens in zip(replicas, (900, 100, 500), strict=True):
        replica.load.give(tokens)
    assert policy.choose(ask(SYSTEM), replicas).replica is replicas[1]


async def test_new_prompts_fill_all_caches(replicas, ask) -> None:
    policy = KvAware()
    for number in range(6):
        prefilled(policy, ask(f"{number} {SYSTEM}"), replicas).release()
    assert [replica.served for replica in replicas] == [2, 2, 2]


async def test_misses_never_herd(make_replicas, ask) -> None:
    policy, replicas = KvAware(), make_replicas(8)
    chosen = Counter(
        send(policy, ask(f"{number} {SYSTEM}"), replicas).replica.id for number in range(80)
    )
    assert set(chosen.values()) == {10}


async def test_hits_do_not_make_a_hot_spot(make_replicas, ask) -> None:
    """All ask for the same prefix, at once: it spreads when its replica has more than its share."""
    policy, replicas = KvAware(), make_replicas(8)
    chosen: Counter[str] = Counter()
    for number in range(1000):
        choice = send(policy, ask(SYSTEM, f"question {number}"), replicas)
        chosen[choice.replica.id] += 1
    assert len(chosen) == 8
    assert max(chosen.values()) < 2 * 1000 / 8


async def test_load_beats_affinity_beyond_the_bound(replicas, ask) -> None:
    policy = KvAware()
    holder = prefilled(policy, ask(SYSTEM, "first"), replicas)
    others = [replica for replica in replicas if replica is not holder]
    query = ask(SYSTEM, "second")
    holder.load.give(MIN_LOAD_TOKENS)
    for replica in others:
        replica.load.give(MIN_LOAD_TOKENS)
    assert policy.choose(query, replicas).replica is holder
    holder.load.give(6 * MIN_LOAD_TOKENS)
    assert policy.choose(query, replicas).replica in others
    [row] = [row for row in policy.explain(query, replicas) if row.replica == holder.id]
    assert (row.affinity, row.chosen, row.source) == (False, False, "approximate")
    assert row.hit_tokens > 5000


async def test_a_replica_with_stale_load_is_taken_for_the_most_loaded(replicas, ask) -> None:
    policy = KvAware()
    for replica in replicas:
        report(replica)
    holder = prefilled(policy, ask(SYSTEM, "first"), replicas)
    assert policy.choose(ask(SYSTEM, "second"), replicas).replica is holder
    report(holder, age=10)
    assert policy.choose(ask(SYSTEM, "second"), replicas).replica is not holder
    assert policy.choose(ask(SYSTEM, "second"), [holder]).replica is holder


async def test_a_restarted_replica_has_no_prefix(replicas, ask) -> None:
    policy = KvAware()
    holder = prefilled(policy, ask(SYSTEM, "first"), replicas)
    policy.forget_replica(holder)
    assert policy.choose(ask(SYSTEM, "second"), replicas).hit_tokens == 0


async def test_an_adapter_has_prefixes_of_its_own(replicas, ask) -> None:
    policy = KvAware()
    prefilled(policy, ask(SYSTEM, "first"), replicas)
    other = ask(SYSTEM, "second")
    other.lora = "adapter"
    assert policy.choose(other, replicas).hit_tokens == 0


async def test_predictions_are_checked_by_usage(replicas, ask) -> None:
    policy = KvAware()
    for number in range(120):
        query = ask(SYSTEM, f"question {number}")
        end(policy, query, send(policy, query, replicas), cached=0)
    assert sum(policy.index.check.turned_off.values()) >= 1
    hits = [row.hit_tokens for row in policy.explain(ask(SYSTEM, "x"), replicas)]
    assert min(hits) == 0


async def test_a_request_without_text_is_balanced_by_load(replicas, ask) -> None:
    policy = KvAware()
    query = ask()
    query.request.path = "/v1/embeddings"
    replicas[0].load.give(10)
    replicas[2].load.give(10)
    choice = policy.choose(query, replicas)
    assert choice.replica is replicas[1]
    assert choice.new_tokens > 0


class TestTokenLoads:
    async def test_without_reports_it_is_what_this_router_gave(self, replicas) -> None:
        replicas[1].load.give(700)
        replicas[2].acquire()
        assert token_loads(replicas, DECODE_WEIGHT, BARRIER_TOKENS) == [
            0,
            700,
            DECODE_WEIGHT * REQUEST_TOKENS,
        ]

    async def test_reports_are_added_up_with_what_came_since(self, replicas) -> None:
        replicas[0].load.give(5000)
        report(replicas[0], inflight=3000)
        replicas[0].load.give(400)
        replicas[0].load.take_back(5000)
        report(replicas[1], inflight=100)
        replicas[1].load.credit = 900
        assert token_loads(replicas, DECODE_WEIGHT, BARRIER_TOKENS) == [3400, 900, 0]
        assert [replica.load.prefill_tokens for replica in replicas] == [3400, 900, 0]

    async def test_the_kv_cache_counts_and_more_so_when_full(self, replicas) -> None:
        for replica, used in zip(replicas, (0.5, 0.9, 1.0), strict=True):
            replica.load.kv_capacity = 100_000
            report(replica, kv_usage=used)
        half, most, full = token_loads(replicas, DECODE_WEIGHT, BARRIER_TOKENS)
        assert half == pytest.approx(DECODE_WEIGHT * 50_000 + BARRIER_TOKENS)
        assert most == pytest.approx(DECODE_WEIGHT * 90_000 + 9 * BARRIER_TOKENS)
        assert full == pytest.approx(DECODE_WEIGHT * 100_000 + 9 * BARRIER_TOKENS)

    async def test_stale_ones_are_above_all_others(self, replicas) -> None:
        report(replicas[0], age=10)
        report(replicas[1], inflight=5000)
        replicas[2].load.report_every = 0.2
        loads = token_loads(replicas, DECODE_WEIGHT, BARRIER_TOKENS)
        assert loads[0] == loads[2] == 5000 + STALE_TOKENS


def test_the_index_is_bounded_by_the_policys_options() -> None:
    bounds = {"max_resident_blocks": 70_000, "max_sent_blocks": 80_000, "max_text_blocks": 90_000}
    index = KvAware(KvAwareOptions(**bounds)).index
    assert index.texts.max_blocks == 90_000
    assert index.approximate.max_blocks == 80_000
    assert index.residency.max_blocks == 70_000


async def test_texts_beyond_their_bound_are_forgotten() -> None:
    index = KvAware(KvAwareOptions(max_text_blocks=65_536)).index
    for first in range(1, 200_000, 1_000):
        blocks = range(first, first + 1_000)
        index.learned(PromptReport(blocks, blocks, bytes(HASH_BYTES) * len(blocks)))
    assert len(index.texts) <= 66_536
    assert index.texts.known([199_000])
    assert not index.texts.known([1_000])
