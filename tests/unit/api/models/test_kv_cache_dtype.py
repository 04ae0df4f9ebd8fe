"""Which type keys and values are stored in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.engine_values import KVCacheDtype
from kvasir.models.config_error import ConfigError
from kvasir.models.kv_cache_dtype import resolve_kv_cache_dtype
from kvasir.models.quantization import Numbers, Quantization, Scales

PLAIN = Quantization("fp8", Numbers.FP8, Scales.TENSOR)
SCALED = replace(PLAIN, kv_cache=Numbers.FP8)
H100, L4, A100 = (9, 0), (8, 9), (8, 0)


@pytest.mark.parametrize(
    ("asked", "quantization", "capability", "found"),
    [
        ("auto", None, H100, "bfloat16"),
        ("auto", PLAIN, H100, "bfloat16"),
        ("auto", SCALED, H100, "fp8"),
        ("auto", SCALED, L4, "fp8"),
        ("auto", SCALED, A100, "bfloat16"),
        ("auto", SCALED, None, "bfloat16"),
        ("fp8", None, H100, "fp8"),
        ("fp8_e4m3", None, L4, "fp8"),
        ("fp8", SCALED, None, "fp8"),
    ],
)
def test_the_type_of_a_kv_cache(
    asked: KVCacheDtype,
    quantization: Quantization | None,
    capability: tuple[int, int] | None,
    found: str,
) -> None:
    assert resolve_kv_cache_dtype(asked, quantization, "bfloat16", capability) == found


@pytest.mark.parametrize("asked", ["fp8", "fp8_e4m3"])
def test_a_gpu_that_cannot_is_refused(asked: KVCacheDtype) -> None:
    with pytest.raises(ConfigError, match=r"capability 8\.9 or higher, .* has 8\.0; take auto$"):
        resolve_kv_cache_dtype(asked, SCALED, "bfloat16", A100)
