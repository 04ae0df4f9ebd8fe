"""Steps of one kind after another, on an engine in this process: decodes, prompts, or both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvasir_engine.core.build import Core
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.step_plan import StepOutput, StepPlan
from kvasir_engine.step_runner import Runner, StepHandle

WARM_STEPS = 4
"""Steps of each kind that run before it is measured."""


class _TimedHandle:
    def __init__(self, handle: StepHandle, runner: TimedRunner) -> None:
        self._handle, self._runner = handle, runner

    def wait(self) -> StepOutput:
        """StepHandle.wait."""
        begin = time.perf_counter()
        output = self._handle.wait()
        self._runner.waited += time.perf_counter() - begin
        return output


class TimedRunner:
    """A runner that knows how long its caller has waited for it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.waited = 0.0
        """Seconds so far."""

    def forward(self, plan: StepPlan) -> None:
        """Runner.forward."""
        self._runner.forward(plan)

    def sample(self, plan: StepPlan) -> StepHandle:
        """Runner.sample."""
        return _TimedHandle(self._runner.sample(plan), self)

    def recover(self, error: Exception) -> bool:
        """Runner.recover: a measurement with a step that failed is none."""
        raise error

    def close(self) -> None:
        """Runner.close."""
        self._runner.close()


@dataclass(frozen=True, slots=True)
class StepTime:
    """Means over steps of a kind, milliseconds."""

    wall: float
    host: float
    """Milliseconds of the loop's thread itself: all of `wall` but waiting for the device."""


class Steps:
    """Give an engine requests such that its steps are of one kind."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._runner = TimedRunner(core.loop.runner)
        core.loop.runner = self._runner
        self._draw = np.random.default_rng(0)
        self._next = 0
        self.common: list[int] = []
        """Token ids that prompts begin with."""

    def prompt(self, tokens: int) -> list[int]:
        """Random token ids."""
        ids: list[int] = self._draw.integers(
            self._core.built_runner.vocab_size, size=tokens
        ).tolist()
        return ids

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        """A request of `common` and random token ids that ends at its last token only."""
        ids = self.common + self.prompt(prompt_tokens)
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.6)
        self._core.scheduler.add(EngineRequest(f"bench-{self._next}", self._next, ids, params))
        self._next += 1

    @property
    def budget(self) -> int:
        """Tokens of a step."""
        return self._core.scheduler.settings.max_num_batched_tokens

    def fill_queue(self, prompts: int, prompt_tokens: int) -> None:
        """Add prompts until `prompts` wait."""
        while len(self._core.scheduler.waiting) < prompts:
            self.add(prompt_tokens, 1)

    def run(self, count: int, before_each: Callable[[], None] | None = None) -> StepTime:
        """`count` steps; `before_each` may add requests."""
        begin, waited = time.perf_counter(), self._runner.waited
        for _ in range(count):
            if before_each is not None:
                before_each()
            self._core.loop.step()
        wall = time.perf_counter() - begin
        host = wall - (self._runner.waited - waited)
        return StepTime(wall / count * 1e3, host / count * 1e3)

    def run_out(self) -> None:
        """Step until nothing runs."""
        while not self._core.loop.idle:
            self._core.loop.step()

    def finish(self) -> None:
        """Step until nothing runs, and empty the prefix cache."""
        self.run_out()
        self._core.scheduler.kv.reset_cache()

    def until_decoding(self) -> None:
        """Step until every prompt has been computed."""
        while self._core.scheduler.prefill_backlog():
            self._core.loop.step()
        self.run(WARM_STEPS)
