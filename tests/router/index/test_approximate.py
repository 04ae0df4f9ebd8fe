"""The approximate index against a model that is too simple to be wrong."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvasir.text_chain import BLOCK_BYTES
from kvasir_router.index import approximate
from kvasir_router.index.approximate import ApproximateIndex

CAPACITY = 12
TOKENS = CAPACITY * BLOCK_BYTES // 4
WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@pytest.fixture(scope="module", autouse=True)
def _slow_sweeps():
    """So that a retired bit is in the masks for some calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "_SWEPT_PER_CALL", 3)
        yield


@pytest.fixture
def machine(make_replica, chain_of):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.index = ApproximateIndex()
            self.replicas = [make_replica(f"r{i}") for i in range(5)]
            self.recent: dict[str, list[int]] = {}

        @rule(words=WORDS, at=st.integers(0, 4), known=st.integers(0, 8))
        def routed(self, words: list[int], at: int, known: int) -> None:
            chain, replica = chain_of(*words), self.replicas[at]
            self.index.routed(chain, replica, known, TOKENS)
            blocks = [b for b in self.recent.get(replica.id, []) if b not in chain]
            self.recent[replica.id] = (blocks + chain[::-1])[-CAPACITY:]

        @rule(at=st.integers(0, 4))
        def forget(self, at: int) -> None:
            self.index.forget(self.replicas[at])
            self.recent.pop(self.replicas[at].id, None)

        @rule(words=WORDS)
        def match(self, words: list[int]) -> None:
            chain = chain_of(*words)
            expected = {}
            for name, blocks in self.recent.items():
                depth = next((n for n, b in enumerate(chain) if b not in blocks), len(chain))
                if depth:
                    expected[name] = depth
            found = {replica.id: depth for replica, depth in self.index.match(chain).items()}
            assert found == expected

        @invariant()
        def whole(self) -> None:
            self.index.check_integrity()

    return Machine


def test_it_is_what_the_model_is(machine) -> None:
    from hypothesis import settings
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(max_examples=60, deadline=None))


def test_a_replica_that_says_nothing_of_its_cache_has_a_default(make_replica) -> None:
    index, replica = ApproximateIndex(), make_replica("r")
    room = approximate.DEFAULT_CAPACITY_TOKENS * 4 // BLOCK_BYTES
    chain = list(range(1, 3001))
    for start in range(0, 3 * room, len(chain)):
        index.routed([start * 1_000_000 + block for block in chain], replica)
    assert index.blocks == room
    assert index.memory_bytes == room * approximate.BYTES_PER_BLOCK


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
    index.forget(old)
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
