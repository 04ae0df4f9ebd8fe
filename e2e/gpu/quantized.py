"""Quantised layers on a GPU: kernels against torch's operations, models against transformers'.

    python e2e/gpu/quantized.py [--models llama31,...] [--formats fp8,awq,...] [--results F.json]

Every product is compared with that of the dequantised numbers in float64, for sizes that each way
of multiplying takes. Then small random models, in float8 as they load or in 4 bits as a tool stores
them, are stepped over a paged cache in bf16: their logits are to be as near to those of
transformers' fp32 model with the same numbers as those that torch's operations compute in bf16.
Exits 1 when they are not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks", "tests")]

from common import commit  # noqa: E402
from quantized_int4 import experts_in_4_bits, off, products_in_4_bits  # noqa: E402
from support.engines import random_models  # noqa: E402
from support.engines.int4_checkpoints import TOOLS, Int4Checkpoint, Rounding  # noqa: E402
from support.engines.quantized_reference import quantized_linears  # noqa: E402

from kvasir.models.config_overrides import ConfigOverrides  # noqa: E402
from kvasir_engine.device.float8 import FP8  # noqa: E402
from kvasir_engine.kernels.expert_routing import make_expert_blocks  # noqa: E402
from kvasir_engine.kernels.gemm import block_gemm, fp8_linear  # noqa: E402
from kvasir_engine.kernels.gemm.skinny import SkinnyTuning  # noqa: E402
from kvasir_engine.kernels.grouped_gemm import grouped_gemm, moe_tuning_for  # noqa: E402
from kvasir_engine.kernels.quantize_rows import quantize_groups, quantize_rows  # noqa: E402
from kvasir_engine.kernels.quantized_rows import (  # noqa: E402
    GROUP,
    dequantized,
    grouped_by_torch,
    groups_of,
    quantized_by_torch,
)
from kvasir_engine.kernels.silu_mul import gated_rows  # noqa: E402
from kvasir_engine.loader.load_model import load_model  # noqa: E402

DEVICE = torch.device("cuda")
ONLINE = ConfigOverrides(quantization="fp8")
TOKENS = (1, 5, 16, 40, 64, 65, 200, 700)
SHAPES = ((256, 512), (6144, 4096), (4096, 14336), (80, 48), (100, 72))
"""Outputs and inputs."""
EXACT = 0.006
"""Error of numbers that are rounded to bf16, and of sums that tensor cores keep shorter."""
MODELS = ("llama31", "qwen3", "gemma2", "olmo2", "phi3", "exaone4", "mixtral", "qwen3_moe")
NEAR = 1.25
"""Most that a model may be off, as a multiple of what torch's operations are: bf16 rounds before
float8 does, and so some numbers to a neighbour."""
NEAR_IN_4_BITS = 2.0
"""The same where inputs stay in bf16: its roundings alone are compared, and now and then another
expert that a token goes to."""


def products() -> Iterator[tuple[str, float]]:
    """(what, error) of each product and quantisation."""
    small = SkinnyTuning(64, 128, 4, 4, prefetched=0)
    for outputs, inputs in SHAPES:
        weight = quantize_rows(torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16))
        bias = torch.randn(outputs, device=DEVICE, dtype=torch.bfloat16)
        for tokens in TOKENS:
            x = torch.randn(tokens, inputs, device=DEVICE, dtype=torch.bfloat16)
            rows, theirs = quantize_rows(x), quantized_by_torch(x)
            name = f"{tokens} x {inputs} -> {outputs}"
            yield f"{name} quantised", off(dequantized(rows), dequantized(theirs))
            want = dequantized(rows).double() @ dequantized(weight).double().t() + bias
            got = fp8_linear.fp8_linear(rows, *weight, bias, torch.bfloat16)
            yield f"{name} product", off(got, want)
            if tokens <= 64 and outputs % 128 == inputs % 128 == 0:
                for parts in (1, 2):
                    with patch.object(
                        fp8_linear,
                        "fp8_tuning",
                        lambda *_, p=parts: SkinnyTuning(64, 128, 4, 4, 0, p),
                    ):
                        sums: Any = fp8_linear.fp8_parts(rows, *weight, bias)
                    yield f"{name} in {parts} parts", off(sums.sum(0), want)
                with patch.object(fp8_linear, "fp8_tuning", lambda *_: small):
                    out: Any = fp8_linear.fp8_gated(rows, *weight, bias, "silu", torch.bfloat16)
                first, second = want.float().bfloat16().chunk(2, dim=-1)
                yield f"{name} gated", off(out, torch.nn.functional.silu(first) * second)
            if outputs % 2 == 0:
                wide = torch.randn(tokens, outputs, device=DEVICE, dtype=torch.bfloat16)
                first, second = wide.chunk(2, dim=-1)
                gate = quantized_by_torch(torch.nn.functional.silu(first) * second)
                yield (
                    f"{name} gate quantised",
                    off(dequantized(gated_rows(wide, gelu=False)), dequantized(gate)),
                )


def blocks() -> Iterator[tuple[str, float]]:
    """(what, error) of products with scales of blocks."""
    for outputs, inputs in ((6144, 4096), (4096, 14336), (256, 384), (200, 136)):
        weight = torch.randn(outputs, inputs, device=DEVICE).to(FP8)
        scales = torch.rand(groups_of(outputs), groups_of(inputs), device=DEVICE)
        wide = scales.repeat_interleave(GROUP, 0)[:outputs].repeat_interleave(GROUP, 1)[:, :inputs]
        for tokens in TOKENS:
            x = torch.randn(tokens, inputs, device=DEVICE, dtype=torch.bfloat16)
            rows, theirs = quantize_groups(x), grouped_by_torch(x)
            name = f"{tokens} x {inputs} -> {outputs} in blocks"
            yield f"{name} quantised", off(dequantized(rows), dequantized(theirs))
            want = dequantized(rows).double() @ (weight.double() * wide).t()
            got = block_gemm.block_linear(rows, weight, scales, None, torch.bfloat16)
            yield f"{name} product", off(got, want)
            tiles = block_gemm.block_tiles(rows, weight, scales, torch.bfloat16)
            yield f"{name} by tiles", off(tiles, want)


def experts() -> Iterator[tuple[str, float]]:
    """(what, error) of products of experts."""
    count, top_k, inputs, outputs = 8, 2, 256, 384
    weight = quantize_rows(torch.randn(count * outputs, inputs, device=DEVICE).bfloat16())
    matrices = dequantized(weight).double().view(count, outputs, inputs)
    for tokens in (1, 30, 500):
        rows = quantize_rows(torch.randn(tokens, inputs, device=DEVICE).bfloat16())
        chosen = torch.stack([torch.randperm(count, device=DEVICE)[:top_k] for _ in range(tokens)])
        tuning = moe_tuning_for(chosen.numel(), count, FP8.itemsize)
        blocks = make_expert_blocks(chosen.int(), count, tuning.rows)
        got = grouped_gemm(
            rows,
            weight.values.view(count, outputs, inputs),
            blocks,
            tuning,
            top_k=top_k,
            scales=weight.scales,
            dtype=torch.bfloat16,
        )
        each = dequantized(rows).double().repeat_interleave(top_k, 0)
        want = torch.einsum("ti,toi->to", each, matrices[chosen.flatten().long()])
        yield f"{tokens} tokens of experts", off(got, want[blocks.order.long()])


def logits_of(name: str, kind: str, directory: Path) -> dict[str, torch.Tensor]:
    """Logits [tokens, vocabulary] of the reference, by kernels, and by torch's operations, of a
    model in float8 or as one of `TOOLS` has it in 4 bits."""
    model, fields = random_models.MODELS[name]
    larger = {"hidden_size": 128, "intermediate_size": 256, **fields}
    plain = quantized = directory / "model"
    with patch.dict(random_models.MODELS, {name: (model, larger)}):
        random_models.save_hf_model(name, plain)
    overrides = ONLINE
    for tool in TOOLS:
        if tool == kind:
            made = Int4Checkpoint(plain, directory / kind, Rounding(64), tool)
            made.save()
            plain, quantized, overrides = made.plain, made.int4, ConfigOverrides()
    tokens = [7 * i % 160 for i in range(100)]
    return {
        "reference": reference(plain, tokens, float8=kind == "fp8"),
        "kernels": stepped(quantized, "cuda", tokens, overrides),
        "torch": stepped(quantized, "cpu", tokens, overrides),
    }


def reference(directory: Path, tokens: list[int], *, float8: bool) -> torch.Tensor:
    """Logits of transformers' model; its linear layers in float8, or as they are."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32
    )
    model.set_experts_implementation("eager")
    quantized = quantized_linears(model, "gate.weight") if float8 else nullcontext()
    with torch.inference_mode(), quantized:
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def stepped(
    directory: Path, device: str, tokens: list[int], overrides: ConfigOverrides
) -> torch.Tensor:
    """Logits of the engine's model: of a prompt, then of tokens that come one by one."""
    model = load_model(directory, dtype="bfloat16", device=device, overrides=overrides).model
    with torch.inference_mode():
        paged = random_models.PagedModel(model)
        found = [paged.step({"a": tokens[:80]})["a"]]
        found += [paged.step({"a": [token]})["a"] for token in tokens[80:]]
    return torch.cat(found).float().cpu()


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--formats", default=",".join(("fp8", *TOOLS)))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    faults: list[str] = []
    in_4_bits = (*products_in_4_bits(), *experts_in_4_bits())
    errors = dict([*products(), *blocks(), *experts(), *in_4_bits])
    faults += [f"{what}: {error:.4f} off" for what, error in errors.items() if error > EXACT]
    worst = max(errors, key=lambda what: errors[what])
    print(
        f"{len(errors)} products and quantisations, worst {errors[worst]:.4f}: {worst}", flush=True
    )
    rows: dict[str, dict[str, float]] = {}
    asked = [filter(None, text.split(",")) for text in (options.models, options.formats)]
    for name, kind in product(*asked):
        case = f"{name} in {kind}"
        with tempfile.TemporaryDirectory() as directory:
            logits = logits_of(name, kind, Path(directory))
        row = rows[case] = {by: off(logits[by], logits["reference"]) for by in ("kernels", "torch")}
        print(case, row, flush=True)
        if not row["kernels"] < (NEAR if kind == "fp8" else NEAR_IN_4_BITS) * row["torch"]:
            faults.append(f"{case}: kernels {row['kernels']:.4f} off, torch {row['torch']:.4f}")
    if options.results:
        gpu = torch.cuda.get_device_name()
        made = {"commit": commit(), "gpu": gpu, "errors": errors, "models": rows, "faults": faults}
        options.results.write_text(json.dumps(made, indent=1) + "\n")
    print("faults:", *faults or ["none"], sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
