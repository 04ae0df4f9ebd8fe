from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llama_config import LLAMA_8B

from kvasir.models.fit import Workload, estimate_fit, gpu_memory, suggest_tensor_parallel
from kvasir.models.fit.estimate import (
    COLLECTIVE_BYTES,
    CONTEXT_BYTES,
    GRAPH_BYTES,
    reserve_bytes,
    weight_bytes,
)
from kvasir.models.hf_config import parse_shape
from kvasir.models.model_shape import ModelShape
from kvasir.models.quantization import Numbers, Quantization, Scales

GIB = 2**30
LLAMA_70B = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


def llama(**fields: Any) -> ModelShape:
    return parse_shape({**LLAMA_8B, **fields})


def test_llama_8b_on_an_l40s() -> None:
    fit = estimate_fit(llama(), gpu_memory("l40s"))
    assert fit.weight_bytes == 2 * 8_030_261_248
    assert fit.kv_bytes == int(0.9 * gpu_memory("l40s")) - fit.weight_bytes - fit.reserve_bytes
    assert fit.kv_bytes_per_token == 131072
    # In whole blocks, as many tokens as the bytes are worth.
    assert fit.kv_tokens == pytest.approx(fit.kv_bytes / 131072, rel=0.001)
    assert fit.longest_context == 131072
    assert fit.fits


def test_the_longest_context_is_what_memory_allows_and_no_token_more() -> None:
    shape = llama()
    fit = estimate_fit(shape, gpu_memory("l4"))
    assert 0 < fit.longest_context < 131072
    blocks = fit.longest_context // 16
    assert fit.longest_context == blocks * 16
    assert blocks * 16 * 131072 <= fit.kv_bytes < (blocks + 1) * 16 * 131072
    assert fit.fits  # no length was wanted
    longest = fit.longest_context
    assert estimate_fit(shape, gpu_memory("l4"), 1, Workload(max_model_len=longest)).fits
    assert not estimate_fit(shape, gpu_memory("l4"), 1, Workload(max_model_len=longest + 1)).fits


def test_a_length_beyond_the_models_own_never_fits() -> None:
    fit = estimate_fit(llama(), 1024 * GIB, 1, Workload(max_model_len=131073))
    assert not fit.fits
    assert fit.longest_context == 131072


def test_ranks_share_weights_and_kv_until_kv_heads_are_copied() -> None:
    shape = llama()
    per_token = [estimate_fit(shape, 80 * GIB, tp).kv_bytes_per_token for tp in (1, 2, 8, 16)]
    assert per_token == [131072, 65536, 16384, 16384]
    assert weight_bytes(shape, 2) < 0.51 * weight_bytes(shape, 1)
    with pytest.raises(ValueError, match="tensor parallel size 3 does not divide"):
        estimate_fit(shape, 80 * GIB, 3)


