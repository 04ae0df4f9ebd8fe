"""A runner alone: steps launched before the last one's tokens are on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvasir_engine.runner.torch_runner import TorchRunner
from kvasir_engine.settings import make_settings
from kvasir_engine.startup.torch_build import build_torch_runner
from kvasir_engine.step_plan import PromptLogprobsPlan, RowInit, RowSampling, StepPlan

PROMPTS = {2: [5, 77, 12, 150, 3], 0: [9, 9, 31]}
"""By row."""


@pytest.fixture
def runner(hf_model_dir) -> TorchRunner:
    settings = make_settings("m", device="cpu", num_blocks=8, max_num_seqs=3, max_model_len=60)
    made = build_torch_runner(settings, Path(hf_model_dir("llama3"))).runner
    assert isinstance(made, TorchRunner)
    return made


def int32(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def prefill(**extra: Any) -> StepPlan:
    greedy = RowSampling(seed=0, temperature=0.0)
    inits = [
        RowInit(row, int32(*prompt), len(prompt), 0, [int32(1 + row)], greedy)
        for row, prompt in PROMPTS.items()
    ]
    lengths = int32(*map(len, PROMPTS.values()))
    rows = int32(*PROMPTS)
    return StepPlan(0, rows, lengths, int32(0, 0), 0, int32(0, 1), rows, inits=inits, **extra)


def decode(step: int) -> StepPlan:
    rows = int32(*PROMPTS)
    starts = int32(*(len(prompt) + step - 1 for prompt in PROMPTS.values()))
    return StepPlan(step, rows, int32(1, 1), starts, 2, int32(0, 1), rows)


def test_tokens_feed_the_next_step_before_the_host_sees_them(runner, hf_logits) -> None:
    expected = {row: list(prompt) for row, prompt in PROMPTS.items()}
    for tokens in expected.values():
        for _ in range(4):
            tokens.append(int(hf_logits("llama3", tokens)[-1].argmax()))
    launched = []
    for plan in (prefill(), decode(1), decode(2), decode(3)):
        runner.forward(plan)
        launched.append(runner.sample(plan))
    found = np.stack([step.wait().tokens for step in launched], axis=1)
    for row, sampled in zip(PROMPTS, found.tolist(), strict=True):
        assert PROMPTS[row] + sampled == expected[row]


def test_logprobs_of_the_prompt_and_of_the_sample(runner, hf_logits) -> None:
    wanted = PromptLogprobsPlan(entry=0, first=1, last=4, top=2)
    plan = prefill(top_logprobs=1, prompt_logprobs=[wanted])
    runner.forward(plan)
    output = runner.sample(plan).wait()
    logprobs = hf_logits("llama3", PROMPTS[2]).log_softmax(-1)
    (report,) = output.prompt_logprobs
    assert (report.row, report.first, report.found.top_ids.shape) == (2, 1, (3, 2))
    targets = torch.tensor(PROMPTS[2][2:])
    expected = logprobs[1:4].gather(1, targets[:, None]).flatten()
    assert report.found.logprobs == pytest.approx(expected.tolist(), abs=1e-3)
    assert output.logprobs is not None
    assert output.logprobs.logprobs[0] == pytest.approx(logprobs[4].max().item(), abs=1e-3)
    assert output.logprobs.top_ids[:, 0].tolist() == output.tokens.tolist()


def test_a_step_that_samples_nothing_returns_no_token(runner) -> None:
    plan = prefill()
    plan.sample_entries = plan.sample_rows = int32()
    runner.forward(plan)
    assert runner.sample(plan).wait().tokens.tolist() == []


def test_sampling_needs_a_forward_pass_of_its_own(runner) -> None:
    plan = prefill()
    runner.forward(plan)
    runner.sample(plan)
    with pytest.raises(RuntimeError, match="before forward"):
        runner.sample(plan)
