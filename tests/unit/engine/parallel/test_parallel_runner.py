"""The order of sending and running, and who is told when rank 0's part fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvasir_engine.parallel.parallel_runner import TensorParallelRunner
from kvasir_engine.step_plan import StepOutput

PLAN = SimpleNamespace(masks=None)
OUTPUT = StepOutput(0, np.array([7], dtype=np.int32))


class Rank:
    """Rank 0's runner, and its step, with a log."""

    def __init__(self, log: list[str], fails: str = "") -> None:
        self.log, self.fails = log, fails

    def _run(self, what: str) -> None:
        self.log.append(what)
        if self.fails == what:
            raise RuntimeError(what)

    def forward(self, plan: Any) -> None:
        self._run("forward")

    def sample(self, plan: Any) -> Rank:
        self._run("sample")
        return self

    def wait(self) -> StepOutput:
        self._run("wait")
        return OUTPUT

    def close(self) -> None:
        self._run("close")


class Others:
    """The executor's side of it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def send(self, plan: Any) -> None:
        self.log.append("send plan")

    def send_masks(self, masks: Any) -> None:
        self.log.append(f"send {masks}")

    @contextmanager
    def together(self) -> Iterator[None]:
        self.log.append("(")
        try:
            yield
        except RuntimeError as error:
            raise ValueError(f"blamed: {error}") from error
        self.log.append(")")

    def before_close(self, free: Callable[[], None]) -> None:
        self.free = free

    def close(self) -> None:
        self.free()
        self.log.append("end others")


def make(fails: str = "") -> tuple[Any, list[str]]:
    log: list[str] = []
    return TensorParallelRunner(Rank(log, fails), Others(log)), log  # type: ignore[arg-type]


def test_a_plan_is_sent_before_it_runs_here() -> None:
    runner, log = make()
    runner.forward(PLAN)
    step = runner.sample(PLAN)
    assert step.wait() is OUTPUT
    assert " ".join(log) == "( send plan forward ) ( sample ) ( wait )"


def test_masks_are_sent_before_it_is_sampled_here() -> None:
    runner, log = make()
    plan = SimpleNamespace(masks=None)
    runner.forward(plan)
    plan.masks = "masks"
    runner.sample(plan)
    assert " ".join(log[4:]) == "( send masks sample )"


def test_the_executor_frees_rank_0_on_its_way_out() -> None:
    """What rank 0 holds, as CUDA graphs with collectives, must be gone when the group is left."""
    runner, log = make()
    runner.close()
    assert log == ["close", "end others"]


@pytest.mark.parametrize("part", ["forward", "sample", "wait"])
def test_an_error_in_any_part_goes_through_the_executor(part: str) -> None:
    runner, _ = make(part)

    def step() -> None:
        runner.forward(PLAN)
        runner.sample(PLAN).wait()

    with pytest.raises(ValueError, match=f"blamed: {part}"):
        step()