@pytest.mark.parametrize(
    ("gpu", "work", "size"),
    [
        ("h200", Workload(), 2),
        ("h100", Workload(), 4),
        ("h100", Workload(max_model_len=16384), 2),
        ("l4", Workload(max_model_len=4096), 8),
        ("h100", Workload(max_model_len=10**6), None),
    ],
)
def test_suggested_gpus_for_llama_70b(gpu: str, work: Workload, size: int | None) -> None:
    shape = parse_shape(LLAMA_70B)
    assert suggest_tensor_parallel(shape, gpu_memory(gpu), work) == size
    if size is not None:
        assert estimate_fit(shape, gpu_memory(gpu), size, work).fits
        assert not _holds_one(shape, gpu_memory(gpu), size // 2, work)


def _holds_one(shape: ModelShape, memory: int, size: int, work: Workload) -> bool:
    fit = estimate_fit(shape, memory, size, work)
    return fit.longest_context >= fit.max_model_len


def test_no_number_of_gpus_that_the_heads_allow() -> None:
    shape = llama(num_attention_heads=6, num_key_value_heads=2, head_dim=128)
    assert suggest_tensor_parallel(shape, 10 * GIB) is None


def test_sliding_windows_keep_only_their_window() -> None:
    full = llama(max_position_embeddings=32768)
    windows = tuple(1024 if (i + 1) % 4 else None for i in range(32))
    sliding = replace(full, layer_windows=windows)
    fits = [estimate_fit(shape, 40 * GIB) for shape in (full, sliding)]
    assert fits[0].kv_bytes == fits[1].kv_bytes
    # A sequence keeps 8 full layers, and 24 of 1024 of 32768 tokens and a block.
    share = (8 + 24 * (1024 + 32) / 32768) / 32
    assert fits[1].max_concurrency == pytest.approx(fits[0].max_concurrency / share, rel=0.1)
    # One sequence's prompt needs a chunk more in each sliding layer.
    tight = Workload(kv_cache_memory_bytes=GIB, max_num_batched_tokens=512)
    longest = [estimate_fit(s, 40 * GIB, 1, tight).longest_context for s in (full, sliding)]
    assert longest[0] == 8192
    assert 8192 < longest[1] < 8192 / share


def test_a_wanted_kv_cache_that_memory_does_not_have() -> None:
    fit = estimate_fit(llama(), 24 * GIB, 1, Workload(kv_cache_memory_bytes=10 * GIB))
    assert not fit.fits
    assert (fit.longest_context, fit.kv_tokens) == (0, 0)


def test_weights_larger_than_memory() -> None:
    fit = estimate_fit(llama(), 10 * GIB)
    assert fit.kv_bytes < 0
    assert (fit.fits, fit.longest_context, fit.kv_tokens) == (False, 0, 0)


@pytest.mark.parametrize(
    ("config", "share"),
    [
        (None, 1.0),
        ({"quant_method": "fp8"}, 0.57),
        ({"quant_method": "awq", "bits": 4}, 0.36),
    ],
)
def test_quantised_layers_take_their_bits(config: dict[str, Any] | None, share: float) -> None:
    size = weight_bytes(llama(quantization_config=config))
    assert size == pytest.approx(share * weight_bytes(llama()), rel=0.02)


def test_the_checkpoints_size_counts_where_parameters_are_a_guess() -> None:
    known, guessed = llama(), replace(llama(), parameters_exact=False)

    def weights(shape: ModelShape, size: int = 1, **work: Any) -> int:
        return estimate_fit(shape, 80 * GIB, size, Workload(**work)).weight_bytes

    assert weights(guessed, checkpoint_bytes=1001) == 1001
    assert weights(guessed, 2, checkpoint_bytes=1001) == 501
    assert weights(guessed) == weights(known)
    assert weights(known, checkpoint_bytes=1001) == weights(known)
    # In another dtype than the checkpoint's its size says nothing.
    assert weights(guessed, checkpoint_bytes=1001, dtype="float32") == weights(
        known, dtype="float32"
    )
    online = Quantization("fp8", Numbers.FP8, Scales.CHANNEL, online=True)
    shape = replace(guessed, quantization=online)
    assert weights(shape, checkpoint_bytes=1001) == weights(shape)


def test_dtype_changes_weights_and_kv() -> None:
    half, full = (estimate_fit(llama(), 80 * GIB, 1, Workload(dtype=d)) for d in (None, "float32"))
    assert full.weight_bytes == 2 * half.weight_bytes
    assert full.kv_bytes_per_token == 2 * half.kv_bytes_per_token


def test_the_reserve_grows_with_a_step() -> None:
    shape = llama()
    small = Workload(max_num_batched_tokens=512, max_num_seqs=8)
    assert CONTEXT_BYTES < reserve_bytes(shape, 1, small) < reserve_bytes(shape, 1, Workload())


def test_graphs_hold_a_step_again_and_ranks_have_collectives_instead() -> None:
    shape = llama()
    step = reserve_bytes(shape, 2, Workload()) - CONTEXT_BYTES - COLLECTIVE_BYTES
    alone = reserve_bytes(shape, 1, Workload()) - CONTEXT_BYTES - GRAPH_BYTES
    # Two ranks halve the step's inner width, not its residual stream and logits.
    assert step < alone / 2 < 2 * step


@given(
    memory=st.integers(1, 300).map(lambda n: n * GIB),
    tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
    window=st.none() | st.integers(1, 10_000),
    wanted=st.none() | st.integers(1, 131072),
)
def test_more_memory_never_fits_less(
    memory: int, tp: int, window: int | None, wanted: int | None
) -> None:
    shape = replace(llama(), layer_windows=(None, window) * 16)
    work = Workload(max_model_len=wanted)
    less, more = (estimate_fit(shape, m, tp, work) for m in (memory, memory + GIB))
    assert less.longest_context <= more.longest_context
    assert less.max_concurrency <= more.max_concurrency
    assert less.fits <= more.fits
    assert less.fits == (less.longest_context >= (wanted or 1))
