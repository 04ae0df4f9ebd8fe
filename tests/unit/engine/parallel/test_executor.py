"""Two ranks over gloo: the tokens of one, and one end for both."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.loader import load_model as load
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.parallel.protocol import RankError
from kvasir_engine.sampling.sampler import Sampler
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.settings import SettingsError

pytestmark = pytest.mark.slow

FAMILIES = [
    ("llama3", "closed"),
    ("qwen3_one_kv_head", "killed"),
    ("gemma2", "closed"),
    ("mixtral", "closed"),
]
"""And how the engine's other rank ends."""


CHOSEN_BY_SCORE: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 7, "temperature": 0.9},
    {"seed": 8, "temperature": 1.5, "n": 2},
]
"""Jobs whose tokens are chosen from each rank's best scores where no other job is in the step."""


def small(family: str) -> dict[str, int]:
    """Settings under which the jobs below are chunked and preempted."""
    # Every layer of this mixtral has a window, so it keeps fewer blocks.
    blocks = 12 if family == "mixtral" else 14
    return {"num_blocks": blocks, "long_prefill_token_threshold": 7}


@pytest.fixture(autouse=True)
def _one_thread_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def every_kind_of_job(job: type) -> list[Any]:
    rng = random.Random(0)
    prompts = [[rng.randrange(160) for _ in range(n)] for n in (3, 17, 33, 48, 61)]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 3},
        {"seed": 5, "top_p": 0.9, "repetition_penalty": 1.2, "logit_bias": {7: 2.0}},
        {"seed": 6, "n": 3, "top_k": 20, "logprobs": 0},
        {"temperature": 0.0, "prompt_logprobs": 2},
        {"n": 3, "use_beam_search": True},
        *CHOSEN_BY_SCORE,
    ]
    return [
        job(prompts[(i + j) % 5], SamplingParams(max_tokens=16, **kind))
        for i, kind in enumerate(kinds)
        for j in range(2)
    ]


def tokens_of(results: list[list[Any]]) -> list[list[list[int]]]:
    return [[sample.tokens for sample in samples] for samples in results]


def numbers_of(results: list[list[Any]]) -> list[float]:
    """Every log-probability and score, in order."""
    samples = [sample for each in results for sample in each]
    entries = [entry for s in samples for entry in (*s.logprobs, *s.prompt_logprobs)]
    scores = [s.score for s in samples if s.score is not None]
    return scores + [n for entry in entries for n in (entry.logprob, *entry.top_logprobs)]


@pytest.mark.parametrize(("family", "end"), FAMILIES)
def test_two_ranks_give_the_tokens_of_one(
    family: str, end: str, hf_model_dir, make_engine, job, processes
) -> None:
    whole = make_engine(hf_model_dir(family), **small(family))
    expected = whole.run(every_kind_of_job(job), arrive=2)
    before = set(processes.children(os.getpid()))
    # The ranks must not end with the thread that asks for them.
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(
            make_engine, hf_model_dir(family), tensor_parallel_size=2, **small(family)
        )
    ranks = start.result()
    (other,) = set(processes.children(os.getpid())) - before
    for each in (signal.SIGINT, signal.SIGTERM):
        os.kill(other, each)  # as a terminal or a service manager does to a group
    found = ranks.run(every_kind_of_job(job), arrive=2)
    assert tokens_of(found) == tokens_of(expected)
    assert numbers_of(found) == pytest.approx(numbers_of(expected), abs=1e-3)
    assert ranks.counters == whole.counters
    assert ranks.counters.preemptions > 0
    assert ranks.counters.chunked_prefills > 0
    assert ranks.counters.forks > 0
    if end == "killed":
        os.kill(other, signal.SIGKILL)
        processes.wait_until_ended(other)
        for _ in range(2):
            with pytest.raises(RankError, match=r"^tensor-parallel rank 1 ended \(signal 9\)$"):
                ranks.run(every_kind_of_job(job))
    ranks.core.built_runner.runner.close()
    assert not processes.running(other)
    assert tensor_parallel().size == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_tokens_chosen_from_each_ranks_best_are_those_of_all_logits(
    ranks: int, hf_model_dir, make_engine, job, monkeypatch
) -> None:
    prompts = [[(7 * i + j) % 160 for j in range(3 + 9 * i)] for i in range(4)]
    jobs = [
        job(prompt, SamplingParams(max_tokens=20, **kind))
        for prompt in prompts
        for kind in CHOSEN_BY_SCORE
    ]
    model_dir = hf_model_dir("llama3")
    expected = make_engine(model_dir).run(jobs)
    seen: list[int] = []
    of_shard = Sampler.of_shard

    def counted(sampler: Sampler, logits: torch.Tensor, *rest: Any) -> Any:
        seen.append(logits.shape[1])
        return of_shard(sampler, logits, *rest)

    monkeypatch.setattr(Sampler, "of_shard", counted)
    engine = make_engine(model_dir, tensor_parallel_size=ranks)
    found = engine.run(jobs)
    engine.core.built_runner.runner.close()
    assert tokens_of(found) == tokens_of(expected)
    assert set(seen) == {160 // ranks}
    assert len(seen) == engine.counters.steps


def test_a_rank_that_cannot_load_ends_the_start_with_its_sentence(
    hf_model_dir, make_engine, tmp_path, monkeypatch, processes
) -> None:
    """Rank 0 reads another, sound copy, so that it alone would wait for rank 1."""
    before = processes.children(os.getpid())
    (tmp_path / "config.json").write_bytes((hf_model_dir("llama3") / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    sound = load.load_model

    def load_sound(model_dir: Path, **options: Any) -> Any:
        return sound(hf_model_dir("llama3"), **options)

    monkeypatch.setattr("kvasir_engine.startup.torch_build.load_model", load_sound)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read"):
        make_engine(tmp_path, tensor_parallel_size=2)
    assert processes.children(os.getpid()) == before
    assert tensor_parallel().size == 1


def test_ranks_end_with_rank_0(hf_model_dir, tmp_path, processes) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from kvasir_engine.parallel.executor import Executor\n"
        "from kvasir_engine.settings import make_settings\n"
        "settings = make_settings(sys.argv[1], tensor_parallel_size=3)\n"
        "executor = Executor(settings, Path(sys.argv[1]))\n"
        "while len(executor.pids) < 2: time.sleep(0.01)\n"
        "print(*executor.pids, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(hf_model_dir("llama3"))],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TMPDIR": str(tmp_path),  # what a killed process cannot remove
        },
    ) as rank_0:
        assert rank_0.stdout is not None
        others = [int(pid) for pid in rank_0.stdout.readline().split()]
        assert len(others) == 2
        rank_0.kill()
    processes.wait_until_ended(*others)


def test_an_engine_of_another_size_is_refused_while_ranks_are_open(
    hf_model_dir, make_engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvasir_engine.device import collectives

    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank=0, size=2))
    with pytest.raises(SettingsError, match="over 2 ranks open; close that one first"):
        make_engine(hf_model_dir("llama3"))
