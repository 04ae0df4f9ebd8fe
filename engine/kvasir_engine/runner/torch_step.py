"""A launched step of the torch runner, whose results are on their way."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir_engine.device.host_copy import HostCopy
from kvasir_engine.step_plan import PromptLogprobs, StepOutput, StepPlan, TokenLogprobs


@dataclass(slots=True)
class TorchStep:
    """A launched step: its results are being copied to the host."""

    plan: StepPlan
    sampled: HostCopy
    prompts: list[tuple[int, int, HostCopy]]

    def wait(self) -> StepOutput:
        """StepHandle.wait."""
        prompts = [
            PromptLogprobs(row, first, TokenLogprobs(**found.wait()))
            for row, first, found in self.prompts
        ]
        sampled = self.sampled.wait()
        tokens = sampled.pop("tokens")
        logprobs = TokenLogprobs(**sampled) if sampled else None
        return StepOutput(self.plan.step_id, tokens, logprobs, prompts)
