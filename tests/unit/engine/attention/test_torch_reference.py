"""The reference backend against attention written out query by query in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kvasir_engine.attention import torch_reference
from kvasir_engine.attention.backends import make_backends
from kvasir_engine.attention.base import ForwardContext, attend, forward_context
from kvasir_engine.attention.torch_reference import GatherLimits, TorchAttention, similar_lengths
from kvasir_engine.device.float8 import FP8
from kvasir_engine.kv.cache_spec import KVScales

BLOCK = 4


@pytest.fixture
def backend() -> TorchAttention:
    return TorchAttention(torch.device("cpu"))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("window", [None, 1, 4, 5, 21])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_decodes_and_prefills(paged, backend, heads, window, softcap) -> None:
    paged.check(paged.make_spec(*heads, window=window, softcap=softcap), backend)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_sinks(paged, backend, heads, window, softcap) -> None:
    sinks = torch.linspace(-2, 9, heads[0])
    paged.check(paged.make_spec(*heads, window=window, softcap=softcap, sinks=sinks), backend)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_bfloat16(paged, backend, window, softcap) -> None:
    spec = paged.make_spec(window=window, softcap=softcap)
    paged.check(spec, backend, dtype=torch.bfloat16, tolerance=3e-2)


@pytest.mark.parametrize("window", [None, 6])
def test_lengths_on_the_cpu_may_be_too_high(paged, backend, window) -> None:
    paged.check(paged.make_spec(window=window), backend, slack=9)


@pytest.mark.parametrize("window", [None, 6])
def test_a_prefill_in_several_chunks(paged, backend, window, monkeypatch) -> None:
    monkeypatch.setattr(torch_reference, "_MAX_CHUNK", 5)
    paged.check(paged.make_spec(window=window), backend)


def test_chunks_keep_the_scores_within_bounds(paged, backend, monkeypatch) -> None:
    sizes = []
    real = torch_reference._softmax_mix

    def noted(spec, q, k, v, mask, sinks):
        sizes.append(4 * spec.num_heads * mask.numel())
        return real(spec, q, k, v, mask, sinks)

    monkeypatch.setattr(torch_reference, "_softmax_mix", noted)
    monkeypatch.setattr(torch_reference, "MAX_SCORE_BYTES", 4096)
    paged.check(paged.make_spec(softcap=2.0), backend, decodes=[], prefills=[(60, 64)])
    assert max(sizes) <= 4096
    assert len(sizes) > 4


def test_decodes_in_several_groups(paged, backend) -> None:
    backend.limits = GatherLimits(gathered=2**12, padding=2**8)
    for window in (None, 6):
        paged.check(paged.make_spec(window=window), backend, prefills=[])


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    gathered=st.integers(1, 40),
    padding=st.integers(0, 20),
)
@example(lengths=[1, 5], gathered=4, padding=0)
def test_groups_hold_every_decode_once_within_limits(
    paged, lengths: list[int], gathered: int, padding: int
) -> None:
    batch, _ = paged.make_batch(lengths, [])
    spec, cache = paged.make_spec(), torch.empty(2, 1, BLOCK, 2, 8)
    block_bytes = 2 * BLOCK * 2 * 8 * 4
    limits = GatherLimits(gathered * block_bytes, padding * block_bytes)
    groups = list(similar_lengths(spec, cache, batch, limits))
    assert sorted(entry for group in groups for entry in group) == list(range(len(lengths)))
    for group in groups:
        blocks = [-(-lengths[entry] // BLOCK) for entry in group]
        assert len(group) == 1 or max(blocks) * len(blocks) <= gathered
        assert sum(max(blocks) - each for each in blocks) <= padding


def test_a_new_batch_of_the_same_layers_is_not_taken_for_the_last_one(paged, backend) -> None:
    paged.check(paged.make_spec(), backend)
    paged.check(paged.make_spec(), backend, decodes=[9, 2], prefills=[])
    paged.check(paged.make_spec(window=3), backend, decodes=[9, 2], prefills=[])


def test_attend_writes_new_tokens_before_it_reads_them(paged, backend) -> None:
    batch, blocks = paged.make_batch([9, 2], [(6, 11)])
    spec = paged.make_spec()
    tokens = sum(batch.query_lens_cpu)
    cache = torch.randn(2, blocks, BLOCK, spec.num_kv_heads, spec.head_dim)
    q, k, v = (torch.randn(tokens, n, spec.head_dim) for n in (4, 2, 2))
    expected = cache.clone()
    for token, slot in enumerate(batch.slot_mapping.tolist()):
        expected[0, slot // BLOCK, slot % BLOCK] = k[token]
        expected[1, slot // BLOCK, slot % BLOCK] = v[token]
    with forward_context(ForwardContext([backend], [cache], [batch], [0])):
        got = attend(spec, q, k, v)
    assert torch.equal(cache, expected)
    want = paged.written_out(spec, q, expected, batch)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_a_cache_of_float8(paged, backend, window) -> None:
    spec = paged.make_spec(window=window)
    paged.check(spec, backend, scales=KVScales(0.5, 4.0), tolerance=1e-5)


def test_what_is_written_in_float8_is_divided_by_the_scale(paged, backend) -> None:
    batch, blocks = paged.make_batch([9, 2], [])
    spec, scales = paged.make_spec(), KVScales(0.5, 4.0)
    cache = torch.zeros(spec.cache.shape(blocks, BLOCK)).to(FP8)
    k, v = torch.randn(2, 2, spec.head_dim), torch.full((2, 2, spec.head_dim), -1e6)
    backend.write_new_kv(cache, k, v, batch.slot_mapping, scales)
    for token, slot in enumerate(batch.slot_mapping.tolist()):
        key, value = cache[:, slot // BLOCK, slot % BLOCK].float()
        torch.testing.assert_close(key * 0.5, k[token], rtol=1 / 16, atol=1e-3)
        # What is too large is float8's largest number.
        assert torch.equal(value, torch.full_like(value, -448.0))
    written = cache.view(torch.uint8).count_nonzero().item()
    assert written <= 4 * spec.head_dim * 2


class Doubled(TorchAttention):
    """A backend whose results are told from the reference's."""

    def attend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """AttentionBackend.attend."""
        return 2 * super().attend(*args, **kwargs)


def test_each_layer_attends_by_its_own_backend(paged, backend) -> None:
    batch, blocks = paged.make_batch([9, 2], [])
    layers = [replace(paged.make_spec(), layer=layer) for layer in (0, 1)]
    cache = torch.randn(layers[0].cache.shape(blocks, BLOCK))
    backends = [backend, Doubled(torch.device("cpu"))]
    q, k, v = (torch.randn(2, n, layers[0].head_dim) for n in (4, 2, 2))
    with forward_context(ForwardContext(backends, [cache, cache], [batch], [0, 0])):
        first, second = (attend(spec, q, k, v) for spec in layers)
    assert torch.equal(second, 2 * first)


def test_attend_needs_a_context(paged) -> None:
    x = torch.zeros(1, 4, 8)
    with pytest.raises(RuntimeError, match="outside forward_context"):
        attend(paged.make_spec(), x, x, x)


def test_a_cpu_is_served_by_this_backend(paged) -> None:
    (backend,) = make_backends([paged.make_spec().cache], torch.device("cpu"))
    assert isinstance(backend, TorchAttention)
