"""The reference backend against attention written out query by query in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kvasir_engine.attention import torch_reference
from kvasir_engine.attention.base import (
    AttentionBatch,
    AttentionSpec,
    ForwardContext,
    attend,
    forward_context,
)
from kvasir_engine.attention.registry import make_backend
from kvasir_engine.attention.torch_reference import GatherLimits, TorchAttention, similar_lengths

BLOCK = 4
DECODES = [1, 30, 4, 5, 17, 64]
PREFILLS = [(7, 7), (3, 40), (33, 33)]
"""(new tokens, length after them)."""


def make_spec(heads: int = 4, kv_heads: int = 2, **fields: Any) -> AttentionSpec:
    return AttentionSpec(0, heads, kv_heads, 8, 0.3, **fields)


def make_batch(
    decodes: list[int], prefills: list[tuple[int, int]], slack: int = 0
) -> tuple[AttentionBatch, int]:
    """Entries over shuffled blocks of one pool, and the pool's size; the CPU's lengths are `slack`
    above the truth."""
    lengths = decodes + [length for _, length in prefills]
    new = [1] * len(decodes) + [n for n, _ in prefills]
    width = -(-(max(lengths) + slack) // BLOCK)
    pool = list(range(1, 1 + width * len(lengths)))
    random.Random(1).shuffle(pool)
    table = torch.tensor(pool, dtype=torch.int32).view(len(lengths), width)
    slots = [
        int(table[entry, position // BLOCK]) * BLOCK + position % BLOCK
        for entry, (n, length) in enumerate(zip(new, lengths, strict=True))
        for position in range(length - n, length)
    ]
    batch = AttentionBatch(
        block_table=table,
        slot_mapping=torch.tensor(slots),
        query_start=torch.tensor([0, *new]).cumsum(0).int(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_decodes=len(decodes),
        max_seq_len=max(lengths) + slack,
        query_lens_cpu=new,
        seq_lens_cpu=[length + slack for length in lengths],
    )
    return batch, len(pool) + 1


def written_out(
    spec: AttentionSpec, q: torch.Tensor, cache: torch.Tensor, batch: AttentionBatch
) -> torch.Tensor:
    """softmax(cap(scale q k)) v over the visible keys, one query and head at a time."""
    keys, values = cache.flatten(1, 2).double()
    out, token = [], 0
    for entry, n in enumerate(batch.query_lens_cpu):
        length = int(batch.seq_lens[entry])
        for position in range(length - n, length):
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            where = torch.arange(first, position + 1)
            slots = batch.block_table[entry, where // BLOCK].long() * BLOCK + where % BLOCK
            for head in range(spec.num_heads):
                kv_head = head * spec.num_kv_heads // spec.num_heads
                scores = keys[slots, kv_head] @ q[token, head].double() * spec.scale
                if spec.softcap is not None:
                    scores = spec.softcap * torch.tanh(scores / spec.softcap)
                out.append(scores.softmax(0) @ values[slots, kv_head])
            token += 1
    return torch.stack(out).view(q.shape)


def check(
    spec: AttentionSpec,
    backend: TorchAttention,
    *,
    decodes: list[int] = DECODES,
    prefills: list[tuple[int, int]] = PREFILLS,
    slack: int = 0,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> None:
    batch, blocks = make_batch(decodes, prefills, slack)
    torch.manual_seed(0)
    cache = torch.randn(2, blocks, BLOCK, spec.num_kv_heads, spec.head_dim).to(dtype)
    q = torch.randn(sum(batch.query_lens_cpu), spec.num_heads, spec.head_dim).to(dtype)
    got = backend.attend(spec, q, cache, batch)
    assert got.dtype == dtype
    want = written_out(spec, q, cache, batch)
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.fixture
def backend() -> TorchAttention:
    return TorchAttention(torch.device("cpu"))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("window", [None, 1, 4, 5, 21])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_decodes_and_prefills(backend, heads, window, softcap) -> None:
    check(make_spec(*heads, window=window, softcap=softcap), backend)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_bfloat16(backend, window, softcap) -> None:
    spec = make_spec(window=window, softcap=softcap)
    check(spec, backend, dtype=torch.bfloat16, tolerance=3e-2)


@pytest.mark.parametrize("window", [None, 6])
def test_lengths_on_the_cpu_may_be_too_high(backend, window) -> None:
    check(make_spec(window=window), backend, slack=9)


@pytest.mark.parametrize("window", [None, 6])
def test_a_prefill_in_several_chunks(backend, window, monkeypatch) -> None:
    monkeypatch.setattr(torch_reference, "_MAX_CHUNK", 5)
    check(make_spec(window=window), backend)


def test_chunks_keep_the_scores_within_bounds(backend, monkeypatch) -> None:
    sizes = []
    real = torch_reference._softmax_mix

    def noted(spec, q, k, v, mask):
        sizes.append(4 * spec.num_heads * mask.numel())
        return real(spec, q, k, v, mask)

    monkeypatch.setattr(torch_reference, "_softmax_mix", noted)
    monkeypatch.setattr(torch_reference, "MAX_SCORE_BYTES", 4096)
    check(make_spec(softcap=2.0), backend, decodes=[], prefills=[(60, 64)])
    assert max(sizes) <= 4096
    assert len(sizes) > 4


def test_decodes_in_several_groups(backend) -> None:
    backend.limits = GatherLimits(gathered=2**12, padding=2**8)
    for window in (None, 6):
        check(make_spec(window=window), backend, prefills=[])


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    gathered=st.integers(1, 40),
    padding=st.integers(0, 20),
)
@example(lengths=[1, 5], gathered=4, padding=0)
def test_groups_hold_every_decode_once_within_limits(
    lengths: list[int], gathered: int, padding: int
) -> None:
    batch, _ = make_batch(lengths, [])
    spec, cache = make_spec(), torch.empty(2, 1, BLOCK, 2, 8)
    block_bytes = 2 * BLOCK * 2 * 8 * 4
    limits = GatherLimits(gathered * block_bytes, padding * block_bytes)
    groups = list(similar_lengths(spec, cache, batch, limits))
    assert sorted(entry for group in groups for entry in group) == list(range(len(lengths)))
    for group in groups:
        blocks = [-(-lengths[entry] // BLOCK) for entry in group]
        assert len(group) == 1 or max(blocks) * len(blocks) <= gathered
        assert sum(max(blocks) - each for each in blocks) <= padding


def test_a_new_batch_of_the_same_layers_is_not_taken_for_the_last_one(backend) -> None:
    check(make_spec(), backend)
    check(make_spec(), backend, decodes=[9, 2], prefills=[])
    check(make_spec(window=3), backend, decodes=[9, 2], prefills=[])


def test_attend_writes_new_tokens_before_it_reads_them(backend) -> None:
    batch, blocks = make_batch([9, 2], [(6, 11)])
    spec = make_spec()
    tokens = sum(batch.query_lens_cpu)
    cache = torch.randn(2, blocks, BLOCK, spec.num_kv_heads, spec.head_dim)
    q, k, v = (torch.randn(tokens, n, spec.head_dim) for n in (4, 2, 2))
    expected = cache.clone()
    for token, slot in enumerate(batch.slot_mapping.tolist()):
        expected[0, slot // BLOCK, slot % BLOCK] = k[token]
        expected[1, slot // BLOCK, slot % BLOCK] = v[token]
    with forward_context(ForwardContext(backend, [cache], [batch], [0])):
        got = attend(spec, q, k, v)
    assert torch.equal(cache, expected)
    want = written_out(spec, q, expected, batch)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


def test_attend_needs_a_context() -> None:
    x = torch.zeros(1, 4, 8)
    with pytest.raises(RuntimeError, match="outside forward_context"):
        attend(make_spec(), x, x, x)


def test_a_cpu_is_served_by_this_backend() -> None:
    assert isinstance(make_backend(torch.device("cpu")), TorchAttention)
