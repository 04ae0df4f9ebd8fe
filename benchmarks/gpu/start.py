"""Seconds from a command to a ready engine, on a GPU, with a checkpoint in the page cache.

    python benchmarks/gpu/start.py --model DIR --checkpoint DIR [--out F.json]

Random weights in the shape of DIR's config.json are written to the second directory first, which
leaves them in the page cache. Then: seconds from the start of a Python process to a built core,
with an empty cache of compiled kernels, with a filled one, and with --load-format dummy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from common import Figure, Report, hardware

CHILD = """
import json, sys, time
from pathlib import Path
from kvasir_engine.core.build import build_core
from kvasir_engine.settings import make_settings
import triton
compiled = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: cache_hit or compiled.append(1)
settings = make_settings(sys.argv[1], load_format=sys.argv[2], max_num_seqs=256,
                         max_num_batched_tokens=8192, max_model_len=8192)
core = build_core(settings, Path(sys.argv[1]))
print(json.dumps({"ready": time.time(), "compiled_in_line": len(compiled),
                  **core.built_runner.timings}))
"""
SHARDS = 4


def write_checkpoint(model: Path, checkpoint: Path) -> int:
    """The model's weights, drawn at random; their bytes."""
    import torch
    from safetensors.torch import save_file

    from kvasir_engine.layers.weights import model_slots
    from kvasir_engine.loader.load_model import load_model

    checkpoint.mkdir(parents=True, exist_ok=True)
    shutil.copy(model / "config.json", checkpoint)
    made: Any = load_model(model, device="cuda", load_format="dummy").model
    slots = model_slots(made)
    names, total = sorted(slots), 0
    for shard in range(SHARDS):
        tensors = {
            name: torch.randn(slots[name].shape, device="cuda", dtype=torch.bfloat16).cpu()
            for name in names[shard::SHARDS]
        }
        total += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, checkpoint / f"model-{shard}.safetensors")
    return total


def seconds_to_ready(model: Path, load_format: str, cache: Path) -> dict[str, float]:
    """A process's time to a built core, and its parts; compiled kernels are kept in `cache`."""
    environment = {**os.environ, "KVASIR_CACHE": str(cache)}
    begin = time.time()
    command = [sys.executable, "-c", CHILD, str(model), load_format]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    parts = json.loads(done.stdout.splitlines()[-1])
    parts["ready"] -= begin
    return {name: round(value, 2) for name, value in parts.items()}


RUNS = (
    *(("cold", "no compiled kernels", "auto", cache) for cache in ("first", "second", "third")),
    *(("warm", "compiled kernels cached", "auto", "third") for _ in range(2)),
    ("dummy", "--load-format dummy", "dummy", "third"),
)
"""Runs: name, description, load format, and the cache of kernels."""


def report(size: int, runs: dict[str, list[dict[str, float]]]) -> Report:
    """The figures of the runs made so far."""
    cold, warm, dummy = (runs[name] for name in ("cold", "warm", "dummy"))
    figures = [
        Figure("ready, no compiled kernels", "s", _of(cold, "ready")),
        Figure("of which waiting for kernels", "s", _of(cold, "precompile")),
        Figure("kernels that it left to be compiled", "", _of(cold, "compiled_in_line"), digits=0),
    ]
    if warm:
        figures += [
            Figure("ready, compiled kernels cached", "s", _of(warm, "ready"), "<= 10"),
            Figure("of which imports", "s", _of(warm, "imports")),
            Figure("of which weights", "s", _of(warm, "weights")),
            Figure("of which capture", "s", _of(warm, "capture"), "<= 5"),
            Figure("weights", "GB/s", [size / 1e9 / each["weights"] for each in warm], digits=1),
        ]
    if dummy:
        figures.append(Figure("ready, random weights made there", "s", _of(dummy, "ready")))
    return Report(
        name="gpu/start",
        title="Start on a GPU: Llama-3.1-8B, bf16",
        work="From the start of a process to a built engine, all decode sizes captured, with "
        f"a checkpoint of {size / 1e9:.1f} GB in the page cache.",
        figures=figures,
        packages=("torch", "triton"),
        values={"hardware": hardware(), "parts": runs},
    )


def _of(runs: list[dict[str, float]], part: str) -> list[float]:
    return [run[part] for run in runs]


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    size = write_checkpoint(options.model, options.checkpoint)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name, *_ in RUNS}
    with tempfile.TemporaryDirectory() as caches:
        for name, what, load_format, cache in RUNS:
            directory = options.checkpoint if load_format == "auto" else options.model
            runs[name].append(seconds_to_ready(directory, load_format, Path(caches) / cache))
            print(what, json.dumps(runs[name][-1]), flush=True)
            if options.out:
                report(size, runs).write(options.out)


if __name__ == "__main__":
    main()
