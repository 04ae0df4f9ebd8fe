"""The approximate index against a model that is too simple to be wrong."""

from itertools import accumulate, count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvasir.wire import text_chain
from kvasir.wire.text_chain import BLOCK_BYTES
from kvasir_router.index import approximate
from kvasir_router.index.approximate import ApproximateIndex

CAPACITY = 12 * BLOCK_BYTES
WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=8)
LEVELS = ((3, BLOCK_BYTES), (6, 2 * BLOCK_BYTES))
SIZES = tuple(size for count, size in LEVELS for _ in range(count))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of 8 blocks are long ones, and a retired bit is in the masks for some calls."""
    monkeypatch.setattr(approximate, "LEVELS", LEVELS)
    monkeypatch.setattr(approximate, "BLOCK_SIZES", SIZES)
    monkeypatch.setattr(approximate, "BLOCK_ENDS", (0, *accumulate(SIZES)))
    monkeypatch.setattr(approximate, "_SWEPT_PER_CALL", 3)


def sized(chain: list[int]) -> list[tuple[int, int]]:
    """The blocks of a chain, each with its bytes of text."""
    return list(zip(chain, SIZES, strict=False))


@pytest.fixture
def machine(make_replica, chain_of, _small):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            # Never so soon after one another that a prompt stays where it is
            self.index = ApproximateIndex(clock=count(0.0, 2.0).__next__)
            self.replicas = [make_replica(f"r{i}") for i in range(5)]
            self.recent: dict[str, list[tuple[int, int]]] = {}

        @rule(words=WORDS, at=st.integers(0, 4), known=st.integers(0, 8))
        def routed(self, words: list[int], at: int, known: int) -> None:
            chain, replica = chain_of(*words), self.replicas[at]
            self.index.routed(chain, replica, known, CAPACITY // 4)
            entries = [e for e in self.recent.get(replica.id, []) if e not in sized(chain)]
            entries += sized(chain)[::-1]
            while sum(size for _, size in entries) > CAPACITY:
                del entries[0]
            self.recent[replica.id] = entries

        @rule(at=st.integers(0, 4))
        def forget(self, at: int) -> None:
            self.index.forget_replica(self.replicas[at])
            self.recent.pop(self.replicas[at].id, None)

        @rule(words=WORDS)
        def match(self, words: list[int]) -> None:
            chain = chain_of(*words)
            expected = {}
            for name, entries in self.recent.items():
                depth = 0
                for entry in sized(chain):
                    if entry not in entries:
                        break
                    depth += 1
                if depth:
                    expected[name] = depth
            found = {replica.id: depth for replica, depth in self.index.match(chain).items()}
            assert found == expected

        @invariant()
        def whole(self) -> None:
            self.index.check_integrity()

    return Machine


@pytest.mark.slow
def test_it_is_what_the_model_is(machine) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=60, deadline=None))


def test_a_replica_that_says_nothing_of_its_cache_has_a_default(make_replica) -> None:
    index, replica = ApproximateIndex(), make_replica("r")
    room = approximate.DEFAULT_CAPACITY_TOKENS * 4
    chain = list(range(1, 101))
    for start in range(3 * room // text_chain.BLOCK_ENDS[len(chain)]):
        index.routed([start * 1_000_000 + block for block in chain], replica)
    assert room * 0.95 < index.size(replica) <= room * 1.04
    assert index.memory_bytes == index.blocks * approximate.BYTES_PER_BLOCK


def test_all_replicas_together_are_bounded(make_replica) -> None:
    index = ApproximateIndex(max_blocks=1000)
    for i in range(100):
        replica = make_replica(f"r{i % 10}" if i else "r")
        for turn in range(5):
            index.routed([i * 1000 + turn * 100 + block for block in range(50)], replica)
    assert index.blocks <= 1000 + 100 * 50


def test_more_than_64_replicas(make_replica, chain_of) -> None:
    index, replicas = ApproximateIndex(), [make_replica(f"r{i}") for i in range(200)]
    chain = chain_of(*[1] * 8)
    for i, replica in enumerate(replicas):
        index.routed(chain[: i % 8 + 1], replica)
    assert index.match(chain) == {replica: i % 8 + 1 for i, replica in enumerate(replicas)}


def test_a_bit_is_not_given_on_before_it_is_cleared(make_replica, chain_of) -> None:
    index, old, new = ApproximateIndex(), make_replica("old"), make_replica("new")
    chain = chain_of(*[1] * 8)
    index.routed(chain, old)
    index.forget_replica(old)
    index.routed(chain_of(2), new)
    assert index.match(chain) == {}
    index.routed(chain_of(2), make_replica("third"))
    index.check_integrity()
    assert index.match(chain) == {}


def test_what_was_sent_lately(make_replica, chain_of, clock) -> None:
    index, replica = ApproximateIndex(clock=clock), make_replica("r")
    chain = chain_of(*[1] * 8)
    index.routed(chain[:4], replica)
    clock.now += 10
    index.routed(chain[:6], replica, 4)
    assert index.sent_since(chain, replica, 4, clock.now - 1) == 6
    assert index.sent_since(chain, replica, 3, clock.now - 1) == 0
    assert index.sent_since(chain, replica, 0, clock.now - 20) == 6
    assert index.sent_since(chain, make_replica("other"), 0, 0.0) == 0
    # What is sent again although it was there before (evicted meanwhile) is new
    index.routed(chain[:6], replica, 2)
    assert index.sent_since(chain, replica, 2, clock.now - 1) == 6


def test_what_is_shared_with_a_longer_prompt_is_found(make_replica) -> None:
    index, replica = ApproximateIndex(), make_replica("r")
    chain = list(range(1, 151))
    index.routed(chain, replica)
    for shared in (1, 16, 17, 149, 150):
        other = [*chain[:shared], *range(2000, 3000)]
        assert index.match(other) == {replica: shared}


def test_a_whole_prompt_that_comes_again_and_again_is_renewed_once_a_second(
    make_replica, clock
) -> None:
    index, replica = ApproximateIndex(clock=clock), make_replica("r")

    def order() -> list[int]:
        return [block for block, _, _ in index.contents(replica)]

    index.routed([1, 2], replica)
    index.routed([3], replica)
    index.routed([1, 2], replica, 2)
    assert order() == [3, 2, 1]
    index.routed([3], replica, 1)
    index.routed([1, 2], replica, 2)
    assert order() == [2, 1, 3]
    # With something new behind it, it has to be as young as that
    index.routed([1, 2, 4], replica, 2)
    assert order() == [3, 4, 2, 1]
    clock.now += 1
    index.routed([3], replica, 1)
    assert order() == [4, 2, 1, 3]
    index.check_integrity()


def test_replicas_with_different_parts_of_a_prompt(make_replica) -> None:
    index = ApproximateIndex()
    chain = list(range(1, 101))
    parts = {make_replica(f"r{depth}"): depth for depth in (1, 2, 3, 50, 99, 99, 100)}
    for replica, depth in parts.items():
        index.routed(chain[:depth], replica)
    assert index.match(chain) == parts
    assert index.match([*chain[:60], *range(500, 540)]) == {
        replica: min(depth, 60) for replica, depth in parts.items()
    }
