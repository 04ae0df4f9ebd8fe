"""Type of the KV cache of a loaded model: the one place where --kv-cache-dtype meets torch."""

from __future__ import annotations

import torch

from kvasir.models.config_error import ConfigError
from kvasir.models.kv_cache_dtype import FP8_KV, resolve_kv_cache_dtype
from kvasir_engine.loader.load_model import LoadedModel
from kvasir_engine.settings import EngineSettings, SettingsError


def cache_dtype_name(settings: EngineSettings, loaded: LoadedModel) -> str:
    """Return the resolved --kv-cache-dtype: FP8_KV, or the model's type. Raises SettingsError."""
    device = loaded.device
    capable = device.type == "cuda" and torch.version.hip is None
    capability = torch.cuda.get_device_capability(device) if capable else None
    asked = settings.cache.kv_cache_dtype
    dtype = str(loaded.dtype).removeprefix("torch.")
    try:
        return resolve_kv_cache_dtype(asked, loaded.shape.quantization, dtype, capability)
    except ConfigError as error:
        raise SettingsError(f"{error}.") from None


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type of the name of a group's `dtype`."""
    found: torch.dtype = torch.float8_e4m3fn if name == FP8_KV else getattr(torch, name)
    return found
