"""What --kv-cache-dtype makes of a loaded model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvasir.models.quantization import Numbers, Quantization, Scales
from kvasir_engine.loader.load_model import LoadedModel, load_model
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.settings import SettingsError, make_settings
from kvasir_engine.startup.cache_dtype import cache_dtype_name, torch_dtype

SCALED = Quantization("fp8", Numbers.FP8, Scales.TENSOR, kv_cache=Numbers.FP8)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(resolve_model("builtin://kvasir-tiny"))


def of_gpu(
    loaded: LoadedModel, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> LoadedModel:
    """The model with KV scales, as if on a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    shape = replace(loaded.shape, quantization=SCALED)
    return replace(loaded, shape=shape, device=torch.device("cuda"))


def test_auto_is_the_models_type_without_kv_scales(loaded: LoadedModel) -> None:
    assert cache_dtype_name(make_settings("m"), loaded) == "float32"


def test_float8_is_taken_where_the_gpu_can(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = make_settings("m", kv_cache_dtype="fp8")
    assert cache_dtype_name(asked, loaded) == "fp8"
    assert cache_dtype_name(make_settings("m"), of_gpu(loaded, (9, 0), monkeypatch)) == "fp8"
    old = of_gpu(loaded, (8, 0), monkeypatch)
    assert cache_dtype_name(make_settings("m"), old) == "float32"
    with pytest.raises(SettingsError, match=r"this one has 8\.0; take auto\.$"):
        cache_dtype_name(asked, old)


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp8", torch.float8_e4m3fn), ("bfloat16", torch.bfloat16)]
)
def test_names_are_torchs_types(name: str, dtype: torch.dtype) -> None:
    assert torch_dtype(name) is dtype
