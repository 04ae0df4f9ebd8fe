"""gpt-oss on a GPU: its experts at gpt-oss-20b's sizes, and small models against transformers.

    python e2e/gpu/gpt_oss.py [--results F.json] [--tiles]

Experts' products, in MXFP4 and plain bf16, are compared with those of the dequantised numbers in
float64, for numbers of tokens that each shape of tile takes, and timed with weights that no cache
holds. Then a small random model is stepped over a paged cache in bf16, with experts in MXFP4 and
plain: its logits are to be as near to those of transformers' fp32 model with the same numbers as
those that torch's operations compute in bf16. Exits 1 when they are not. --tiles times a layer in
MXFP4 by shapes of tiles instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks", "tests")]

from common import commit  # noqa: E402
from quantized import reference, stepped  # noqa: E402
from quantized_int4 import off  # noqa: E402
from support.engines import random_models  # noqa: E402
from support.engines.mxfp4_reference import save_mxfp4_models  # noqa: E402

from kvasir.models.config_overrides import ConfigOverrides  # noqa: E402
from kvasir_engine.kernels.grouped_gemm import GemmTuning  # noqa: E402
from kvasir_engine.layers.clamped_moe import ClampedGate, ClampedMoE  # noqa: E402
from kvasir_engine.layers.fused import fused_ops  # noqa: E402
from kvasir_engine.layers.moe import ExpertNames, MoEConfig  # noqa: E402
from kvasir_engine.quantization.mxfp4 import Mxfp4Experts, dequantized  # noqa: E402

DEVICE = torch.device("cuda")
HIDDEN, INNER, EXPERTS, TOP_K = 2880, 2880, 32, 4
TOKENS = (1, 5, 16, 64, 200, 500, 2000)
EXACT = 0.01
"""Error of numbers that are rounded to bf16 between the two products and after them."""
NEAR = 1.5
"""Most that a model may be off, as a multiple of what torch's operations in bf16 are: where bf16
decides between two experts, either may be right."""
LAYERS = 6
"""Layers in turn where time is taken: together more than a GPU's second-level cache."""


def make_layer(*, packed: bool) -> ClampedMoE:
    """One layer's experts of gpt-oss-20b, with random weights."""
    config = MoEConfig(HIDDEN, INNER, EXPERTS, TOP_K, "silu", True, ExpertNames())
    torch.set_default_dtype(torch.bfloat16)
    with DEVICE:
        layer = ClampedMoE(config, ClampedGate(1.702, 7.0))
        if packed:
            layer.use(Mxfp4Experts())
    torch.set_default_dtype(torch.float32)
    for each in layer.parameters():
        if each.is_floating_point():
            each.data.normal_(std=0.02)
    for linear in (layer.gate_up, layer.down) if packed else ():
        linear.weight.data.random_()
        linear.weight_scale.data.random_(116, 121)
    return layer


def written_out(layer: ClampedMoE, x: torch.Tensor) -> torch.Tensor:
    """The same in float64, expert by expert."""
    weights, chosen = layer.route(x)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in torch.unique(chosen).tolist():
        token, choice = torch.where(chosen == expert)
        gate_up, down = (_matrix(linear, expert) for linear in (layer.gate_up, layer.down))
        inner = layer.gate(x[token].double() @ gate_up.t() + layer.gate_up_bias[expert])
        share = (inner @ down.t() + layer.down_bias[expert]) * weights[token, choice, None]
        out.index_add_(0, token, share)
    return out


def _matrix(linear: Any, expert: int) -> torch.Tensor:
    if isinstance(linear.method, Mxfp4Experts):
        return dequantized(linear.weight[expert], linear.weight_scale[expert]).double()
    matrix: torch.Tensor = linear.matrices[expert].double()
    return matrix


def experts() -> Iterator[tuple[str, float, float]]:
    """(what, error, milliseconds of a layer) of experts in MXFP4 and in bf16."""
    fused = fused_ops(DEVICE)
    assert fused is not None
    for packed in (True, False):
        layers = [make_layer(packed=packed) for _ in range(LAYERS)]
        for tokens in TOKENS:
            x = torch.randn(tokens, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
            error = off(layers[0]._by_kernels(x, fused).sum(0), written_out(layers[0], x))
            ms = _time(lambda x=x, layers=layers: [each._by_kernels(x, fused) for each in layers])
            yield f"{tokens} tokens, {'mxfp4' if packed else 'bf16'}", error, ms / LAYERS


def tiles() -> None:
    """Print milliseconds of a layer in MXFP4 by tokens and shapes of tiles, the best first."""
    fused = fused_ops(DEVICE)
    assert fused is not None
    layers = [make_layer(packed=True) for _ in range(LAYERS)]
    shapes = product((16, 32, 64, 128), (64, 128), (128,), (4, 8), (3, 4))
    tunings = [GemmTuning(*shape) for shape in shapes]
    for tokens in TOKENS:
        x = torch.randn(tokens, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
        found = []
        for tuning in tunings:
            with (
                patch.object(fused.clamped_experts, "clamped_tuning_for", lambda *_, t=tuning: t),
                # Some take more registers or shared memory than there are.
                suppress(Exception),
            ):
                ms = _time(lambda x=x: [each._by_kernels(x, fused) for each in layers]) / LAYERS
                found.append((ms, tuning))
        for ms, tuning in sorted(found, key=lambda each: each[0])[:5]:
            print(f"{tokens} tokens: {ms:.4f} ms {tuning}", flush=True)


def _time(work: Any) -> float:
    """Milliseconds of `work` as a CUDA graph: the best of several."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    best = float("inf")
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return best


def model_errors(directory: Path) -> dict[str, dict[str, float]]:
    """Errors of the small model's logits, in MXFP4 and plain, by kernels and by torch."""
    kind, fields = random_models.MODELS["gpt_oss"]
    # Some versions of transformers clamp at 7, whatever the config says.
    larger = {**fields, "hidden_size": 256, "intermediate_size": 384, "swiglu_limit": 7.0}
    larger["head_dim"] = 64
    with patch.dict(random_models.MODELS, gpt_oss=(kind, larger)):
        random_models.save_hf_model("gpt_oss", directory / "source")
    save_mxfp4_models(directory / "source", directory / "mxfp4", directory / "plain")
    tokens = [7 * i % 160 for i in range(100)]
    want = reference(directory / "plain", tokens, float8=False)
    return {
        name: {
            by: off(stepped(directory / name, device, tokens, ConfigOverrides()), want)
            for by, device in (("kernels", "cuda"), ("torch", "cpu"))
        }
        for name in ("mxfp4", "plain")
    }


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--tiles", action="store_true", help="time shapes of tiles")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.tiles:
        with torch.inference_mode():
            tiles()
        return
    faults: list[str] = []
    layers: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for what, error, ms in experts():
            layers[what] = {"error": error, "ms": ms}
            print(f"{what}: {error:.4f} off, {ms:.4f} ms", flush=True)
            faults += [f"{what}: {error:.4f} off"] if error > EXACT else []
    with tempfile.TemporaryDirectory() as directory:
        models = model_errors(Path(directory))
    for name, row in models.items():
        print(name, row, flush=True)
        if not row["kernels"] < NEAR * row["torch"]:
            faults.append(f"{name}: kernels {row['kernels']:.4f} off, torch {row['torch']:.4f}")
    if options.results:
        gpu = torch.cuda.get_device_name()
        made = {"commit": commit(), "gpu": gpu, "layers": layers, "models": models}
        options.results.write_text(json.dumps({**made, "faults": faults}, indent=1) + "\n")
    print("faults:", *faults or ["none"], sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
