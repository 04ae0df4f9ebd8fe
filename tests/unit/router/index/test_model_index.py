"""How the exact and the approximate index are joined."""

import pytest

from kvasir.wire.block_hash import HASH_BYTES
from kvasir.wire.kv_events import BlockRemoved, BlockStored
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.hit_check import HITS_PER_VERDICT, Hit, HitSource
from kvasir_router.index.model_index import LOWER_TIER_CREDIT, SPECULATIVE_SECONDS, ModelIndex
from kvasir_router.wire.usage import Usage

TOKENS = 128
"""Of a text block, at 4 bytes each: 8 KV blocks."""
CHAIN = [11, 12, 13, 14, 15, 16]


def names(count: int) -> list[bytes]:
    return [(number + 1).to_bytes(HASH_BYTES, "little") for number in range(count)]


@pytest.fixture
def index(clock) -> ModelIndex:
    return ModelIndex(clock)


def learn(index: ModelIndex, chain: list[int] = CHAIN) -> None:
    """The text's blocks are known: 8 KV blocks for each of them."""
    last = names(8 * len(chain))[7::8]
    counts = [8 * (at + 1) for at in range(len(chain))]
    index.learned(PromptReport(chain, counts, b"".join(last)))


def store(index: ModelIndex, replica, text_blocks: int, **fields: object) -> None:
    index.stored(replica, BlockStored(names(8 * text_blocks), None, [], 16, **fields))


def test_without_events_it_is_the_approximate_index(index, make_replica) -> None:
    a, b = make_replica("a"), make_replica("b")
    index.routed(CHAIN[:4], a, 0)
    index.routed(CHAIN[:2], b, 0)
    assert index.match(CHAIN) == {
        a: Hit(4, 4 * TOKENS, HitSource.APPROXIMATE),
        b: Hit(2, 2 * TOKENS, HitSource.APPROXIMATE),
    }
    assert index.match([]) == {}


def test_events_say_what_is_there(index, make_replica) -> None:
    a = make_replica("a")
    learn(index)
    store(index, a, 5)
    assert index.match(CHAIN) == {a: Hit(5, 5 * TOKENS, HitSource.EXACT)}


def test_events_refute_what_was_sent_long_ago(index, make_replica, clock) -> None:
    a = make_replica("a")
    learn(index)
    index.routed(CHAIN, a, 0)
    store(index, a, 6)
    index.removed(a, BlockRemoved(names(48)[16:]))
    clock.now += SPECULATIVE_SECONDS + 1
    assert index.match(CHAIN) == {a: Hit(2, 2 * TOKENS, HitSource.EXACT)}
    index.removed(a, BlockRemoved(names(16)))
    assert index.match(CHAIN) == {}


def test_what_was_sent_a_moment_ago_is_on_its_way(index, make_replica, clock) -> None:
    a = make_replica("a")
    learn(index)
    store(index, a, 2)
    index.routed(CHAIN, a, 2)
    assert index.match(CHAIN) == {a: Hit(6, 6 * TOKENS, HitSource.SPECULATIVE)}
    clock.now += SPECULATIVE_SECONDS + 1
    # The same text again does not make the former sending a new one
    index.routed(CHAIN, a, 6)
    assert index.match(CHAIN) == {a: Hit(2, 2 * TOKENS, HitSource.EXACT)}
    index.routed(CHAIN, a, 2)
    assert index.match(CHAIN) == {a: Hit(6, 6 * TOKENS, HitSource.SPECULATIVE)}


def test_beyond_the_known_text_the_approximate_index_is_asked(index, make_replica, clock) -> None:
    a, b = make_replica("a"), make_replica("b")
    learn(index, CHAIN[:3])
    store(index, a, 3)
    store(index, b, 1)
    for replica in (a, b):
        index.routed(CHAIN, replica, 0)
    clock.now += SPECULATIVE_SECONDS + 1
    assert index.match(CHAIN) == {
        a: Hit(6, 6 * TOKENS, HitSource.APPROXIMATE),
        b: Hit(1, TOKENS, HitSource.EXACT),
    }


def test_a_text_that_determines_no_block_says_nothing_against_the_rest(
    index, make_replica, clock
) -> None:
    a, b = make_replica("a"), make_replica("b")
    index.learned(PromptReport(CHAIN, [0] * 6, bytes(6 * HASH_BYTES)))
    store(index, a, 1)
    store(index, b, 1)
    index.routed(CHAIN, a, 0)
    clock.now += SPECULATIVE_SECONDS + 1
    assert index.match(CHAIN) == {a: Hit(6, 6 * TOKENS, HitSource.APPROXIMATE)}


def test_a_lower_tier_counts_less(index, make_replica) -> None:
    a = make_replica("a")
    learn(index)
    store(index, a, 2)
    store(index, a, 4, medium="CPU")
    tokens = (2 + LOWER_TIER_CREDIT * 2) * TOKENS
    assert index.match(CHAIN) == {a: Hit(4, tokens, HitSource.EXACT)}


def test_a_source_that_lies_is_not_used(index, make_replica, clock) -> None:
    a, b = make_replica("a"), make_replica("b")
    learn(index)
    store(index, a, 6)
    index.routed(CHAIN, b, 0)
    lies = index.match(CHAIN)
    for _ in range(HITS_PER_VERDICT):
        for replica, hit in lies.items():
            index.ended(replica, hit, Usage(768, 10, 0), 3072)
    assert index.match(CHAIN) == {}
    # With events off the approximate index has the word
    index.routed(CHAIN[:3], a, 0)
    assert index.match(CHAIN) == {a: Hit(3, 3 * TOKENS, HitSource.APPROXIMATE)}
    index.forget_replica(b)
    index.routed(CHAIN[:2], b, 0)
    assert index.match(CHAIN)[b] == Hit(2, 2 * TOKENS, HitSource.APPROXIMATE)


def test_usage_tells_how_long_a_token_is(index, make_replica) -> None:
    a = make_replica("a")
    index.routed(CHAIN, a, 0)
    for _ in range(500):
        index.ended(a, None, Usage(1024, 10, None), 2048)
    assert index.match(CHAIN)[a].tokens == pytest.approx(6 * 256, rel=0.01)


def test_a_replica_that_restarts_has_nothing(index, make_replica) -> None:
    a = make_replica("a")
    learn(index)
    store(index, a, 6)
    index.routed(CHAIN, a, 0)
    index.forget_replica(a)
    assert index.match(CHAIN) == {}
    index.cleared(a)
    assert index.match(CHAIN) == {}


def test_long_tokens_fill_a_cache_with_more_text(index, make_replica) -> None:
    a = make_replica("a")
    for number in range(400):
        index.ended(a, None, Usage(1000, 10), 16_000)
        index.routed([number * 10 + 1, number * 10 + 2], a, 0, 2_000)
    assert 30_000 < index.approximate.size(a) < 34_000
