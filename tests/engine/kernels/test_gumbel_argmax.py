"""The sampling kernel against the sampler's own noise and arg max."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.runner.gumbel import NoiseKeys, gumbel_noise

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def gumbel_argmax(triton_interpreter):
    from kvasir_engine.kernels.gumbel_argmax import gumbel_argmax as function

    return function


def make_keys(count: int) -> NoiseKeys:
    torch.manual_seed(1)
    word = [torch.randint(0, 1 << 32, (count,), device=DEVICE) for _ in range(2)]
    positions = torch.randint(0, 5000, (count,), device=DEVICE)
    return NoiseKeys(word[0], word[1], positions, torch.arange(count, device=DEVICE) % 3)


@pytest.mark.parametrize("vocab", [1, 7, 64, 250, 1000])
@pytest.mark.parametrize("quads", [16, 64])
def test_tokens_are_the_samplers(gumbel_argmax, vocab: int, quads: int) -> None:
    count = 24
    keys = make_keys(count)
    logits = torch.randn(count, vocab, device=DEVICE) * 3
    temperature = torch.rand(count, device=DEVICE) + 0.3
    random = torch.arange(count, device=DEVICE).int() % 4
    scores = logits / temperature.unsqueeze(1) + gumbel_noise(keys, vocab)
    want = torch.where(random.bool(), scores.argmax(-1), logits.argmax(-1))
    got = gumbel_argmax(logits, temperature, random, keys, quads=quads)
    assert got.tolist() == want.tolist()


def test_masked_tokens_are_never_drawn(gumbel_argmax) -> None:
    keys = make_keys(64)
    logits = torch.full((64, 100), float("-inf"), device=DEVICE)
    logits[:, 31] = logits[:, 77] = 1.0
    ones = torch.ones(64, device=DEVICE)
    drawn = gumbel_argmax(logits, ones, ones.int(), keys, quads=16)
    assert set(drawn.tolist()) == {31, 77}


def test_a_greedy_row_reads_no_temperature(gumbel_argmax) -> None:
    keys = make_keys(1)
    logits = torch.tensor([[0.0, 2.0, 1.0]], device=DEVICE)
    zero = torch.zeros(1, device=DEVICE)
    assert gumbel_argmax(logits, zero, zero.int(), keys, quads=16).tolist() == [1]
