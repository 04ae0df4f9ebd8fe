"""Rank 0's runner in a tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir_engine.parallel.executor import Executor
from kvasir_engine.step_plan import StepOutput, StepPlan
from kvasir_engine.step_runner import Runner, StepHandle


@dataclass(slots=True)
class ParallelStep:
    """A launched step of all ranks; the results are rank 0's."""

    handle: StepHandle
    executor: Executor

    def wait(self) -> StepOutput:
        """StepHandle.wait."""
        with self.executor.together():
            return self.handle.wait()


class TensorParallelRunner:
    """Send each plan to the other ranks, then run it here.

    Every rank samples from the gathered logits with the same keys, so that nothing but the plans,
    and the masks of grammars, has to be sent.
    """

    def __init__(self, runner: Runner, executor: Executor) -> None:
        self._runner = runner
        self._executor = executor
        executor.before_close(runner.close)

    def forward(self, plan: StepPlan) -> None:
        """Runner.forward. The other ranks go on to sample() by themselves."""
        with self._executor.together():
            self._executor.send(plan)
            self._runner.forward(plan)

    def sample(self, plan: StepPlan) -> ParallelStep:
        """Runner.sample. The other ranks wait for the masks that the forward pass did not need."""
        with self._executor.together():
            if plan.masks is not None:
                self._executor.send_masks(plan.masks)
            return ParallelStep(self._runner.sample(plan), self._executor)

    def recover(self, error: Exception) -> bool:
        """Runner.recover: the ranks have lost each other."""
        raise error

    def close(self) -> None:
        """Runner.close."""
        self._executor.close()
