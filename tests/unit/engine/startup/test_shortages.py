"""What a start with too little memory says: flags, their values, and values that would do."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.settings import EngineSettings, make_settings
from kvasir_engine.startup import shortages

GIB = 1 << 30


def settings(**flags: Any) -> EngineSettings:
    options = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.75}
    return make_settings("m", **{**options, **flags})


@pytest.mark.parametrize(
    ("missing", "share"), [(0, 0.58), (1, 0.59), (4, 0.62), (42, 1.0), (43, None)]
)
def test_a_share_is_rounded_up_to_hundredths(missing: int, share: float | None) -> None:
    assert shortages.share_that_fits(0.58, missing * GIB, 100 * GIB) == share
    if missing:
        assert shortages.share_that_fits(0.58, missing * GIB - 1, 100 * GIB) == share


def test_no_memory_for_the_cache_names_every_part_and_a_share() -> None:
    taken = {"weights and buffers": 17 * GIB, "the largest step": 45 * GIB}
    said = str(shortages.no_kv_memory(settings(), 4 * GIB, 80 * GIB, taken))
    assert said == (
        "--gpu-memory-utilization 0.75 allows 60.0 GiB of 80.0 GiB, which leaves no memory for the"
        " KV cache (weights and buffers 17.0 GiB, the largest step 45.0 GiB); raise it to 0.80."
    )


@pytest.mark.parametrize("eager", [False, True])
def test_where_no_share_is_enough_other_flags_are_named(eager: bool) -> None:
    said = str(
        shortages.no_kv_memory(settings(enforce_eager=eager), 40 * GIB, 80 * GIB, {"weights": 1})
    )
    assert "no share is enough" in said
    for flag in (
        "--max-num-batched-tokens (8192)",
        "--max-num-seqs (256)",
        "--tensor-parallel-size (1)",
    ):
        assert flag in said
    assert ("--enforce-eager" in said) is not eager


@pytest.mark.parametrize(
    ("flags", "total", "remedy"),
    [
        ({}, 80 * GIB, "lower --max-model-len to 160, or raise --gpu-memory-utilization 0.75 to"),
        ({"gpu_memory_utilization": 1.0}, 80 * GIB, "lower --max-model-len to 160."),
        (
            {"kv_cache_memory_bytes": 1024},
            80 * GIB,
            f"160, or raise --kv-cache-memory-bytes 1024 to {2 * GIB}.",
        ),
        ({}, None, f"160, or raise --kv-cache-memory-bytes to {2 * GIB}."),
    ],
)
def test_a_context_that_is_too_long_names_what_fits(
    flags: dict[str, Any], total: int | None, remedy: str
) -> None:
    given = settings(max_model_len=200, **flags)
    said = str(shortages.short_context(given, 200, 160, (GIB, 2 * GIB), total))
    assert said.startswith("--max-model-len 200: ")
    assert remedy in said


def test_a_useless_length_is_not_suggested() -> None:
    said = str(shortages.short_context(settings(), 200, 16, (GIB, 2 * GIB), 80 * GIB))
    assert said.endswith("holds 16; raise --gpu-memory-utilization 0.75 to 0.77.")
    said = str(shortages.short_context(settings(), 200, 16, (GIB, 40 * GIB), 80 * GIB))
    assert said.endswith("holds 16; raise --tensor-parallel-size (1).")


@pytest.mark.parametrize(
    ("free", "remedy"),
    [
        (8 * GIB, "8.0 GiB free; lower --max-num-seqs to 128, or --max-model-len (2048)."),
        (None, "less free; lower --max-num-seqs, or --max-model-len (2048)."),
        (0, "0.0 GiB free; lower --max-num-seqs, or --max-model-len (2048)."),
    ],
)
def test_rows_that_fit_are_named(free: int | None, remedy: str) -> None:
    said = str(shortages.too_many_rows(settings(), 2048, 16 * GIB, "cuda:0", free))
    assert said.startswith("--max-num-seqs 256: ")
    assert remedy in said


def test_a_cache_that_was_asked_for_names_what_is_free() -> None:
    given = settings(kv_cache_memory_bytes=99 * GIB)
    said = str(shortages.too_many_blocks(given, 2048, 99 * GIB, "cuda:0", 8 * GIB))
    assert said.startswith(f"--kv-cache-memory-bytes {99 * GIB}: ")
    assert f"lower --kv-cache-memory-bytes to {8 * GIB} at most" in said
    assert "has 8.0 GiB for it" in said
    assert "--max-num-seqs (256) or --max-model-len (2048)" in said


@pytest.mark.parametrize(("left", "has"), [(None, "less free"), (-1, "0.0 GiB for it")])
def test_a_size_that_cannot_be_is_not_suggested(left: int | None, has: str) -> None:
    said = str(shortages.too_many_blocks(settings(), 2048, 99 * GIB, "cuda:0", left))
    assert said.startswith("--kv-cache-memory-bytes: ")
    assert f"has {has}; lower --kv-cache-memory-bytes, or" in said


@pytest.mark.parametrize(
    ("tokens", "remedy"),
    [
        (8192, "lower --max-num-batched-tokens to 4096,"),
        (300, "lower --max-num-batched-tokens to 256,"),
        (256, "lower --max-num-seqs (256) and --max-num-batched-tokens,"),
    ],
)
def test_half_a_step_is_suggested_and_never_less_than_all_rows(tokens: int, remedy: str) -> None:
    given = settings(max_num_batched_tokens=tokens)
    said = str(shortages.too_large_a_step(given, "cuda:0", GIB))
    assert said.startswith(f"--max-num-batched-tokens {tokens}: ")
    assert remedy in said
