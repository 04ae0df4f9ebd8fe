"""A comparison with transformers that native and Transformers-backend tests share."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

LENGTHS = {"a": 5, "b": 37, "c": 70, "d": 16, "e": 33}


def _prompt(key: str, length: int) -> list[int]:
    rng = random.Random(key)
    return [rng.randrange(160) for _ in range(length)]


def _batched(paged, want: Callable[[list[int]], torch.Tensor]) -> None:
    """Prompts of several lengths, the longest past every window, in one forward pass."""
    prompts = {key: _prompt(key, length) for key, length in LENGTHS.items()}
    for key, logits in paged.step(prompts).items():
        torch.testing.assert_close(logits, want(prompts[key]), atol=1e-4, rtol=1e-4)


def _chunked(paged, want: Callable[[list[int]], torch.Tensor]) -> None:
    """Two prompts in chunks of 7; the shorter one decodes beside the longer one's chunks."""
    tokens = {"long": _prompt("long", 61), "short": _prompt("short", 45)}
    prompt_lengths = {"long": 42, "short": 28}
    got: dict[str, list[torch.Tensor]] = {"long": [], "short": []}
    fed = {"long": 0, "short": 0}
    mixed = 0
    while any(fed[key] < len(tokens[key]) for key in tokens):
        step = {}
        for key, all_tokens in tokens.items():
            size = 7 if fed[key] < prompt_lengths[key] else 1
            if fed[key] < len(all_tokens):
                step[key] = all_tokens[fed[key] : fed[key] + size]
        mixed += sorted(map(len, step.values())) == [1, 7]
        for key, logits in paged.step(step).items():
            got[key].append(logits)
            fed[key] += len(step[key])
    assert mixed > 0
    for key, parts in got.items():
        torch.testing.assert_close(torch.cat(parts), want(tokens[key]), atol=1e-4, rtol=1e-4)


@pytest.fixture(params=[_batched, _chunked], ids=["batched", "chunked_and_mixed"])
def compare(request: pytest.FixtureRequest) -> Callable[..., None]:
    """compare(paged_model, want): run sequences and assert that their logits are want(tokens)."""
    check: Callable[..., None] = request.param
    return check
