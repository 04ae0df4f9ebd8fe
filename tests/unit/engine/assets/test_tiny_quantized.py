"""The shipped model in float8 and 4 bits: its tasks, and how likely it finds held-out answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.tiny_model.draw import Sample
from benchmarks.tiny_model.evaluate import Judge, Row
from support.engines.int4_checkpoints import Int4Checkpoint, Rounding

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
def llms(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LLM]]:
    in_4_bits = tmp_path_factory.mktemp("int4")
    Int4Checkpoint(tiny, in_4_bits, Rounding(128), "awq").save()
    asked: dict[str, tuple[Path, Any]] = {
        "plain": (tiny, "auto"),
        "fp8": (tiny, "fp8"),
        "int4": (in_4_bits / "int4", "auto"),
    }
    made = {
        name: LLM(str(path), device="cpu", max_num_seqs=64, quantization=quantization)
        for name, (path, quantization) in asked.items()
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


@pytest.fixture(scope="module")
def plain(llms: dict[str, LLM], samples: list[Sample]) -> tuple[int, float]:
    """Right answers of the plain model, and its negative log-likelihood."""
    return right_answers(llms["plain"], samples), nll(llms["plain"], samples)


# Points that may be lost are half a one and three: of 210 answers one is half a point.
@pytest.mark.parametrize(("name", "lost"), [("fp8", 1), ("int4", 6)])
def test_few_answers_are_lost(
    name: str,
    lost: int,
    llms: dict[str, LLM],
    samples: list[Sample],
    plain: tuple[int, float],
) -> None:
    assert right_answers(llms[name], samples) >= plain[0] - lost
    assert plain[0] >= 0.98 * len(samples)


@pytest.mark.parametrize(("name", "share"), [("fp8", 1.01), ("int4", 1.03)])
def test_held_out_text_is_as_likely(
    name: str,
    share: float,
    llms: dict[str, LLM],
    samples: list[Sample],
    plain: tuple[int, float],
) -> None:
    quantised = nll(llms[name], samples)

    assert quantised != plain[1], "nothing is quantised"
    assert quantised <= share * plain[1]
