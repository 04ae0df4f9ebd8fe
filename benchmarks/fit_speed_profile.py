"""Fit a speed profile of the simulated runner to measured parts of a step.

    python benchmarks/fit_speed_profile.py \
        benchmarks/data/h200_llama8b_floors.json \
        engine/kvasir_engine/assets/profiles/h200-llama-3.1-8b-bf16.json

The input holds, for one model on one device: all GEMMs of a step by number of tokens
(`gemm_bf16_ms`, key `sum`), paged decode attention of one layer by batch and context
(`decode_attention`), causal attention of one layer over a whole prompt by length
(`causal_attention_ms`), the time of a small kernel inside a CUDA graph, and the model's sizes.

- GEMMs are taken as measured; the profile interpolates.
- Decode and prompt attention are lines, fixed time a layer + bytes / bandwidth and fixed time
  + pairs / rate, by least squares on the relative error.
- A layer launches KERNELS_PER_LAYER small kernels beside them (norms, residuals, RoPE, cache
  writes, SiLU); each costs a launch, and together the bytes they move a token.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from kvasir_engine.sim.latency_model import BLOCK_TOKENS, SpeedProfile

KERNELS_PER_LAYER = 10
"""Kernels that an unfused Llama layer launches."""
ELEMENT_BYTES = 2
RESERVED_BYTES = 2 << 30
"""Activations, graphs and the driver."""


def line(x: list[float], y: list[float]) -> tuple[float, float]:
    """(fixed, slope) of y = fixed + slope * x with the least squared relative error, both >= 0."""
    xs, ys = np.array(x), np.array(y)
    columns = np.stack([1 / ys, xs / ys], axis=1)
    fixed, slope = np.linalg.lstsq(columns, np.ones(len(ys)), rcond=None)[0]
    if fixed < 0:
        fixed, slope = 0.0, float((xs / ys).sum() / ((xs / ys) ** 2).sum())
    return float(fixed), float(slope)


def fit(measured: dict[str, Any], name: str, utilization: float) -> SpeedProfile:
    """The profile of the measured model and device."""
    model = measured["model"]
    layers = model["num_layers"]
    kv_bytes = 2 * layers * model["num_kv_heads"] * model["head_dim"] * ELEMENT_BYTES
    fixed_us, us_per_byte = line(*decode_attention(measured, kv_bytes / layers))
    pairs = [int(n) ** 2 / 2 for n in measured["causal_attention_ms"]]
    _, ms_per_pair = line(pairs, list(measured["causal_attention_ms"].values()))
    flops_per_pair = 4 * model["num_heads"] * model["head_dim"]
    launches = measured["graph_small_kernel_us"] * KERNELS_PER_LAYER
    bandwidth = 1e6 / us_per_byte
    weights = model["num_parameters"] * ELEMENT_BYTES
    room = measured["device_memory_bytes"] * utilization - weights - RESERVED_BYTES
    return SpeedProfile(
        name=name,
        source=measured["source"],
        date=measured["date"],
        gemm_points=tuple(
            (int(tokens), row["sum"]) for tokens, row in measured["gemm_bf16_ms"].items()
        ),
        kv_bytes_per_token=kv_bytes,
        kv_bandwidth_bytes_s=round(bandwidth, -9),
        attention_flops_per_pair=flops_per_pair * layers,
        attention_flops_s=round(flops_per_pair / ms_per_pair * 1e3, -12),
        overhead_ms=round(layers * (launches + fixed_us) / 1e3, 3),
        small_us_per_token=round(layers * small_kernel_bytes(model) / bandwidth * 1e6, 3),
        num_kv_blocks=int(room // (kv_bytes * BLOCK_TOKENS)),
    )


def decode_attention(
    measured: dict[str, Any], token_bytes: float
) -> tuple[list[float], list[float]]:
    """Bytes read by and microseconds of one layer's decode attention, for each measured batch."""
    read, spent = [], []
    for key, row in measured["decode_attention"].items():
        batch, context = map(int, re.findall(r"_(?:bs|ctx)(\d+)", key))
        read.append(batch * context * token_bytes)
        spent.append(row["us_layer"])
    return read, spent


def small_kernel_bytes(model: dict[str, Any]) -> int:
    """Bytes a layer's unfused small kernels move for one token.

    Two add-and-norms read and write the hidden state and the residual, SiLU * mul reads two and
    writes one intermediate, RoPE reads and writes queries and keys.
    """
    norms = 2 * 4 * model["hidden_size"]
    activation = 3 * model["intermediate_size"]
    rope = 2 * (model["num_heads"] + model["num_kv_heads"]) * model["head_dim"]
    return int((norms + activation + rope) * ELEMENT_BYTES)


def main() -> None:
    """Fit, print the model beside what was measured, and write the profile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--utilization", type=float, default=0.9, help="share of the memory used")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text())
    profile = fit(measured, options.output.stem, options.utilization)
    options.output.write_text(profile.to_json())
    print(f"{'batch x context':>16} {'step ms':>8}")
    for batch, context in ((1, 1128), (8, 1128), (64, 1128), (256, 1128)):
        print(f"{batch:>8} x {context:<5} {profile.step_ms(batch, batch * context, 0):>8.2f}")
    print(f"prefill {8192 / profile.step_ms(8192, 0, 2 * 4096**2 / 2) * 1e3:,.0f} tokens/s")


if __name__ == "__main__":
    main()
