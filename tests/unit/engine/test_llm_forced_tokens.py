"""Forced tokens on the tiny model: the same outputs as token by token, in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvasir_engine import LLM, SamplingParams
from kvasir_engine.outputs import RequestOutput
from kvasir_engine.scheduler import masks

pytestmark = pytest.mark.slow

TINY = "builtin://kvasir-tiny"
PROMPTS = ["The quick", "Hello", "Sort: 3 1 2"]
FORM = {"json": {"enum": ["漢字仮名交じり文", "漢字のみ"]}}
"""Characters of three tokens each."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.5, "seed": 3, "n": 2},
    "penalised": {"temperature": 0, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "cut": {"temperature": 0, "max_tokens": 9},
    "stopped": {"temperature": 0, "stop": ["字"]},
}


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    made = LLM(
        TINY,
        max_num_seqs=8,
        kv_cache_memory_bytes=16 << 20,
        structured_outputs_backend=request.param,
    )
    yield made
    made.close()


def generate(llm: LLM, **fields: Any) -> tuple[list[RequestOutput], int]:
    """Outputs, and the steps that they took."""
    counters = llm._core.scheduler.counters
    before = counters.steps
    params = SamplingParams(**{"max_tokens": 60, "structured_outputs": FORM, **fields})
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return outputs, counters.steps - before


def read(outputs: list[RequestOutput]) -> list[tuple[str, list[int], str | None]]:
    samples = [sample for output in outputs for sample in output.outputs]
    return [(each.text, each.token_ids, each.finish_reason) for each in samples]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_single_tokens_in_fewer_steps(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    forced, few = generate(llm, **KINDS[kind])
    monkeypatch.setattr(masks, "MAX_FORCED", 0)
    single, many = generate(llm, **KINDS[kind])
    assert read(forced) == read(single)
    assert few < many


def test_a_step_goes_for_a_run_of_tokens(llm: LLM) -> None:
    outputs, few = generate(llm, temperature=0)
    _, many = generate(llm, temperature=0, logprobs=0)
    longest = max(len(sample.token_ids) for output in outputs for sample in output.outputs)
    assert many >= longest
    assert few <= many / 2
