"""Every native family against transformers: batched, chunked and mixed with decodes."""

from __future__ import annotations

import random

import pytest
import torch
from kvasir_engine.loader.load import load_model

NAMES = [
    "llama2",
    "llama3",
    "llama31",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3_long",
    "mixtral",
    "qwen3_moe",
]
LENGTHS = {"a": 5, "b": 37, "c": 70, "d": 16, "e": 33}


def prompt(name: str, length: int) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(160) for _ in range(length)]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_prompts_in_one_batch(name, hf_model_dir, hf_logits, paged_model) -> None:
    paged = paged_model(load_model(hf_model_dir(name)).model)
    prompts = {key: prompt(key, length) for key, length in LENGTHS.items()}
    for key, logits in paged.step(prompts).items():
        torch.testing.assert_close(logits, hf_logits(name, prompts[key]), atol=1e-4, rtol=1e-4)


def test_chunks_of_seven_mixed_with_decodes(name, hf_model_dir, hf_logits, paged_model) -> None:
    paged = paged_model(load_model(hf_model_dir(name)).model)
    tokens = {"long": prompt("long", 61), "short": prompt("short", 45)}
    got: dict[str, list[torch.Tensor]] = {"long": [], "short": []}
    fed = {"long": 0, "short": 0}
    while fed["long"] < 61:
        # The short sequence is prefilled to 30 tokens, then decodes beside the long one's chunks.
        sizes = {"long": 7 if fed["long"] < 42 else 1, "short": 7 if fed["short"] < 28 else 1}
        step = {
            k: tokens[k][fed[k] : fed[k] + n] for k, n in sizes.items() if fed[k] < len(tokens[k])
        }
        for key, logits in paged.step(step).items():
            got[key].append(logits)
            fed[key] += len(step[key])

    for key, parts in got.items():
        want = hf_logits(name, tokens[key][: fed[key]])
        torch.testing.assert_close(torch.cat(parts), want, atol=1e-4, rtol=1e-4)
