"""Every config of benchmarks/models/zoo on a GPU: starts with defaults, serves, and how fast.

    python e2e/gpu/zoo.py --out zoo.json [--models gemma2-9b,...] [--seconds 500]

Each model in a process of its own, with random weights and no flags: 64 requests of 16 to 1,024
tokens in and 16 to 128 out, then one of the longest context that the engine says it takes, then
the time of a decode step with 1 and 64 rows at 1,000 tokens of context, or as many as the KV cache
holds, if these are fewer. Beside it stands a model of that step: the weights' bytes at the rate of
torch's own matrix products of Llama-8B's sizes with as many rows, the KV cache's bytes at the rate
of a long read, and the small kernels' time, each as measured on that kind of GPU.

A run adds rows to the file and leaves out models that it already has for this commit, so that the
zoo can be gone through in several runs; `--seconds` ends one in time. Write a file for each kind of
GPU. Exits 1 when a model failed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks")]

from common import commit  # noqa: E402

from kvasir.models.fit.quantized_weights import quantized_linears, stored_bytes  # noqa: E402
from kvasir.models.hf_config import read_shape  # noqa: E402
from kvasir.models.model_shape import ModelShape  # noqa: E402

ZOO = ROOT / "benchmarks" / "models" / "zoo"
CONTEXT = 1000
"""Mean tokens before a decode that is timed."""
STEPS = 64
"""Decode steps that are timed."""
ROWS = 64
"""Rows of the larger of the two decodes that are timed."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Llama-8B's measured parts of a step on one kind of GPU."""

    products_ms: dict[int, float]
    """All matrix products of a step, by rows; between these as on a straight line."""
    read_bytes_per_ms: float
    small_kernels_ms: float = 0.35
    small_kernels_ms_per_row: float = 1.3e-3


RATES = {
    "H200": Rates({1: 3.985, 64: 4.331}, 4.3e9),
    "H100": Rates({1: 5.602, 64: 5.805}, 2.98e9),
}


def modelled_ms(shape: ModelShape, rates: Rates, rows: int) -> float:
    """Milliseconds of a decode step of `rows` at CONTEXT tokens."""
    measured = read_shape(ZOO / "llama3.1-8b")
    weights = _product_bytes(shape)
    if shape.num_experts:
        missed = (1 - shape.experts_per_token / shape.num_experts) ** rows
        all_experts = shape.num_sparse_layers * shape.num_experts * _expert_bytes(shape)
        weights -= int(missed * all_experts)
    one, many = rates.products_ms[1], rates.products_ms[ROWS]
    at_rows = one + (many - one) * (rows - 1) / (ROWS - 1)
    products = at_rows * weights / _product_bytes(measured)
    seen = sum(min(CONTEXT, window or CONTEXT) for window in shape.layer_windows)
    cache = rows * seen * shape.kv_bytes_per_token_and_layer() / rates.read_bytes_per_ms
    layers = shape.num_layers / measured.num_layers
    wide = layers * shape.hidden_size / measured.hidden_size
    small = layers * rates.small_kernels_ms + wide * rows * rates.small_kernels_ms_per_row
    return products + cache + small


def _product_bytes(shape: ModelShape) -> int:
    """Bytes of all matrices, the head among them: of those that are not quantised in bf16."""
    count, (quantized, size) = shape.parameters(), quantized_linears(shape)
    plain = count.attention + count.mlp + (count.head or count.embedding) - quantized
    return 2 * plain + size


def _expert_bytes(shape: ModelShape) -> int:
    """Bytes of one expert's matrices."""
    hidden, inner, quantization = (
        shape.hidden_size,
        shape.moe_intermediate_size,
        shape.quantization,
    )
    if quantization is None:
        return 2 * 3 * hidden * inner
    up, down = (stored_bytes(quantization, *size) for size in ((inner, hidden), (hidden, inner)))
    return 2 * up + down


