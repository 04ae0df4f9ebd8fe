"""All launches of a start, gone through for an absent GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PRECOMPILE = """
from concurrent.futures import Executor, Future
from pathlib import Path
from kvasir_engine.startup.precompile.fake_device import faked_device
from kvasir_engine.startup.torch_build import _launch_for_precompile
from kvasir_engine.settings import make_settings

class Asked(Executor):
    def __init__(self):
        self.count = 0

    def submit(self, compile_it):
        self.count += 1
        done = Future()
        done.set_result(None)
        return done

def precompile(model_dir, compiler):
    settings = make_settings(
        model_dir, dtype="bfloat16", max_model_len=256, max_num_seqs=40, max_num_batched_tokens=512
    )
    with faked_device(device, compiler):
        _launch_for_precompile(settings, Path(model_dir), device)

"""
ALL = """
counts = {}
for model_dir in sys.argv[1:]:
    asked = Asked()
    precompile(model_dir, asked)
    counts[Path(model_dir).name] = asked.count
print(json.dumps(counts))
"""


@pytest.mark.slow
def test_every_architecture_can_be_precompiled(
    hf_model_dir: Callable[[str], Path], without_gpu: Callable[..., Any]
) -> None:
    names = ["llama2", "llama31", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3"]
    names += ["phi3_long", "mixtral", "qwen3_moe"]
    counts = without_gpu(PRECOMPILE + ALL, *(str(hf_model_dir(name)) for name in names))
    assert counts.keys() == {hf_model_dir(name).name for name in names}
    assert all(count >= 20 for count in counts.values()), counts


COMPILED = """
from kvasir_engine.attention.hopper import paged_attention as hopper_attention
from kvasir_engine.startup.precompile.compile_pool import CompilePool
from triton.runtime.jit import JITFunction

cache = Path(os.environ["TRITON_CACHE_DIR"])
own = [JITFunction.run, torch.cuda.CUDAGraph]
counts = []
for _ in range(2):
    compiling = CompilePool()
    precompile(sys.argv[1], compiling)
    failed = compiling.finish(240.0)
    counts.append([failed, compiling.started, len(list(cache.rglob("*.cubin")))])
left = len(hopper_attention._compiled)
print(json.dumps([counts, left, own == [JITFunction.run, torch.cuda.CUDAGraph]]))
"""


@pytest.mark.slow
def test_what_it_asks_for_is_compiled_and_nothing_is_left(
    hf_model_dir: Callable[[str], Path], without_gpu: Callable[..., Any]
) -> None:
    program = PRECOMPILE + "import os, torch\n" + COMPILED
    (first, again), left, restored = without_gpu(program, str(hf_model_dir("qwen3")))
    failed, started, files = first
    assert (failed, files) == (0, started)
    assert again == [0, started, files]
    # What a launch keeps to launch it again would be something that cannot be launched.
    assert (left, restored) == (0, True)


SECOND = """
from kvasir_engine.attention.hopper import paged_attention

class Launchers(dict):
    def get(self, key):
        raise RuntimeError("a kernel that the engine before had compiled is launched")

paged_attention._compiled = Launchers()
asked = Asked()
precompile(sys.argv[1], asked)
print(json.dumps(asked.count))
"""


@pytest.mark.slow
def test_a_second_engine_in_a_process_launches_nothing_of_the_first(
    hf_model_dir: Callable[[str], Path], without_gpu: Callable[..., Any]
) -> None:
    assert without_gpu(PRECOMPILE + SECOND, str(hf_model_dir("qwen3"))) >= 20


@pytest.mark.slow
def test_other_threads_launch_as_ever(without_gpu: Callable[..., Any]) -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from triton.runtime.jit import JITFunction

warmups = []
JITFunction.run = lambda self, *, grid, warmup: warmups.append(warmup)
with faked_device(device, Asked()), ThreadPoolExecutor(1) as other:
    launch = partial(JITFunction.run, None, grid=(1,), warmup=False)
    launch()
    other.submit(launch).result()
print(json.dumps(warmups))
"""
    assert without_gpu(PRECOMPILE + program) == [True, False]
