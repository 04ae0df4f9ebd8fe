"""Every architecture against transformers: greedy tokens and log-probabilities must not depend on
batching, chunking, prefix hits, preemption or overlap, each of which is asserted to have happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvasir_engine.request import Resume
from kvasir_engine.sampling_params import SamplingParams

pytestmark = pytest.mark.slow

ARCHITECTURES = [
    "llama2",
    "llama3",
    "llama31",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3_long",
    "mixtral",
    "qwen3_moe",
    "olmo2",
    "granite",
    "exaone4",
    "smollm3",
    "stablelm",
    "gpt_oss",
    "starcoder2",
    "llama3@transformers",
]
LENGTHS = (3, 17, 33, 48, 61)
"""Below and at block boundaries, and longer than every model's window (at most 24)."""
NEW_TOKENS = 20
GREEDY = {"temperature": 0.0, "max_tokens": NEW_TOKENS}


def prompts(seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(160) for _ in range(n)] for n in LENGTHS]


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def engine(
    architecture: str,
    hf_model_dir: Callable[[str], Path],
    make_engine: Callable[..., Any],
) -> Callable[..., Any]:
    """engine(**settings): the architecture's small model in a core."""
    name, _, impl = architecture.partition("@")

    def make(**settings: Any) -> Any:
        return make_engine(hf_model_dir(name), model_impl=impl or "auto", **settings)

    return make


@pytest.fixture
def hf(architecture: str, judge: Callable[[str], Any]) -> Any:
    return judge(architecture.partition("@")[0])


@pytest.fixture
def greedy_jobs(job: type) -> list[Any]:
    return [job(prompt, SamplingParams(**GREEDY, logprobs=5)) for prompt in prompts()]


def check_all(hf: Any, jobs: list[Any], results: list[Any]) -> None:
    for each, (result,) in zip(jobs, results, strict=True):
        assert len(result.tokens) == each.params.max_tokens
        hf.check_greedy(each.prompt, result)


def test_batched_prompts_of_mixed_lengths(engine: Any, hf: Any, greedy_jobs: list[Any]) -> None:
    core = engine()
    check_all(hf, greedy_jobs, core.run(greedy_jobs))
    assert core.counters.steps == NEW_TOKENS
    assert core.counters.chunked_prefills == core.counters.preemptions == 0


