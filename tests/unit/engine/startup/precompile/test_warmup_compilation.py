"""Dry runs of whole starts for an absent GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvasir_engine.settings import make_settings
from kvasir_engine.startup.precompile.precompile import DryRun, DryRunResult, GpuProperties

pytestmark = pytest.mark.slow

SMALL = {
    "dtype": "bfloat16",
    "max_model_len": 256,
    "max_num_seqs": 40,
    "max_num_batched_tokens": 512,
}
GIVEN = """
import io
sys.stdin = io.TextIOWrapper(io.BytesIO(sys.argv[2].encode()))
"""
COUNT = """
from concurrent.futures import Executor, Future
from pathlib import Path
from kvasir_engine.settings import make_settings

class Asked(Executor):
    def __init__(self):
        self.count = 0

    def submit(self, compile_it):
        self.count += 1
        done = Future()
        done.set_result(None)
        return done

counts = {}
for model_dir in sys.argv[1:]:
    asked = Asked()
    dry_run.compile_start(make_settings(model_dir, **SMALL), Path(model_dir), gpu, asked)
    counts[Path(model_dir).name] = asked.count
print(json.dumps(counts))
"""


def test_every_architecture_can_be_precompiled(
    hf_model_dir: Callable[[str], Path], without_gpu: Callable[..., Any]
) -> None:
    names = ["llama2", "llama31", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3"]
    names += ["phi3_long", "mixtral", "qwen3_moe", "olmo2", "granite", "exaone4", "smollm3"]
    names += ["internlm3", "stablelm", "gpt_oss"]
    program = f"SMALL = {SMALL!r}\n{COUNT}"
    counts = without_gpu(program, *(str(hf_model_dir(name)) for name in names))
    assert counts.keys() == {hf_model_dir(name).name for name in names}
    assert all(count >= 20 for count in counts.values()), counts


def test_a_rank_of_two_can_be_precompiled(
    hf_model_dir: Callable[[str], Path], without_gpu: Callable[..., Any]
) -> None:
    """It samples in one way more: from each rank's best scores."""
    models = [str(hf_model_dir(name)) for name in ("llama2", "gemma2", "mixtral", "olmo2")]
    of_ranks = {**SMALL, "tensor_parallel_size": 2}
    alone = without_gpu(f"SMALL = {SMALL!r}\n{COUNT}", *models)
    of_two = without_gpu(f"SMALL = {of_ranks!r}\n{COUNT}", *models)
    assert of_two.keys() == alone.keys()
    assert all(of_two[name] >= 20 for name in alone), of_two
    assert of_two != alone


@pytest.fixture
def compiled(
    without_interpreter: Callable[..., str], without_driver: str, h200: GpuProperties
) -> Callable[..., DryRunResult]:
    """compiled(model_dir): the result of a dry run's own process, with `patch` run before."""

    def run(model_dir: Path, patch: str = "") -> DryRunResult:
        # Its parent is not this process, but the one that `without_interpreter` starts.
        program = f"{without_driver}{patch}\ndry_run.die_with_parent = lambda _: None\n"
        asked = DryRun(make_settings(str(model_dir), **SMALL), str(model_dir), os.getpid())
        said = without_interpreter(
            f"{program}{GIVEN}dry_run.main()",
            msgspec.json.encode(asked).decode(),
            msgspec.json.encode(h200).decode(),
        )
        return msgspec.json.decode(said, type=DryRunResult)

    return run


def test_what_it_asks_for_is_compiled(
    hf_model_dir: Callable[[str], Path], compiled: Callable[..., DryRunResult], tmp_path: Path
) -> None:
    result = compiled(hf_model_dir("qwen3"))
    assert (result.failed, result.error) == (0, "")
    assert result.kernels == len(list((tmp_path / "triton").rglob("*.cubin"))) >= 20


def test_a_dry_run_that_fails_says_where(
    hf_model_dir: Callable[[str], Path], compiled: Callable[..., DryRunResult]
) -> None:
    result = compiled(hf_model_dir("qwen3"), "dry_run.launch_all_kernels = lambda *_: {}['shape']")
    assert result.kernels == 0
    assert "KeyError: 'shape'" in result.error


def test_what_the_start_says_itself_is_no_error(
    compiled: Callable[..., DryRunResult], tmp_path: Path
) -> None:
    assert compiled(tmp_path) == DryRunResult(kernels=0, failed=0)


def test_a_dry_run_ends_with_its_start(
    without_driver: str, h200: GpuProperties, tmp_path: Path
) -> None:
    hangs = f"""{without_driver}
def hang(*_):
    print(flush=True)
    time.sleep(600)

dry_run.launch_all_kernels = hang
dry_run.main()
"""
    begin = f"""
import os, subprocess, sys
import msgspec
from kvasir_engine.settings import make_settings
from kvasir_engine.startup.precompile.precompile import DryRun, GpuProperties

asked = DryRun(make_settings("m"), "m", os.getpid())
gpu = msgspec.json.encode({h200!r}) + b"\\n"
subprocess.run([sys.executable, "-c", {hangs!r}, msgspec.json.encode(asked)], input=gpu)
"""
    start = subprocess.Popen(
        [sys.executable, "-c", begin],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "TRITON_INTERPRET": "0"},
    )
    with start:
        assert start.stdout is not None
        assert start.stdout.readline() == b"\n"
        start.send_signal(signal.SIGKILL)
        # The pipe ends with the last process that holds it.
        assert start.stdout.read() == b""
