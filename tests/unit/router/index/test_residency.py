"""Block residency from the events of Kvasir's and other engines."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvasir.wire.block_hash import HASH_BYTES, chain_hashes, root_hash
from kvasir.wire.kv_events import BlockHash, BlockRemoved, BlockStored
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.residency import Residency, Resident
from kvasir_router.index.text_map import TextMap

BLOCK = 4
TEXTS_A_BLOCK = 2
"""KV blocks that a text block determines in these tests."""


def hashes(tokens: Sequence[int], **root: str) -> list[bytes]:
    joined = chain_hashes(tokens, BLOCK, root=root_hash(**root))
    return [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]


def stored(tokens: Sequence[int], start: int = 0, **fields: object) -> BlockStored:
    """As a Kvasir engine tells of a prompt's blocks from block `start` on."""
    blocks = hashes(tokens)
    parent = blocks[start - 1] if start else None
    return BlockStored(blocks[start:], parent, list(tokens[start * BLOCK :]), BLOCK, **fields)


def texts_of(
    *prompts: Sequence[int], every: int = TEXTS_A_BLOCK
) -> tuple[TextMap, list[list[int]]]:
    """Reports of prompts, whose text blocks are numbered by what they determine."""
    texts, chains = TextMap(), []
    for tokens in prompts:
        kv = hashes(tokens)[every - 1 :: every]
        chain = [int.from_bytes(block[:8], "little") for block in kv]
        counts = [every * (at + 1) for at in range(len(kv))]
        texts.learn(PromptReport(chain, counts, b"".join(kv)))
        chains.append(chain)
    return texts, chains


TOKENS = list(range(8 * BLOCK))


def depth(residency: Residency, texts: TextMap, chain: list[int]) -> dict[str, int]:
    found = residency.match(texts, chain)
    return {replica.id: resident.text_blocks for replica, resident in found.items()}


