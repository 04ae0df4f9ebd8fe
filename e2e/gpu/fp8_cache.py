"""Engines with a float8 KV cache on a GPU: kernels and graphs against torch's operations.

    python e2e/gpu/fp8_cache.py [--models llama31,...] [--results F.json]

Small random models in bf16 answer prompts of several lengths, in chunks and behind a cached prefix,
greedily and with log-probabilities: by kernels in CUDA graphs, by kernels one by one, and by
torch's operations, each over keys and values in float8, and by torch's operations over bf16. As
long as the answers are the same, the kernels' log-probabilities are to be nearer to those of
torch's operations over float8 than float8 takes these from bf16's; tokens part where two were about
as likely. Exits 1 when one does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks", "tests")]

from common import commit  # noqa: E402
from support.engines import random_models  # noqa: E402

from kvasir_engine import LLM, SamplingParams  # noqa: E402

MODELS = ("llama31", "gemma2", "gemma3", "qwen3", "mixtral")
WAYS: dict[str, dict[str, Any]] = {
    "graphs": {"kv_cache_dtype": "fp8"},
    "one by one": {"kv_cache_dtype": "fp8", "enforce_eager": True},
    "torch": {"kv_cache_dtype": "fp8", "kernels": "torch"},
    "torch, bf16": {"kernels": "torch"},
}
TOKENS = 32
NEAR = 2.0
"""Most that an answer's tokens may differ in log-probability where answers part, as a multiple of
what float8 makes of it at most."""


class Answer(NamedTuple):
    """Tokens and the log-probability of each."""

    tokens: list[int]
    logprobs: list[float]


def answers(directory: Path, settings: dict[str, Any], device: str) -> list[Answer]:
    """Greedy answers of one engine, in one batch, then to prompts that begin as the first did."""
    draw = random.Random(0)
    prompts = [[draw.randrange(1, 160) for _ in range(n)] for n in (5, 40, 100, 300, 23, 450)]
    again = [[*prompts[5][:400], *prompts[0]], prompts[3]]
    params = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=1, ignore_eos=True)
    llm = LLM(
        str(directory),
        device=device,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_batched_tokens=256,
        max_num_seqs=16,
        num_blocks=512,
        **settings,
    )
    found = []
    try:
        for batch in (prompts, again):
            given = [{"prompt_token_ids": ids} for ids in batch]
            for made in llm.generate(given, params, use_tqdm=False):
                (output,) = made.outputs
                chosen = zip(output.token_ids, output.logprobs or [], strict=True)
                logprobs = [each[token].logprob for token, each in chosen]
                found.append(Answer([*output.token_ids], logprobs))
    finally:
        llm.close()
    return found


def apart(some: list[Answer], others: list[Answer]) -> tuple[float, float]:
    """Return the mean and the largest difference of log-probabilities, up to the first token of
    each answer that differs and with it."""
    found = []
    for one, other in zip(some, others, strict=True):
        pairs = [*zip(one.tokens, other.tokens, strict=True)]
        same = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        both = [*zip(one.logprobs, other.logprobs, strict=True)][: same + 1]
        found += [abs(a - b) for a, b in both]
    return sum(found) / len(found), max(found)


def judged(name: str, device: str) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Return how far answers of a model lie apart, and what does not hold."""
    with tempfile.TemporaryDirectory() as directory:
        random_models.save_hf_model(name, Path(directory))
        found = {way: answers(Path(directory), WAYS[way], device) for way in WAYS}
    row = {way: apart(found[way], found["torch"]) for way in WAYS if way != "torch"}
    by_float8 = row["torch, bf16"]
    faults = [
        f"{name}: {way} {row[way]} off, float8 {by_float8}"
        for way in ("graphs", "one by one")
        if not (row[way][0] < by_float8[0] and row[way][1] < NEAR * by_float8[1])
    ]
    return row, faults


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    rows, faults = {}, []
    for name in options.models.split(","):
        rows[name], wrong = judged(name, options.device)
        faults += wrong
        print(name, rows[name], flush=True)
    if options.results:
        gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none"
        made = {"commit": commit(), "gpu": gpu, "models": rows, "faults": faults}
        options.results.write_text(json.dumps(made, indent=1) + "\n")
    print("faults:", *faults or ["none"], sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
