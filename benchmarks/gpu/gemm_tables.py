"""Writes both tables of GEMMs of the GPU that is here, under the names that the engine looks for.

    python benchmarks/gpu/gemm_tables.py [--model DIR ...] [--fp8] [--out DIR]

What `skinny_gemm.py` and `autotune_gemm.py` do, for the models that most layers' shapes are of; the
first also for small models, whose layers gain most and are like one another. The
files of --out belong into engine/kvasir_engine/kernels/gemm/ (those that begin with `measured-` say
how fast it was, and do not). All is saved after each shape: a run that is ended goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from autotune_gemm import Search, layers
from layer_formats import DEVICE
from skinny_gemm import Shape, measure_all, shapes, write_table

from kvasir_engine.device.gpu_kind import gpu_kind
from kvasir_engine.kernels.gemm.cublaslt import cublaslt
from kvasir_engine.kernels.gemm.tuned_gemm import file_name

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "engine" / "kvasir_engine" / "kernels" / "gemm"
ZOO = ROOT / "benchmarks" / "models" / "zoo"
MODELS = [ZOO / name for name in ("llama3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b")]
SMALL = [
    ZOO / name
    for name in (
        *("exaone4-1.2b", "smollm3-3b", "exaone3.5-2.4b", "granite3.1-2b", "gemma2-2b"),
        *("qwen2.5-1.5b", "qwen2.5-3b", "gemma3-4b", "qwen3-1.7b", "stablelm2-1.6b"),
        *("llama3.2-3b", "qwen3-4b", "yi1.5-6b", "gemma3-1b", "phi3.5-mini"),
    )
]


def fp8_shapes(model: Path) -> list[Shape]:
    """Return the shapes of layers that are quantised: neither head nor routers of experts are."""
    return [shape for shape in shapes(model) if shape[2] != "plain"]


def main() -> None:
    """The tables of few tokens, then those of more."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gemm_tables")
    parser.add_argument("--few", action="store_true", help="only the table of few tokens")
    parser.add_argument(
        "--in-parts",
        action="store_true",
        help="only layers of few tokens whose sums may be in parts; other lines stay as shipped",
    )
    parser.add_argument("--fp8", action="store_true", help="only few tokens in float8")
    options = parser.parse_args()
    models, kind, library = options.model or MODELS, gpu_kind(DEVICE), cublaslt(DEVICE)
    if library is None:
        raise SystemExit("cuBLASLt is not found.")
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    print(torch.cuda.get_device_name(DEVICE), kind, library.version, flush=True)
    if options.fp8:
        wanted = [shape for model in models for shape in fp8_shapes(model)]
        results = measure_all(wanted, out / f"measured-fp8-skinny-{kind}.json", "fp8")
        write_table(results, out / f"fp8-skinny-{kind}.json")
        return
    small = [] if options.model else SMALL
    wanted = [shape for model in (*models, *small) for shape in shapes(model)]
    if options.in_parts:
        wanted = [shape for shape in wanted if shape[2] == "parts"]
        shutil.copy(SHIPPED / f"skinny-{kind}.json", out)
    results = measure_all(wanted, out / f"measured-skinny-{kind}.json")
    write_table(results, out / f"skinny-{kind}.json")
    if options.few or options.in_parts:
        return
    table = out / file_name(library.version, kind)
    Search(table, out / f"measured-{table.name}", list(layers(models))).run()


if __name__ == "__main__":
    main()
