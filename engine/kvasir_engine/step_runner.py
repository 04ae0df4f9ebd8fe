"""The runner: executes step plans on a device. One interface for torch and for the simulation."""

from __future__ import annotations

from typing import Protocol

from kvasir_engine.step_plan import StepOutput, StepPlan


class StepHandle(Protocol):
    """A launched step whose results are on their way to the CPU."""

    def wait(self) -> StepOutput:
        """Block until this step's outputs are on the CPU. The one synchronisation of a step."""
        ...


class Runner(Protocol):
    """Execute plans in order. A step is two launches, neither of which waits for the device.

    An exception leaves the rows' state undefined: `recover` is called, and rows begin anew.
    """

    def forward(self, plan: StepPlan) -> None:
        """Launch state updates, block copies and the forward pass, ending at hidden states."""
        ...

    def sample(self, plan: StepPlan) -> StepHandle:
        """Launch head, sampling, state advance and the copy of the results to the CPU."""
        ...

    def recover(self, error: Exception) -> bool:
        """Be ready for the next plan after a launch, or a step's `wait`, raised `error`.

        No step is in flight, and the next plans begin every row they name. Return True if memory
        was short, so that a smaller step may succeed. Raises FatalError, or `error` itself, if the
        device cannot go on.
        """
        ...

    def close(self) -> None:
        """Free the device. Idempotent."""
        ...