def test_a_known_text_is_found_where_its_blocks_are(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    all_of_it, half, nothing = (make_replica(name) for name in ("all", "half", "nothing"))
    residency.stored(all_of_it, stored(TOKENS))
    residency.stored(half, stored(TOKENS[: 5 * BLOCK]))
    residency.cleared(nothing)
    assert residency.match(texts, chain) == {
        all_of_it: Resident(4, 8, 8, False),
        half: Resident(2, 4, 4, True),
        nothing: Resident(0, 0, 0, True),
    }
    assert residency.match(texts, [1, 2, 3]) == {}
    assert residency.block_size == BLOCK


def test_a_replica_without_events_is_not_spoken_of(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    residency.stored(make_replica("a"), stored(TOKENS))
    make_replica("b")
    assert list(depth(residency, texts, chain)) == ["a"]


def test_a_chain_that_goes_on_beyond_what_is_known(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    residency.stored(make_replica("a"), stored(TOKENS))
    [resident] = residency.match(texts, [*chain, 77, 78]).values()
    assert resident == Resident(4, 8, 8, False)


def test_evicted_blocks_are_gone(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    replica = make_replica("a")
    residency.stored(replica, stored(TOKENS))
    residency.removed(replica, BlockRemoved(hashes(TOKENS)[6:]))
    assert depth(residency, texts, chain) == {"a": 3}
    # A hole is seen although what lies behind it is still there
    residency.removed(replica, BlockRemoved(hashes(TOKENS)[1:2]))
    residency.removed(replica, BlockRemoved(hashes(TOKENS)[3:4]))
    assert depth(residency, texts, chain) == {"a": 0}
    assert residency.blocks == 4


def test_blocks_stored_piece_by_piece(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    replica = make_replica("a")
    residency.stored(replica, stored(TOKENS[: 3 * BLOCK]))
    residency.stored(replica, stored(TOKENS, 3))
    assert depth(residency, texts, chain) == {"a": 4}


def test_every_group_has_to_hold_it(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    hybrid, plain = make_replica("hybrid"), make_replica("plain")
    residency.stored(hybrid, stored(TOKENS, group_idx=0))
    residency.stored(hybrid, stored(TOKENS[: 4 * BLOCK], group_idx=1))
    residency.stored(plain, stored(TOKENS))
    assert depth(residency, texts, chain) == {"hybrid": 2, "plain": 4}
    residency.removed(hybrid, BlockRemoved(hashes(TOKENS)[:2], group_idx=1))
    assert residency.match(texts, chain)[hybrid].text_blocks < 2


def test_tiers_are_told_apart(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    replica = make_replica("a")
    residency.stored(replica, stored(TOKENS, medium="GPU"))
    residency.stored(replica, stored(TOKENS, medium="CPU"))
    residency.removed(replica, BlockRemoved(hashes(TOKENS)[4:], medium="GPU"))
    assert residency.match(texts, chain) == {replica: Resident(4, 8, 4, False)}
    residency.removed(replica, BlockRemoved(hashes(TOKENS)[4:], medium="CPU"))
    assert residency.match(texts, chain) == {replica: Resident(2, 4, 4, True)}


def test_tables_are_bounded(make_replica) -> None:
    residency = Residency()
    for group in range(100):
        residency.stored(make_replica("a"), stored(TOKENS, group_idx=group))
    assert residency.blocks == 16 * 8
    assert residency.refused == {"tables": 84}


def test_a_text_that_determines_nothing_refutes_nothing(make_replica) -> None:
    residency, texts = Residency(), TextMap()
    replica = make_replica("a")
    residency.stored(replica, stored(TOKENS))
    texts.learn(PromptReport([1, 2], [0, 0], bytes(2 * HASH_BYTES)))
    assert residency.match(texts, [1, 2]) == {replica: Resident(2, 0, 0, False)}


def test_the_oldest_blocks_go_when_there_are_too_many(make_replica) -> None:
    residency, replica = Residency(max_blocks=40_000), make_replica("a")
    first = list(range(40_000 * BLOCK))
    residency.stored(replica, stored(first))
    residency.stored(replica, stored([-token for token in first]))
    assert residency.blocks <= 44_000
    assert residency.evicted > 30_000


def test_more_than_64_replicas(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    replicas = [make_replica(f"r{i}") for i in range(150)]
    for i, replica in enumerate(replicas):
        residency.stored(replica, stored(TOKENS[: (i % 9) * BLOCK] or TOKENS[:BLOCK]))
    found = residency.match(texts, chain)
    assert [found[replica].text_blocks for replica in replicas] == [i % 9 // 2 for i in range(150)]


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.SGLANG])
class TestForeignEngines:
    """Their hashes are made-up numbers and bytes here: they mean nothing to the router."""

    def event(
        self, tokens: Sequence[int], names: list[BlockHash], parent: BlockHash | None = None,
        **fields: object,
    ) -> BlockStored:  # fmt: skip
        return BlockStored(names, parent, list(tokens), BLOCK, **fields)

    def test_their_blocks_are_known_by_tokens(self, make_replica, kind: EngineKind) -> None:
        residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
        replica = make_replica("v", kind)
        first: list[BlockHash] = [-5, 2**63 + 11, 12, 13]
        later: list[BlockHash] = [b"\x01" * 32, b"\x02" * 32, b"\x03" * 32, b"\x04" * 32]
        residency.stored(replica, self.event(TOKENS[: 4 * BLOCK], first))
        residency.stored(replica, self.event(TOKENS[4 * BLOCK :], later, 13))
        assert residency.match(texts, chain) == {replica: Resident(4, 8, 8, False)}
        residency.removed(replica, BlockRemoved(later[2:]))
        assert depth(residency, texts, chain) == {"v": 3}
        residency.stored(replica, self.event(TOKENS[6 * BLOCK :], [91, 92], later[1]))
        assert depth(residency, texts, chain) == {"v": 4}

    def test_a_parent_that_is_not_known(self, make_replica, kind: EngineKind) -> None:
        residency, replica = Residency(), make_replica("v", kind)
        residency.stored(replica, self.event(TOKENS, list(range(8)), parent=99))
        residency.stored(replica, self.event(TOKENS[:-1], list(range(8))))
        residency.stored(replica, self.event([2**31] * BLOCK, [7]))
        assert residency.refused == {"orphan": 1, "malformed": 2}
        assert residency.blocks == 0

    def test_a_lower_tier_is_told_by_hash_alone(self, make_replica, kind: EngineKind) -> None:
        residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
        replica = make_replica("v", kind)
        names: list[BlockHash] = list(range(100, 108))
        residency.stored(replica, self.event(TOKENS, names))
        residency.stored(replica, BlockStored(names, None, [], 0, medium="CPU"))
        residency.removed(replica, BlockRemoved(names, medium="GPU"))
        assert residency.match(texts, chain) == {replica: Resident(4, 8, 0, False)}
        residency.removed(replica, BlockRemoved(names, medium="CPU"))
        assert depth(residency, texts, chain) == {"v": 0}
        assert residency.memory_bytes == 0

    def test_adapter_salt_and_media_are_chains_of_their_own(
        self, make_replica, kind: EngineKind
    ) -> None:
        residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
        names: list[BlockHash] = list(range(8))
        others: list[dict[str, object]] = [
            {"lora_name": "a"},
            {"lora_id": 3},
            {"extra_keys": [["salt"], *[None] * 7]},
            {"extra_keys": [[["image", 0]], *[None] * 7]},
        ]
        for at, fields in enumerate(others):
            replica = make_replica(f"r{at}", kind)
            residency.stored(replica, self.event(TOKENS, names, **fields))
        assert set(depth(residency, texts, chain).values()) == {0}
        same = make_replica("same", kind)
        residency.stored(same, self.event(TOKENS, names))
        assert depth(residency, texts, chain)["same"] == 4

    @pytest.mark.parametrize(
        ("fields", "root"),
        [
            ({"lora_name": "a", "extra_keys": [["a"]] * 8}, {"lora": "a"}),
            ({"extra_keys": [["s"], *[None] * 7]}, {"cache_salt": "s"}),
            (
                {"lora_name": "a", "extra_keys": [["a", "s"], *[["a"]] * 7]},
                {"lora": "a", "cache_salt": "s"},
            ),
        ],
    )
    def test_adapter_and_salt_are_those_of_kvasir(
        self, make_replica, kind: EngineKind, fields: dict[str, object], root: dict[str, str]
    ) -> None:
        residency, texts, replica = Residency(), TextMap(), make_replica("v", kind)
        residency.stored(replica, self.event(TOKENS, list(range(8)), **fields))
        texts.learn(PromptReport([1], [8], hashes(TOKENS, **root)[-1]))
        assert residency.match(texts, [1])[replica] == Resident(1, 8, 8, False)


PROMPTS = [
    list(range(6 * BLOCK)),
    [*range(3 * BLOCK), *range(100, 100 + 3 * BLOCK)],
    list(range(200, 200 + 4 * BLOCK)),
]


@pytest.fixture
def machine(make_replica):
    class Machine(RuleBasedStateMachine):
        """Two Kvasir engines and a foreign one that store and evict whole tails of prompts."""

        def __init__(self) -> None:
            super().__init__()
            self.residency = Residency()
            self.texts, self.chains = texts_of(*PROMPTS, every=1)
            kinds = (EngineKind.KVASIR, EngineKind.KVASIR, EngineKind.VLLM)
            self.replicas = [make_replica(f"r{i}", kind) for i, kind in enumerate(kinds)]
            self.held: dict[str, set[bytes]] = {}

        def name(self, at: int, block: bytes) -> BlockHash:
            """Each foreign engine has names of its own for blocks."""
            foreign = self.replicas[at].spec.engine is EngineKind.VLLM
            return int.from_bytes(block[:7], "big") ^ 0xABCDEF if foreign else block

        @rule(at=st.integers(0, 2), prompt=st.integers(0, 2), count=st.integers(1, 6))
        def store(self, at: int, prompt: int, count: int) -> None:
            blocks = hashes(PROMPTS[prompt])[:count]
            held = self.held.setdefault(f"r{at}", set())
            start = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
            if start < len(blocks):
                names = [self.name(at, block) for block in blocks]
                event = BlockStored(
                    names[start:],
                    names[start - 1] if start else None,
                    PROMPTS[prompt][start * BLOCK : len(blocks) * BLOCK],
                    BLOCK,
                )
                self.residency.stored(self.replicas[at], event)
                held.update(blocks)

        @rule(at=st.integers(0, 2), prompt=st.integers(0, 2), keep=st.integers(0, 5))
        def evict(self, at: int, prompt: int, keep: int) -> None:
            held = self.held.setdefault(f"r{at}", set())
            gone = [block for block in hashes(PROMPTS[prompt])[keep:] if block in held]
            if keep < 3:  # what two prompts share is evicted with the end of both
                gone += [b for b in hashes(PROMPTS[1 - prompt % 2])[3:] if b in held]
            names = [self.name(at, block) for block in dict.fromkeys(gone)]
            self.residency.removed(self.replicas[at], BlockRemoved(names))
            held.difference_update(gone)

        @rule(at=st.integers(0, 2))
        def clear(self, at: int) -> None:
            self.residency.cleared(self.replicas[at])
            self.held[f"r{at}"] = set()

        @rule(at=st.integers(0, 2))
        def forget(self, at: int) -> None:
            self.residency.forget_replica(self.replicas[at])
            self.held.pop(f"r{at}", None)

        @invariant()
        def matches(self) -> None:
            for prompt, chain in zip(PROMPTS, self.chains, strict=True):
                blocks = hashes(prompt)
                expected = {
                    name: next((i for i, b in enumerate(blocks) if b not in held), len(blocks))
                    for name, held in self.held.items()
                }
                assert depth(self.residency, self.texts, chain) == expected

    return Machine


def test_it_holds_what_the_engines_hold(machine) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, deadline=None, stateful_step_count=30)
    )


def test_what_replicas_leave_goes_with_few_events_of_their_successors(make_replica) -> None:
    """Replicas that come and go, with a hundred blocks and as many events each."""
    residency, most = Residency(), 0
    for number in range(30):
        replica = make_replica(str(number))
        for at in range(100):
            first = (number * 100 + at) * BLOCK
            residency.stored(replica, stored(list(range(first, first + BLOCK))))
        residency.forget_replica(replica)
        most = max(most, residency.blocks)
    assert most <= 400


def test_bits_of_those_that_are_gone_are_cleared_and_used_again(make_replica) -> None:
    residency, (texts, [chain]) = Residency(), texts_of(TOKENS)
    old, other = make_replica("old"), make_replica("other")
    residency.stored(old, stored(TOKENS))
    residency.stored(other, stored(list(range(500, 500 + BLOCK))))
    residency.forget_replica(old)
    residency.stored(make_replica("new"), stored(list(range(600, 600 + BLOCK))))
    assert depth(residency, texts, chain) == {"new": 0, "other": 0}
    for _ in range(5000):
        residency.removed(other, BlockRemoved([]))
    assert residency.blocks == 2
    residency.stored(make_replica("newest"), stored(list(range(700, 700 + BLOCK))))
    assert depth(residency, texts, chain) == {"new": 0, "newest": 0, "other": 0}
    assert residency._bits.alive == 0b111
