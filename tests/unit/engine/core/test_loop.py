from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest

from kvasir_engine.core.loop import CoreLoop
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.settings import SchedulerSettings
from kvasir_engine.step_plan import StepOutput, StepPlan


class DeviceLostError(Exception):
    """Raised by a broken step whose device cannot go on."""


@dataclass
class Recorder:
    """A runner whose tokens are all 7, and a watcher; writes down what is called in what order."""

    calls: list[str] = field(default_factory=list)

    def forward(self, plan: StepPlan) -> None:
        self.calls.append(f"forward {plan.step_id}")

    def sample(self, plan: StepPlan) -> Recorded:
        self.calls.append(f"sample {plan.step_id}")
        return Recorded(self, plan)

    def recover(self, error: Exception) -> bool:
        if isinstance(error, DeviceLostError):
            raise error
        return False

    def close(self) -> None:
        self.calls.append("close")

    def launched(self, plan: StepPlan) -> None:
        self.calls.append(f"launched {plan.step_id}")

    def retired(self, plan: StepPlan) -> None:
        self.calls.append(f"retired {plan.step_id}")

    def open_steps(self) -> set[str]:
        """Those that were launched and have not retired."""
        told = [call.split() for call in self.calls]
        return {step for word, step in told if word == "launched"} - {
            step for word, step in told if word == "retired"
        }


@dataclass
class Recorded:
    """A launched step."""

    recorder: Recorder
    plan: StepPlan

    def wait(self) -> StepOutput:
        self.recorder.calls.append(f"wait {self.plan.step_id}")
        tokens = np.full(len(self.plan.sample_rows), 7, dtype=np.int32)
        return StepOutput(self.plan.step_id, tokens)


def make(*, overlap: bool = True) -> tuple[CoreLoop, Recorder]:
    kv = KVManager([KVGroupSpec((0,), 16)], [20])
    scheduler = Scheduler(SchedulerSettings(max_num_seqs=4), kv, max_model_len=64, vocab_size=64)
    recorder = Recorder()
    return CoreLoop(scheduler, recorder, overlap=overlap, watcher=recorder), recorder


def add(loop: CoreLoop, handle: int = 0, max_tokens: int = 3) -> None:
    loop.scheduler.add(EngineRequest("r", handle, [1, 2], SamplingParams(max_tokens=max_tokens)))


def run(loop: CoreLoop) -> list[int]:
    """Tokens told by each call of step()."""
    told = []
    while not loop.idle:
        news = loop.step()
        count = 0
        if news is not None:
            count = len(news.tokens) + sum(len(delta.token_ids) for _, delta in news.deltas)
        told.append(count)
    return told


def test_a_step_is_launched_before_the_one_before_it_is_waited_for() -> None:
    loop, recorder = make()
    add(loop)
    assert run(loop) == [0, 1, 1, 1]
    launches = [call for call in recorder.calls if call.split()[0] in ("forward", "wait")]
    assert launches == ["forward 0", "forward 1", "wait 0", "forward 2", "wait 1", "wait 2"]


def test_without_overlap_each_step_is_waited_for_at_once() -> None:
    loop, recorder = make(overlap=False)
    add(loop)
    assert run(loop) == [1, 1, 1]
    launches = [call for call in recorder.calls if call.split()[0] in ("forward", "wait")]
    assert launches == ["forward 0", "wait 0", "forward 1", "wait 1", "forward 2", "wait 2"]


def test_the_watcher_hears_of_a_launch_before_and_of_its_end_after() -> None:
    loop, recorder = make()
    add(loop, max_tokens=1)
    run(loop)
    assert recorder.calls == ["launched 0", "forward 0", "sample 0", "wait 0", "retired 0"]


def test_one_wait_at_most_an_iteration() -> None:
    loop, recorder = make()
    for handle in range(6):
        add(loop, handle, max_tokens=1 + handle)
    while not loop.idle:
        before = len(recorder.calls)
        loop.step()
        assert sum(call.startswith("wait") for call in recorder.calls[before:]) <= 1


def test_an_idle_loop_launches_nothing() -> None:
    loop, recorder = make()
    assert loop.idle
    assert loop.step() is None
    assert recorder.calls == []
    loop.check_idle()


def test_it_is_not_idle_while_the_step_of_an_aborted_request_runs() -> None:
    loop, recorder = make()
    add(loop)
    loop.step()
    loop.scheduler.end(0)
    assert not loop.idle
    with pytest.raises(AssertionError, match="1 rows are owned"):
        loop.check_idle()
    loop.step()
    assert loop.idle
    loop.check_idle()
    assert recorder.calls[-1] == "retired 0"


def break_once(method: Callable[..., Any], nth: int) -> Callable[..., Any]:
    """`method`, but its `nth` call (from 0) raises."""
    calls = count()

    def broken(*args: Any) -> Any:
        if next(calls) == nth:
            raise DeviceLostError
        return method(*args)

    return broken


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize("where", ["forward", "sample", "wait"])
def test_a_device_that_fails_withdraws_every_request(
    where: str, nth: int, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a row, in the queue, forked, in a beam search: nothing is left behind, and nothing that
    the step may not have written is found in the cache."""
    loop, recorder = make(overlap=overlap)
    owner: Any = Recorded if where == "wait" else recorder
    broken = break_once(getattr(owner, where), nth)
    for handle in range(3):
        add(loop, handle, max_tokens=9)
    params = SamplingParams(n=3, max_tokens=4)
    loop.scheduler.add(EngineRequest("n", 10, list(range(40)), params))
    with monkeypatch.context() as patch:
        patch.setattr(owner, where, broken)
        with pytest.raises(DeviceLostError):
            run(loop)
    assert loop.idle
    loop.check_idle()
    loop.scheduler.kv.check_integrity()
    assert recorder.open_steps() == set()
    loop.scheduler.add(EngineRequest("n", 20, list(range(40)), params))
    deltas = []
    while not loop.idle:
        news = loop.step()
        deltas += [] if news is None else [delta for _, delta in news.deltas]
    assert {delta.num_cached_tokens for delta in deltas} == {0, None}
    assert len(deltas) == 6, "the first and the last of each sample"
    loop.check_idle()
