"""Every kernel compiles for every GPU, within its shared memory, and none is there that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

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


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """rows(*options): what became of a covering set of kernels, by compute capability.

    Compiled kernels are kept between runs, by content: unchanged ones are not compiled again.
    """

    def compiled(*options: str) -> Any:
        out = tmp_path_factory.mktemp("kernels") / "rows.json"
        cache = str(request.config.cache.mkdir("kernels"))
        command = [sys.executable, str(SCRIPT), "--covering", "--out", str(out), "--cache", cache]
        done = subprocess.run(
            [*command, *options],
            capture_output=True,
            text=True,
            env={**os.environ, "TRITON_INTERPRET": "0"},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text())

    return compiled


def test_every_gpu_has_a_kernel_for_every_operation(rows: Any) -> None:
    models = ("--models", "gemma2-9b,qwen3-30b-a3b,olmo2-7b,gpt-oss-20b")
    # 8.9 is among those of float8, whose models have these kernels too.
    gpus = ("--capabilities", "8.0,8.6,9.0,10.0,12.0")
    found = rows(*models, "--dtypes", "bfloat16", *gpus)
    assert len(found) == 5
    for target, row in found.items():
        own = HOPPER if target == "9.0" else ELSEWHERE
        assert row["functions"].keys() >= OPERATIONS | own
        assert row["compiled"] == row["wanted"] >= len(OPERATIONS)
        assert 40_000 < largest(row) <= row["shared_memory_bytes"]


def test_float8_has_kernels_where_gpus_multiply_it(rows: Any) -> None:
    models = ("--models", "gemma2-9b+fp8,qwen3-30b-a3b+fp8")
    found = rows(*models, "--dtypes", "bfloat16", "--capabilities", "8.9,9.0,10.0,12.0")
    assert len(found) == 4
    for row in found.values():
        assert row["functions"].keys() >= FLOAT8
        assert row["compiled"] == row["wanted"]


def test_weights_in_4_bits_have_kernels_where_memory_differs(rows: Any) -> None:
    """Nothing else of a GPU changes them; `make kernels` compiles them for all."""
    gpus = ("--capabilities", "8.0,8.6,9.0")
    found = rows("--models", "qwen3-30b-a3b+awq", "--dtypes", "bfloat16", *gpus)
    assert len(found) == 3
    for row in found.values():
        assert row["functions"].keys() >= IN_4_BITS


def test_the_largest_tiles_fit_the_smallest_memory(rows: Any) -> None:
    models = ("--models", "gemma2-9b,qwen3-30b-a3b,qwen3-30b-a3b+awq,gpt-oss-20b")
    found = rows(*models, "--dtypes", "float32", "--capabilities", "8.6")
    assert 60_000 < largest(found["8.6"]) <= 99 << 10


def largest(row: Any) -> int:
    return max(each["largest_shared_bytes"] for each in row["functions"].values())
