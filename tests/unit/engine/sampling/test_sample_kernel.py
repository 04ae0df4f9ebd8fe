"""The sampling kernels against the sampler's own noise, sorts and arg max."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from kvasir_engine.device import collectives
from kvasir_engine.device.vocab_shard import VocabShard
from kvasir_engine.sampling.gumbel import gumbel_noise
from kvasir_engine.sampling.sampler import SampleBatch, Sampler
from kvasir_engine.sampling.sampling_state import SamplingState
from kvasir_engine.step_plan import RowInit, RowSampling

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter):
    from kvasir_engine.sampling import sample_kernel

    return sample_kernel


def make_state(vocab: int, rows: list[dict[str, Any]], device: torch.device) -> SamplingState:
    draw = random.Random(0)
    state = SamplingState(max_rows=len(rows) + 1, vocab_size=vocab, device=device)
    ids = np.array([1], dtype=np.int32)
    state.init_rows(
        [
            RowInit(row, ids, 1, 0, [], RowSampling(seed=draw.getrandbits(60), **fields))
            for row, fields in enumerate(rows)
        ]
    )
    return state


def by_sampler(logits: torch.Tensor, rows: list[dict[str, Any]], positions: torch.Tensor):
    """Tokens of the reference, on the CPU."""
    count = len(rows)
    state = make_state(logits.shape[1], rows, torch.device("cpu"))
    nothing = torch.zeros(count, 4, dtype=torch.int32)
    batch = SampleBatch(
        torch.arange(count), np.arange(count, dtype=np.int32), positions, nothing, nothing[:, 0]
    )
    return Sampler(state)(logits.clone(), batch).tokens


def by_kernel(kernels, logits: torch.Tensor, rows: list[dict[str, Any]], positions, **options):
    state = make_state(logits.shape[1], rows, DEVICE)
    index = torch.arange(len(rows), device=DEVICE)
    found = kernels.sample(logits.to(DEVICE), index, positions.to(DEVICE), state.tables, **options)
    return found.cpu()


PLAIN = [
    {"temperature": temperature, "sample_index": i}
    for i in range(3)
    for temperature in (0.0, 0.4, 1.3)
]
TRUNCATED: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.2},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 2.0, "min_p": 0.05, "top_k": 3},
    {"temperature": 1.4, "top_k": 5, "top_p": 0.6},
    {"temperature": 1.4, "min_p": 0.1, "top_k": 4, "top_p": 0.5},
    {"temperature": 0.0, "top_p": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("vocab", [1, 7, 200, 2500])
@pytest.mark.parametrize("rows", [PLAIN, TRUNCATED], ids=["plain", "truncated"])
def test_tokens_are_the_samplers(kernels, vocab: int, rows) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(len(rows), vocab) * 3
    positions = torch.randint(0, 5000, (len(rows),))
    want = by_sampler(logits, rows, positions)
    got = by_kernel(kernels, logits, rows, positions, quads=16, chunk_quads=32)
    assert got.tolist() == want.tolist()


def test_the_noise_of_a_large_vocabulary(kernels) -> None:
    logits = torch.randn(2, 9000)
    positions = torch.tensor([3, 70_000])
    rows = [{"temperature": 0.9}, {"temperature": 0.9, "top_p": 0.95}]
    want = by_sampler(logits, rows, positions)
    assert by_kernel(kernels, logits, rows, positions).tolist() == want.tolist()


def test_masked_tokens_are_never_drawn(kernels) -> None:
    logits = torch.full((12, 100), float("-inf"))
    logits[:, 31] = logits[:, 77] = 1.0
    rows = [{"temperature": 1.0, "top_p": 0.99 if i % 2 else 1.0} for i in range(12)]
    drawn = by_kernel(kernels, logits, rows, torch.arange(12), quads=16, chunk_quads=32)
    assert set(drawn.tolist()) == {31, 77}


def test_all_tokens_as_likely_as_the_last_kept_one_are_kept(kernels) -> None:
    logits = torch.zeros(24, 8)
    logits[:, 5] = -3.0
    rows = [{"temperature": 1.0, "top_k": 2}] * 24
    drawn = by_kernel(kernels, logits, rows, torch.arange(24), quads=16, chunk_quads=16)
    assert set(drawn.tolist()) == {0, 1, 2, 3, 4, 6, 7}


def test_tokens_are_appended_to_all_rows_but_the_spare_one(kernels) -> None:
    rows = [{"temperature": 0.0}] * 3
    state = make_state(10, rows, DEVICE)
    history = torch.zeros(4, 8, dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([2, 5, 3, 1], dtype=torch.int32, device=DEVICE)
    computed = lengths - 1
    logits = torch.zeros(3, 10, device=DEVICE)
    logits[[0, 1, 2], [4, 9, 6]] = 1.0
    tokens = kernels.sample(
        logits,
        torch.tensor([2, 0, 3], device=DEVICE),
        torch.tensor([3, 2, 1], device=DEVICE),
        state.tables,
        kernels.SampledInto(history, lengths, computed, padding_row=3),
        quads=16,
    )
    assert tokens.tolist() == [4, 9, 6]
    assert lengths.tolist() == [3, 5, 4, 1]
    assert computed.tolist() == [2, 4, 3, 0]
    assert [history[2, 3].item(), history[0, 2].item()] == [4, 9]
    assert history.sum().item() == 13


def test_noise_is_the_references(kernels) -> None:
    """Equal logits: the arg max is the noise's."""
    rows = [{"temperature": 1.0}] * 12
    positions = torch.arange(12) * 1000
    state = make_state(64, rows, torch.device("cpu"))
    noise = gumbel_noise(state.noise_keys(torch.arange(12), positions), 64)
    got = by_kernel(kernels, torch.zeros(12, 64), rows, positions, quads=16)
    assert got.tolist() == noise.argmax(-1).tolist()


class Ranks:
    """A communicator whose ranks came one after the other."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """All that was given so far."""
        self.given.append(x)
        return torch.stack(self.given)


@pytest.mark.parametrize(
    ("vocab", "ranks", "width"), [(5000, 2, 2500), (5000, 3, 1668), (160, 2, 80), (160, 4, 40)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shards_of_the_vocabulary_give_the_tokens_of_the_whole(
    kernels, vocab: int, ranks: int, width: int, dtype, monkeypatch
) -> None:
    """Of 3 ranks the last has fewer tokens than columns. Equal logits are many in bf16. A small
    vocabulary is one program's a rank."""
    draw = torch.Generator().manual_seed(ranks)
    logits = (torch.randn(len(PLAIN), vocab, generator=draw) * 3).to(dtype)
    positions = torch.arange(len(PLAIN)) + 7
    want = by_kernel(kernels, logits, PLAIN, positions)
    padded = torch.nn.functional.pad(logits, (0, ranks * width - vocab), value=99.0)
    communicator: Any = Ranks()
    group = collectives.TensorParallel(0, ranks, communicator)
    monkeypatch.setattr(collectives, "_current", group)
    for rank in range(ranks):
        first = rank * width
        shard = VocabShard(first, min(width, vocab - first))
        own = padded[:, first : first + width].contiguous()
        found = by_kernel(kernels, own, PLAIN, positions, shard=shard)
    assert torch.equal(found, want)
