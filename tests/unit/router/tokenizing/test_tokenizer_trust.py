"""A tokenizer whose tokens no engine has is not used."""

import pytest

from kvasir.wire.block_hash import chain_hashes
from kvasir.wire.kv_events import BlockStored
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.tokenizing.tokenizer_trust import (
    CHECKS_PER_VERDICT,
    COOLDOWN_SECONDS,
    TokenizerTrust,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    def __init__(self, replica) -> None:
        self.clock = Clock()
        self.index = ModelIndex(self.clock)
        self.trust = TokenizerTrust(self.index, self.clock)
        self.replica = replica

    def answered(self, number: int, *, like_the_engine: bool) -> None:
        """A prompt of one block was tokenised and answered, and its block announced."""
        ids = [number] * 16
        own = ids if like_the_engine else [number + 1] * 16
        self.index.learned(PromptReport([number], [1], chain_hashes(own, 16)))
        self.trust.ended([number], self.replica)
        self.index.stored(self.replica, BlockStored([1000 + number], None, ids, 16))

    def settle(self) -> None:
        self.clock.now += 1.1
        self.trust.ended([], self.replica)


@pytest.fixture
async def rig(make_replica) -> Rig:
    return Rig(make_replica("r0"))


async def test_the_right_one_stays(rig: Rig) -> None:
    for number in range(0, 3 * CHECKS_PER_VERDICT * 2, 2):
        rig.answered(number, like_the_engine=True)
        rig.settle()
    assert rig.trust.given
    assert len(rig.index.texts) > 0


async def test_a_wrong_one_is_left_for_a_minute_and_what_it_said_forgotten(rig: Rig) -> None:
    for number in range(0, (CHECKS_PER_VERDICT - 1) * 2, 2):
        rig.answered(number, like_the_engine=False)
        rig.settle()
    assert rig.trust.given
    rig.answered(1000, like_the_engine=False)
    rig.settle()
    assert not rig.trust.given
    assert len(rig.index.texts) == 0
    rig.clock.now += COOLDOWN_SECONDS
    assert rig.trust.given


async def test_replicas_without_events_say_nothing(rig: Rig, make_replica) -> None:
    silent = make_replica("r1")
    for number in range(0, 3 * CHECKS_PER_VERDICT * 2, 2):
        rig.index.learned(PromptReport([number], [1], chain_hashes([number] * 16, 16)))
        rig.trust.ended([number], silent)
        rig.settle()
    assert rig.trust.given
