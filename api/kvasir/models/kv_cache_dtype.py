"""Type that keys and values are stored in: the one choice that engine, fit and plan share."""

from __future__ import annotations

from kvasir.engine_values import KVCacheDtype
from kvasir.models.config_error import ConfigError
from kvasir.models.quantization import Numbers, Quantization

FP8_KV = "fp8"
"""Resolved name of float8 e4m3, a byte a value."""
FP8_KV_CAPABILITY = (8, 9)
"""Compute capability from which a GPU converts to and from float8."""


def resolve_kv_cache_dtype(
    asked: KVCacheDtype,
    quantization: Quantization | None,
    dtype: str,
    capability: tuple[int, int] | None,
) -> str:
    """Return the type of a KV cache: FP8_KV, or `dtype`, the one that the model computes in.

    "auto" is float8 where the checkpoint has KV scales and the GPU can, as in vLLM. `capability`
    is the GPU's; None stands for a CPU and for a GPU that is not known, where auto is `dtype`.
    Raises ConfigError where float8 is asked of a GPU that cannot.
    """
    if asked == "auto":
        scaled = quantization is not None and quantization.kv_cache is Numbers.FP8
        able = capability is not None and capability >= FP8_KV_CAPABILITY
        return FP8_KV if scaled and able else dtype
    if capability is not None and capability < FP8_KV_CAPABILITY:
        raise ConfigError(
            f"a KV cache in fp8 needs a GPU of compute capability {_dotted(FP8_KV_CAPABILITY)} or"
            f" higher, and this one has {_dotted(capability)}; take auto"
        )
    return FP8_KV


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
