"""A launched step of the torch runner, whose results are on their way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvasir_engine.device.host_copy import HostCopy
from kvasir_engine.sampling.token_logprobs import Logprobs
from kvasir_engine.step_plan import PromptLogprobs, StepOutput, StepPlan


@dataclass(slots=True)
class TorchStep:
    """A launched step: its results are being copied to the host."""

    plan: StepPlan
    sampled: HostCopy
    prompts: list[tuple[int, int, HostCopy]]

    def wait(self) -> StepOutput:
        """StepHandle.wait."""
        arrays = self.sampled.wait()
        output = StepOutput(self.plan.step_id, arrays["tokens"])
        output.logprobs = arrays.get("logprobs")
        output.ranks = arrays.get("ranks")
        output.top_ids = arrays.get("top_ids")
        output.top_logprobs = arrays.get("top_logprobs")
        for row, first, copy in self.prompts:
            fields = copy.wait()
            output.prompt_logprobs.append(
                PromptLogprobs(
                    row,
                    first,
                    fields["logprobs"],
                    fields["ranks"],
                    fields["top_ids"],
                    fields["top_logprobs"],
                )
            )
        return output


def fields(found: Logprobs | None) -> dict[str, torch.Tensor]:
    """Return the tensors of `found` by name, {} for None."""
    if found is None:
        return {}
    return {
        "logprobs": found.values,
        "ranks": found.ranks,
        "top_ids": found.top_ids,
        "top_logprobs": found.top_values,
    }
