"""A request's tokens depend on its seed and sample index alone, not on what runs beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.request import Resume
from kvasir_engine.sampling_params import SamplingParams

PARAMS = {
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 40,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
    "max_tokens": 24,
}


def prompt(length: int, seed: int = 5) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(160) for _ in range(length)]


@pytest.fixture
def model(hf_model_dir: Callable[[str], Path]) -> Path:
    return hf_model_dir("llama3")


@pytest.fixture
def alone(model: Path, make_engine: Callable[..., Any], job: type) -> list[int]:
    """The tokens of the seeded request by itself."""
    ((result,),) = make_engine(model).run([job(prompt(37), SamplingParams(**PARAMS, seed=42))])
    assert result.seed == 42
    tokens: list[int] = result.tokens
    return tokens


def neighbours(job: type, count: int) -> list[Any]:
    return [
        job(prompt(5 + 3 * i, seed=i), SamplingParams(temperature=0.7 + i / 50, max_tokens=30))
        for i in range(count)
    ]


@pytest.mark.slow
def test_in_a_batch_of_32(
    model: Path, make_engine: Callable[..., Any], job: type, alone: list[int]
) -> None:
    core = make_engine(model, max_num_seqs=32, max_num_batched_tokens=512)
    jobs = neighbours(job, 31)
    jobs.insert(17, job(prompt(37), SamplingParams(**PARAMS, seed=42)))
    results = core.run(jobs)
    assert results[17][0].tokens == alone
    assert core.counters.steps < 60


def test_after_preemption(
    model: Path, make_engine: Callable[..., Any], job: type, alone: list[int]
) -> None:
    core = make_engine(model, num_blocks=14)
    # The last to arrive is the first to give up its blocks.
    jobs = [*neighbours(job, 5), job(prompt(37), SamplingParams(**PARAMS, seed=42))]
    assert core.run(jobs)[-1][0].tokens == alone
    assert core.counters.preemptions > 0


def test_after_a_restart(
    model: Path, make_engine: Callable[..., Any], job: type, alone: list[int]
) -> None:
    ((result,),) = make_engine(model).run([job(prompt(37), SamplingParams(**PARAMS, seed=42))])
    assert result.tokens == alone


@pytest.mark.slow
def test_after_resume_at_every_position(
    model: Path, make_engine: Callable[..., Any], job: type, alone: list[int]
) -> None:
    core = make_engine(model)
    for at in range(len(alone)):
        resume = Resume(alone[:at], seed=42)
        ((result,),) = core.run([job(prompt(37), SamplingParams(**PARAMS), resume)])
        assert result.tokens == alone[at:]


def test_unseeded_requests_draw_a_seed_that_reproduces_them(
    model: Path, make_engine: Callable[..., Any], job: type
) -> None:
    core = make_engine(model)
    first, second = core.run([job(prompt(9), SamplingParams(**PARAMS)) for _ in range(2)])
    assert first[0].seed != second[0].seed
    again = core.run([job(prompt(9), SamplingParams(**PARAMS, seed=first[0].seed))])
    assert again[0][0].tokens == first[0].tokens
    assert first[0].tokens != second[0].tokens


@pytest.mark.slow
def test_the_seed_flag_makes_unseeded_requests_repeatable(
    model: Path, make_engine: Callable[..., Any], job: type
) -> None:
    runs = [
        make_engine(model, seed=seed).run([job(prompt(9), SamplingParams(**PARAMS))])[0][0].tokens
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
