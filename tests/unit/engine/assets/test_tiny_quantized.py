"""The shipped model in float8: its tasks, and how likely it finds held-out answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.tiny_model.draw import Sample
from benchmarks.tiny_model.evaluate import Judge, Row

from kvasir_engine.llm import LLM
from kvasir_engine.sampling_params import SamplingParams

pytestmark = pytest.mark.slow

TASKS = [Row("sort", items=8), *(Row(t) for t in ("recall", "copy", "reverse", "add", "extract"))]
EACH = 35


@pytest.fixture(scope="module")
def samples(tiny: Path) -> list[Sample]:
    judge = Judge(tiny)
    return [sample for row in TASKS for sample in row.samples(EACH, judge)]


@pytest.fixture(scope="module")
def llms(tiny: Path) -> Iterator[dict[str, LLM]]:
    made = {
        name: LLM(str(tiny), device="cpu", max_num_seqs=64, quantization=name)
        for name in ("auto", "fp8")
    }
    yield made
    for llm in made.values():
        llm.close()


def right_answers(llm: LLM, samples: list[Sample]) -> int:
    turns = [[{"role": "user", "content": sample.prompt}] for sample in samples]
    params = SamplingParams(temperature=0.0, max_tokens=96)
    outputs = llm.chat(turns, params, use_tqdm=False)
    return sum(
        output.outputs[0].text == sample.answer
        for output, sample in zip(outputs, samples, strict=True)
    )


def nll(llm: LLM, samples: list[Sample]) -> float:
    """Mean negative log-likelihood of the tokens of questions with their answers."""
    turns = [
        [
            {"role": "user", "content": sample.prompt},
            {"role": "assistant", "content": sample.answer},
        ]
        for sample in samples
    ]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    outputs = llm.chat(turns, params, use_tqdm=False, add_generation_prompt=False)
    found = [
        next(iter(entry.values())).logprob
        for output in outputs
        for entry in (output.prompt_logprobs or [])
        if entry
    ]
    assert len(found) > 20 * len(samples)
    return -sum(found) / len(found)


def test_no_more_than_half_a_point_is_lost(llms: dict[str, LLM], samples: list[Sample]) -> None:
    plain, quantised = (right_answers(llms[name], samples) for name in ("auto", "fp8"))

    # Of 210 answers one is half a point.
    assert quantised >= plain - 1
    assert plain >= 0.98 * len(samples)


def test_held_out_text_is_as_likely(llms: dict[str, LLM], samples: list[Sample]) -> None:
    plain, quantised = (nll(llms[name], samples) for name in ("auto", "fp8"))

    assert quantised != plain, "nothing is quantised"
    assert quantised <= 1.01 * plain
