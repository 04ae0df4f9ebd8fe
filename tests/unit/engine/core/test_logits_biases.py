"""Samples with logits processors wait for their biases; no other sample does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvasir_engine.core.logits_biases import LogitsBiases
from kvasir_engine.core.loop import CoreLoop
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest, FinishReason, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.settings import SchedulerSettings
from kvasir_engine.step_plan import StepOutput, StepPlan


class Seven:
    """A runner, and a step of it, whose tokens are all 7; it keeps the plans."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self._launched: list[StepPlan] = []

    def forward(self, plan: StepPlan) -> None:
        self.plans.append(plan)

    def sample(self, plan: StepPlan) -> Seven:
        self._launched.append(plan)
        return self

    def wait(self) -> StepOutput:
        plan = self._launched.pop(0)
        return StepOutput(plan.step_id, np.full(len(plan.sample_rows), 7, dtype=np.int32))

    def recover(self, error: Exception) -> bool:
        raise error

    def close(self) -> None:
        """Nothing to free."""


class Engine:
    """A loop whose biases are what `make` returns."""

    def __init__(self, make: Any) -> None:
        kv = KVManager([KVGroupSpec((0,), 16)], [40])
        settings = SchedulerSettings(max_num_seqs=6)
        scheduler = Scheduler(settings, kv, max_model_len=64, vocab_size=64)
        self.runner = Seven()
        self.loop = CoreLoop(scheduler, self.runner)
        self.loop.biases = LogitsBiases(scheduler, make)
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, SampleDelta] = {}

    def add(self, handle: int, *, processed: bool, max_tokens: int = 4, n: int = 1) -> None:
        processors = [len] if processed else []
        params = SamplingParams(max_tokens=max_tokens, n=n, logits_processors=processors)
        self.loop.add(EngineRequest("r", handle, [1, 2], params))

    def step(self) -> None:
        if (news := self.loop.step()) is None:
            return
        for handle, token in zip(news.handles.tolist(), news.tokens.tolist(), strict=True):
            self.tokens.setdefault(handle, []).append(token)
        for _, delta in news.deltas:
            self.tokens.setdefault(delta.handle, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                self.ends[delta.handle] = delta

    def run(self) -> None:
        while not self.loop.idle:
            self.step()
        self.loop.check_idle()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opened at the end, so that no thread is left."""
    made = threading.Event()
    yield made
    made.set()


def test_each_token_has_the_bias_of_all_tokens_before_it() -> None:
    engine = Engine(lambda _, prompt, output, size: (*prompt, *output, size))
    engine.add(0, processed=True)
    engine.run()
    biases = [bias for plan in engine.runner.plans for bias in plan.biases]
    assert biases == [(1, 2, *[7] * count, 64) for count in range(4)]
    assert engine.tokens[0] == [7] * 4
    engine.loop.biases.close()


def test_others_go_on_while_a_sample_waits(gate: threading.Event) -> None:
    engine = Engine(lambda *_: gate.wait())
    engine.add(0, processed=True)
    engine.add(5, processed=False, max_tokens=30)
    while 5 not in engine.ends:
        engine.step()
    assert len(engine.tokens[5]) == 30
    assert 0 not in engine.tokens
    # A step a token: nothing was waited for.
    assert len(engine.runner.plans) == 30
    gate.set()
    engine.run()
    assert engine.ends[0].finish_reason is FinishReason.LENGTH


def test_a_loop_with_nothing_else_to_do_waits_instead_of_spinning(gate: threading.Event) -> None:
    engine = Engine(lambda *_: gate.wait())
    engine.add(0, processed=True)
    engine.step()
    threading.Timer(0.3, gate.set).start()
    steps = 0
    while 0 not in engine.ends:
        engine.step()
        steps += 1
    assert steps < 100


def test_the_samples_of_n_share_the_first_bias_and_have_their_own_from_there() -> None:
    calls: list[int] = []
    engine = Engine(lambda _, prompt, output, __: calls.append(len(output)))
    engine.add(0, processed=True, n=3, max_tokens=3)
    engine.run()
    assert sorted(calls) == [0, 1, 1, 1, 2, 2, 2]
    assert all(engine.tokens[handle] == [7] * 3 for handle in range(3))


@pytest.mark.parametrize("fails_at", [0, 2])
def test_what_a_processor_raises_ends_its_request_alone(fails_at: int) -> None:
    def make(_: Any, prompt: list[int], output: list[int], __: int) -> int:
        if len(output) == fails_at:
            raise KeyError("gone")
        return 0

    engine = Engine(make)
    engine.add(0, processed=True, n=2)
    engine.add(5, processed=False)
    engine.run()
    for handle in range(2):
        assert len(engine.tokens[handle]) == fails_at
        end = engine.ends[handle]
        assert end.finish_reason is FinishReason.ERROR
        assert end.error == "logits_processors: a processor raised KeyError: 'gone'"
    assert engine.ends[5].finish_reason is FinishReason.LENGTH


def test_a_sample_that_is_ended_while_it_waits_leaves_nothing(gate: threading.Event) -> None:
    engine = Engine(lambda *_: gate.wait())
    engine.add(0, processed=True)
    engine.step()
    engine.loop.end(0)
    assert engine.loop.idle
    gate.set()
    engine.add(1, processed=True)
    engine.run()
    assert list(engine.ends) == [1]


def test_closing_does_not_wait_for_a_processor(gate: threading.Event) -> None:
    engine = Engine(lambda *_: gate.wait())
    engine.loop.biases.close()
    engine.add(0, processed=True)
    engine.step()
    engine.loop.biases.close()
