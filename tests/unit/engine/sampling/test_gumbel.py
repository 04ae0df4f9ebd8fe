"""The torch Philox against numpy's, and the noise made from its bits."""

import numpy as np
import pytest
import torch

from kvasir_engine.sampling.gumbel import NoiseKeys, gumbel_from_bits, gumbel_noise, philox_torch
from kvasir_engine.sampling.philox import MASK_32

from .numpy_philox import philox


def keys_of(rows: list[tuple[int, int, int, int]]) -> NoiseKeys:
    low, high, position, index = torch.tensor(rows, dtype=torch.int64).unbind(1)
    return NoiseKeys(seed_low=low, seed_high=high, position=position, sample_index=index)


def test_torch_equals_numpy_on_random_and_extreme_words():
    words = np.random.default_rng(0).integers(0, 2**32, (6, 2000), dtype=np.uint64)
    words[:, :64] = (np.arange(64) >> np.arange(6)[:, None] & 1) * MASK_32
    expected = philox(words[:4], words[4:])
    tensors = [torch.from_numpy(line.astype(np.int64)) for line in words]
    actual = philox_torch(tuple(tensors[:4]), tuple(tensors[4:]))
    for ours, theirs in zip(actual, expected, strict=True):
        assert np.array_equal(ours.numpy().astype(np.uint64), theirs)


@pytest.mark.parametrize("vocab_size", [1, 4, 5, 1003])
def test_each_token_has_its_lane_of_the_documented_counter(vocab_size):
    rows = [(5, 6, 17, 0), (MASK_32, MASK_32, 131071, 3)]
    noise = gumbel_noise(keys_of(rows), vocab_size, purpose=9)
    assert noise.shape == (2, vocab_size)
    for line, (low, high, position, index) in zip(noise, rows, strict=True):
        for token in {0, vocab_size // 2, vocab_size - 1}:
            counter = np.array([token // 4, position, 9, index], dtype=np.uint64)
            word = int(philox(counter, np.array([low, high], dtype=np.uint64))[token % 4])
            assert line[token] == gumbel_from_bits(torch.tensor([word]))[0]


def test_noise_of_a_row_does_not_depend_on_its_neighbours():
    rows = [(seed, 0, seed * 31, seed % 3) for seed in range(17)]
    together = gumbel_noise(keys_of(rows), 257)
    for line, row in zip(together, rows, strict=True):
        assert torch.equal(line, gumbel_noise(keys_of([row]), 257)[0])


def test_every_part_of_the_key_changes_the_noise():
    base = (1, 2, 3, 4)
    lines = [gumbel_noise(keys_of([base]), 16), gumbel_noise(keys_of([base]), 16, purpose=1)]
    for part in range(4):
        changed = list(base)
        changed[part] += 1
        lines.append(gumbel_noise(keys_of([tuple(changed)]), 16))
    assert len({tuple(line[0].tolist()) for line in lines}) == len(lines)


def test_extreme_words_give_finite_ordered_noise():
    words = torch.tensor([0, 1, 2**31, MASK_32 - 1, MASK_32])
    noise = gumbel_from_bits(words)
    assert torch.isfinite(noise).all()
    # v = 0.5 / 2^32 has noise -log(-log1p(-v)) = 33 log 2; the largest v below 1 has -log(24 log 2)
    assert noise[0].item() == pytest.approx(33 * np.log(2.0), abs=1e-5)
    assert noise[-1].item() == pytest.approx(-np.log(24 * np.log(2.0)), abs=1e-5)
    assert (noise[:-1] >= noise[1:]).all()


def test_noise_follows_the_gumbel_distribution():
    noise = gumbel_noise(keys_of([(seed, 1, 2, 3) for seed in range(64)]), 4096).double()
    n = noise.numel()
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=6 * 1.2825 / n**0.5)
    assert noise.var().item() == pytest.approx(np.pi**2 / 6, rel=0.02)
    ordered = noise.flatten().sort().values
    cdf = torch.exp(-torch.exp(-ordered))
    empirical = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    # Kolmogorov-Smirnov at p = 1e-3
    assert (cdf - empirical).abs().max().item() < 1.95 / n**0.5


def test_noise_of_a_part_of_the_vocabulary_is_that_of_the_whole() -> None:
    keys = keys_of([(5, 6, 17, 0), (7, 8, 9, 1)])
    whole = gumbel_noise(keys, 50)
    assert torch.equal(gumbel_noise(keys, 14, first=36), whole[:, 36:])
    assert torch.equal(gumbel_noise(keys, 9, first=8), whole[:, 8:17])
