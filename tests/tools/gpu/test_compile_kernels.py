"""Every kernel compiles for every GPU, within its shared memory, and none is there that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SCRIPT = Path(__file__).parents[3] / "e2e" / "gpu" / "compile_kernels.py"
OPERATIONS = {
    *("token_inputs", "rotary_table", "add_norm", "norm_all_heads", "gated", "store_qkv"),
    *("decode", "split_keys", "merge", "order"),
    *("route", "cut_blocks", "grouped_gemm", "clamped_experts"),
    *("argmax_of_split", "choose", "soft_cap"),
}
HOPPER = {"attend_tiles", "skinny"}
"""A kernel in Gluon, made for Hopper's instructions, computes what two do elsewhere; GEMMs of few
tokens were measured on GPUs of this capability alone."""
IN_4_BITS = {"int4_skinny", "int4_grouped_gemm", "dequantize_int4"}
ELSEWHERE = {"prefill", "shared_prefix"}

FLOAT8 = {"widen", "gated_rows", "quantize_rows"}
"""Kernels of weights, keys and values in float8, which GPUs have from compute capability 8.9 on."""


PLAIN = ("gemma2-9b", "qwen3-30b-a3b", "olmo2-7b", "gpt-oss-20b")
WITH_FLOAT8 = ("gemma2-9b+fp8", "qwen3-30b-a3b+fp8")
WITH_4_BITS = ("qwen3-30b-a3b+awq",)
RUNS = {
    "8.0,8.6": ("bfloat16", *PLAIN, *WITH_4_BITS),
    "8.9": ("bfloat16", *WITH_FLOAT8),
    "9.0": ("bfloat16", *PLAIN, *WITH_FLOAT8, *WITH_4_BITS),
    "10.0,12.0": ("bfloat16", *PLAIN, *WITH_FLOAT8),
}
"""Dtype and models by capabilities: all formats of a GPU at once, since a covering set of their
kernels is smaller than a set of each. 8.9 is among those of float8, whose models have the plain
ones' kernels too. Weights in 4 bits are where memory differs; nothing else of a GPU changes their
kernels, and `make kernels` compiles them for all."""


@pytest.fixture(scope="module")
def compile_for(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """compile_for(capabilities, dtype, *models): what became of a covering set of kernels, by
    capability.

    Compiled kernels are kept between runs, by content: unchanged ones are not compiled again.
    """

    def compiled(capabilities: str, dtype: str, *models: str) -> Any:
        out = tmp_path_factory.mktemp("kernels") / "rows.json"
        options = {
            "--out": str(out),
            "--cache": str(request.config.cache.mkdir("kernels")),
            "--capabilities": capabilities,
            "--dtypes": dtype,
            "--models": ",".join(models),
        }
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--covering", *chain.from_iterable(options.items())],
            capture_output=True,
            text=True,
            env={**os.environ, "TRITON_INTERPRET": "0"},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text())

    return compiled


@pytest.fixture(scope="module")
def rows(compile_for: Callable[..., Any]) -> dict[str, Any]:
    """What became of the kernels in bfloat16, by compute capability."""
    made = [compile_for(capabilities, *what) for capabilities, what in RUNS.items()]
    return {target: row for each in made for target, row in each.items()}


def test_every_gpu_has_a_kernel_for_every_operation(rows: dict[str, Any]) -> None:
    assert rows.keys() == {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0"}
    for target in rows.keys() - {"8.9"}:
        row = rows[target]
        own = HOPPER if target == "9.0" else ELSEWHERE
        assert row["functions"].keys() >= OPERATIONS | own
        assert row["compiled"] == row["wanted"] >= len(OPERATIONS)
        assert 40_000 < largest(row) <= row["shared_memory_bytes"]


def test_float8_has_kernels_where_gpus_multiply_it(rows: dict[str, Any]) -> None:
    for target in ("8.9", "9.0", "10.0", "12.0"):
        assert rows[target]["functions"].keys() >= FLOAT8
        assert rows[target]["compiled"] == rows[target]["wanted"]


def test_weights_in_4_bits_have_kernels_where_memory_differs(rows: dict[str, Any]) -> None:
    for target in ("8.0", "8.6", "9.0"):
        assert rows[target]["functions"].keys() >= IN_4_BITS


def test_the_largest_tiles_fit_the_smallest_memory(compile_for: Callable[..., Any]) -> None:
    models = ("gemma2-9b", "qwen3-30b-a3b", "qwen3-30b-a3b+awq", "gpt-oss-20b")
    found = compile_for("8.6", "float32", *models)
    assert 60_000 < largest(found["8.6"]) <= 99 << 10


def largest(row: Any) -> int:
    return max(each["largest_shared_bytes"] for each in row["functions"].values())