def row_of(name: str) -> dict[str, Any]:
    """Start, serve and time one model in this process."""
    import torch
    from engine import Engine, prompts

    from kvasir_engine.core.build import build_core
    from kvasir_engine.models.registry import NATIVE
    from kvasir_engine.settings import make_settings

    begin = time.perf_counter()
    settings = make_settings(str(ZOO / name), load_format="dummy")
    core = build_core(settings, ZOO / name)
    built = core.built_runner
    start, engine = time.perf_counter() - begin, Engine(core)
    draw = random.Random(0)
    mixed = prompts(64, 16, 1024, 1)
    engine.generate(mixed, [draw.randint(16, 128) for _ in mixed])
    longest = built.max_model_len - 16
    chunk = settings.scheduler.max_num_batched_tokens
    most = rows_that_fit(built.groups, built.num_blocks, chunk)
    begin = time.perf_counter()
    engine.generate(prompts(1, longest, longest, 2), [16])
    seconds = time.perf_counter() - begin
    gpu = torch.cuda.get_device_name()
    return {
        "gpu": gpu,
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "start_s": round(start, 1),
        "start_parts_s": built.timings,
        "memory_gib": {owner: round(size / 2**30, 2) for owner, size in built.memory.items()},
        "longest_tokens": longest,
        "longest_s": round(seconds, 2),
        "graph_steps": built.runner.graphs.steps,  # type: ignore[attr-defined]
        "code": "native" if read_shape(ZOO / name).architecture in NATIVE else "transformers",
        "decodes": _decodes(engine, name, gpu, most),
    }


def rows_that_fit(groups: Sequence[Any], num_blocks: Sequence[int], chunk: int) -> int:
    """Rows of CONTEXT and STEPS tokens that the KV cache holds beside a step's chunk of tokens, up
    to ROWS: with more the engine preempts, and what is measured is no step's time."""
    fitting = ROWS
    for group, blocks in zip(groups, num_blocks, strict=True):
        size = group.block_size
        kept = CONTEXT + 2 * STEPS
        if group.window is not None:
            kept = min(kept, group.window + 2 * size)
        fitting = min(fitting, (blocks - 1 - chunk // size) // -(-kept // size))
    return max(1, fitting)


def _decodes(engine: Any, name: str, gpu: str, most: int) -> list[dict[str, Any]]:
    from engine import prompts

    shape = read_shape(ZOO / name)
    rates = next((each for kind, each in RATES.items() if kind in gpu), None)
    found = []
    engine.forget()
    for rows in (1, most):
        length = CONTEXT - STEPS // 2
        given = prompts(rows, length, length, 3)
        best = min(engine.decode_ms(given, STEPS) for _ in range(2))
        row: dict[str, Any] = {"rows": rows, "steps": STEPS, "ms": round(best, 3)}
        if rates is not None:
            model = modelled_ms(shape, rates, rows)
            row |= {"modelled_ms": round(model, 3), "share": round(model / best, 3)}
        found.append(row)
    return found


def child(name: str, seconds: float) -> dict[str, Any]:
    """One model's row by a process of its own, or what went wrong."""
    command = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(seconds, 1),
        )
    except subprocess.TimeoutExpired:
        return {}
    if done.returncode:
        return {"failed": done.stderr[-3000:]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> int:
    """Go through the zoo; 1 when a model failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("zoo.json"))
    parser.add_argument("--models", default="", help="names, all without")
    parser.add_argument("--seconds", type=float, default=86_400.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(row_of(options.one)))
        return 0
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    end = time.monotonic() + options.seconds
    known = sorted(path.parent.name for path in ZOO.glob("*/config.json"))
    names = options.models.split(",") if options.models else known
    if strange := sorted(set(names) - set(known)):
        parser.error(f"--models {', '.join(strange)}: not in {ZOO.relative_to(ROOT)}")
    for name in names:
        if rows.get(name, {}).get("commit") == commit():
            continue
        row = child(name, end - time.monotonic())
        if not row:
            break
        rows[name] = row
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(name, json.dumps(row), flush=True)
    return int(any("failed" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