def test_chunks_of_seven_tokens_and_late_arrivals(
    engine: Any, hf: Any, greedy_jobs: list[Any]
) -> None:
    core = engine(long_prefill_token_threshold=7)
    check_all(hf, greedy_jobs, core.run(greedy_jobs, arrive=1))
    assert core.counters.chunked_prefills == sum((n - 1) // 7 for n in LENGTHS)


def test_prefix_hits(engine: Any, hf: Any, greedy_jobs: list[Any], job: type) -> None:
    core = engine()
    core.run(greedy_jobs)
    longer = [
        job([*each.prompt, 1, 2, 3], SamplingParams(**GREEDY, logprobs=5)) for each in greedy_jobs
    ]
    results = core.run([*greedy_jobs, *longer])
    check_all(hf, [*greedy_jobs, *longer], results)
    hits = [result.num_cached for (result,) in results[: len(LENGTHS)]]
    assert hits == [(n - 1) // 16 * 16 for n in LENGTHS]
    assert all(result.num_cached % 16 == 0 for (result,) in results)
    assert core.counters.prefix_hits == sum(r.num_cached for (r,) in results)


def test_forced_preemption(engine: Any, hf: Any, greedy_jobs: list[Any]) -> None:
    core = engine(num_blocks=14)
    check_all(hf, greedy_jobs, core.run(greedy_jobs))
    assert core.counters.preemptions > 0


def test_without_overlap(engine: Any, hf: Any, greedy_jobs: list[Any]) -> None:
    synchronous = engine(overlap=False).run(greedy_jobs)
    check_all(hf, greedy_jobs, synchronous)
    overlapped = engine(overlap=True).run(greedy_jobs)
    for each, (one,), (other,) in zip(greedy_jobs, synchronous, overlapped, strict=True):
        hf.same_tokens(each.prompt, one.tokens, other.tokens)


def test_everything_at_once(engine: Any, hf: Any, greedy_jobs: list[Any]) -> None:
    core = engine(num_blocks=14, long_prefill_token_threshold=7)
    core.run(greedy_jobs, arrive=1)
    before = core.counters.preemptions
    check_all(hf, greedy_jobs, core.run(greedy_jobs, arrive=1))
    assert core.counters.preemptions > before
    assert core.counters.prefix_hits > 0
    assert core.counters.chunked_prefills > 0


def test_samples_of_one_request_equal_single_requests(
    engine: Any, job: type, architecture: str
) -> None:
    core = engine()
    params = SamplingParams(n=3, seed=11, temperature=1.0, max_tokens=NEW_TOKENS)
    jobs = [job(prompt, params) for prompt in prompts()]
    together = core.run(jobs)
    assert core.counters.forks == 2 * len(jobs)
    for each, samples in zip(jobs, together, strict=True):
        assert len({tuple(sample.tokens) for sample in samples}) == 3
        singles = [
            job(each.prompt, params.clone(n=1), Resume([], seed=11, sample_index=i))
            for i in range(3)
        ]
        alone = [result.tokens for (result,) in engine().run(singles)]
        assert [sample.tokens for sample in samples] == alone


@pytest.mark.parametrize(("length_penalty", "early_stopping"), [(1.0, False), (2.0, True)])
def test_beams_equal_those_of_transformers(
    engine: Any, hf: Any, job: type, length_penalty: float, early_stopping: bool
) -> None:
    eos = [7, 8, 9]
    params = SamplingParams(
        n=4,
        use_beam_search=True,
        max_tokens=20,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    jobs = [job(prompt, params, eos=eos) for prompt in prompts()[1:4]]
    # Earlier requests that grow take the blocks in which beams would find their prefixes.
    growing = [job(prompt, SamplingParams(temperature=0, max_tokens=45)) for prompt in prompts()]
    small = engine(num_blocks=14, long_prefill_token_threshold=7)
    references = [transformers_beams(hf.model, each.prompt, params, eos) for each in jobs]
    for core, before in ((engine(), []), (small, growing)):
        results = core.run([*before, *jobs])[len(before) :]
        for expected, beams in zip(references, results, strict=True):
            assert [beam.tokens for beam in beams] == [tokens for tokens, _ in expected]
            scores = [beam.score for beam in beams]
            assert scores == pytest.approx([score for _, score in expected], abs=1e-3)
    assert small.counters.preemptions > 0


def transformers_beams(
    model: Any, prompt: list[int], params: SamplingParams, eos: list[int]
) -> list[tuple[list[int], float]]:
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=params.max_tokens,
            num_beams=params.n,
            num_return_sequences=params.n,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=0,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            return_dict_in_generate=True,
            output_scores=True,
        )
    beams = []
    for sequence, score in zip(found.sequences, found.sequences_scores, strict=True):
        tokens = sequence[len(prompt) :].tolist()
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
        beams.append((tokens[:end], score.item()))
    return beams


def test_prompt_logprobs(engine: Any, hf: Any, job: type) -> None:
    """Each position once, in order, also when the prompt is chunked and preempted."""
    params = SamplingParams(**GREEDY, prompt_logprobs=2)
    jobs = [job(prompt, params) for prompt in prompts()]
    tight = engine(num_blocks=14, long_prefill_token_threshold=7)
    for core in (engine(), tight):
        core.run([job(each.prompt, SamplingParams(**GREEDY)) for each in jobs])
        for each, (result,) in zip(jobs, core.run(jobs), strict=True):
            assert result.num_cached == 0
            scores = hf.logprobs(each.prompt + result.tokens)
            assert len(result.prompt_logprobs) == len(each.prompt) - 1
            for position, entry in enumerate(result.prompt_logprobs):
                hf.check_entry(entry, each.prompt[position + 1], scores[position], top=2)
    assert tight.counters.preemptions > 0
