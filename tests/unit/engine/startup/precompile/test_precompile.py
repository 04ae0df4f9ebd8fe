from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvasir_engine.settings import make_settings
from kvasir_engine.startup.precompile.precompile import MIN_CORES, Precompiler

pytestmark = pytest.mark.slow

AHEAD = """
import logging, os
from pathlib import Path
import torch
from kvasir_engine.startup.precompile.precompile import Precompiler
from kvasir_engine.settings import SettingsError, make_settings

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
os.sched_getaffinity = lambda _: range(16)
done = []

def launches():
    from kvasir_engine.kernels.add_rms_norm import add_rms_norm
    done.append("launched")
    x = torch.empty(4, 64, dtype=torch.bfloat16, device=device)
    add_rms_norm(x, None, torch.empty(64, dtype=torch.bfloat16, device=device), 1e-6)

def start(launches=launches, **settings):
    with Precompiler(make_settings("m", **settings), Path(sys.argv[1]), device) as precompiler:
        precompiler.precompile(launches)
        precompiler.finish()
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    done.append([len(list(cache.rglob(each))) for each in ("*.cubin", "precompiled/*")])

"""


def test_a_start_like_one_before_compiles_nothing_ahead(
    tmp_path: Path, without_gpu: Callable[..., Any]
) -> None:
    program = """
start()
start()
start(max_num_seqs=8)
Path(sys.argv[1], "config.json").write_text("{}")
start()
print(json.dumps(done))
"""
    (tmp_path / "m").mkdir()
    assert without_gpu(AHEAD + program, str(tmp_path / "m")) == [
        *("launched", [1, 1]),
        *([1, 1],),
        *("launched", [1, 2]),
        *("launched", [1, 3]),
    ]


def test_a_failed_precompilation_does_not_end_the_start(
    tmp_path: Path, without_gpu: Callable[..., Any]
) -> None:
    program = """
def fail():
    launches()
    raise {error}

start(fail)
print(json.dumps(done))
"""
    for error in ("KeyError('shape')", "SettingsError('no such length')"):
        found = without_gpu(AHEAD + program.format(error=error), str(tmp_path))
        assert found == ["launched", [1, 0]]


def test_a_machine_without_semaphores_compiles_as_it_goes(
    tmp_path: Path, without_gpu: Callable[..., Any]
) -> None:
    program = """
from kvasir_engine.startup.precompile import compile_pool as compiling

def none(_):
    raise FileNotFoundError("/dev/shm")

compiling.get_context = none
start()
print(json.dumps(done))
"""
    assert without_gpu(AHEAD + program, str(tmp_path)) == [[0, 0]]


def test_a_start_that_fails_leaves_no_process(
    tmp_path: Path, without_gpu: Callable[..., Any]
) -> None:
    program = """
try:
    with Precompiler(make_settings("m"), Path(sys.argv[1]), device) as precompiler:
        precompiler.precompile(launches)
        raise MemoryError
except MemoryError:
    pass
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(json.dumps("none"))
"""
    assert without_gpu(AHEAD + program, str(tmp_path)) == "none"


@pytest.mark.parametrize(
    ("device", "cores"), [("cpu", MIN_CORES), ("cuda", MIN_CORES - 1)], ids=["cpu", "few cores"]
)
def test_it_is_left_out_where_it_does_not_pay(
    device: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))

    def launches() -> None:
        raise AssertionError

    with Precompiler(make_settings("m"), tmp_path, torch.device(device)) as precompiler:
        precompiler.precompile(launches)
        precompiler.finish()
