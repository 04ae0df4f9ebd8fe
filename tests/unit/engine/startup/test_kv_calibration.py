"""Scales of a float8 KV cache of a model that runs on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kvasir_engine.kv.cache_spec import KVScales
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.runner.torch_runner import TorchRunner
from kvasir_engine.settings import make_settings
from kvasir_engine.startup import kv_calibration
from kvasir_engine.startup.kv_calibration import found_scales, set_kv_scales
from kvasir_engine.startup.torch_build import build_torch_runner

TINY = resolve_model("builtin://kvasir-tiny")
SETTINGS = make_settings(
    str(TINY), device="cpu", max_num_seqs=8, num_blocks=60, kv_cache_dtype="fp8"
)


@pytest.fixture(scope="module")
def runner() -> TorchRunner:
    made = build_torch_runner(SETTINGS, TINY).runner
    assert isinstance(made, TorchRunner)
    return made


def test_scales_leave_room_for_numbers_twice_to_four_times_as_large(runner: TorchRunner) -> None:
    scales = found_scales(runner, SETTINGS, 60)
    assert len(scales) == len(runner.caches)
    runner.use_kv_scales([KVScales()] * len(scales))
    # The caches hold what the first look wrote, at a scale of 1.
    for cache, pair in zip(runner.caches, scales, strict=True):
        for part, scale in zip(cache, pair, strict=True):
            largest = part.float().abs().max().item()
            assert 0 < largest < 448
            assert 2 * largest <= 448 * scale < 4 * largest
            assert math.log2(scale).is_integer()


def test_numbers_beyond_float8_are_looked_at_again(runner: TorchRunner) -> None:
    model: Any = runner.model
    weight = model.get_parameter("model.layers.0.self_attn.qkv_proj.weight")
    before = weight.data.clone()
    weight.data.mul_(1e4)
    try:
        scale = found_scales(runner, SETTINGS, 60)[0].value
    finally:
        weight.data.copy_(before)
    assert scale > 1.0


def test_too_few_blocks_leave_numbers_as_they_are(runner: TorchRunner) -> None:
    assert set(found_scales(runner, SETTINGS, 2)) == {KVScales()}


def test_a_checkpoints_scales_are_taken(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [KVScales(0.5, 0.25)] * len(runner.caches)
    monkeypatch.setattr(kv_calibration, "read_kv_scales", lambda directory, layers: stored)
    taken = []
    monkeypatch.setattr(runner, "use_kv_scales", taken.append)
    set_kv_scales(runner, SETTINGS, TINY, [60])
    assert taken == [stored]


def test_a_cache_of_the_models_type_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(str(TINY), device="cpu", max_num_seqs=8, num_blocks=60)
    plain = build_torch_runner(settings, TINY).runner
    assert isinstance(plain, TorchRunner)
    assert plain.caches[0].dtype == torch.float32
    assert plain._context.kv_scales == ()
