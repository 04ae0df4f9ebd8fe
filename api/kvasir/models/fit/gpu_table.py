"""Memory of known GPUs."""

from __future__ import annotations

from difflib import get_close_matches

_MIB = 2**20

GPUS: dict[str, int] = {
    "b200": 183359 * _MIB,
    "h200": 143771 * _MIB,
    "gh200": 97871 * _MIB,
    "h100-nvl": 95830 * _MIB,
    "h100": 81559 * _MIB,
    "a100-80": 81920 * _MIB,
    "a100-40": 40960 * _MIB,
    "rtx-pro-6000": 97887 * _MIB,
    "rtx-a6000": 49140 * _MIB,
    "l40s": 46068 * _MIB,
    "rtx-5090": 32607 * _MIB,
    "v100-32": 32768 * _MIB,
    "rtx-4090": 24564 * _MIB,
    "l4": 23034 * _MIB,
    "a10g": 23028 * _MIB,
    "t4": 15360 * _MIB,
}
"""Bytes that each reports as its whole memory (`nvidia-smi`, memory.total)."""

_ALIASES = {"a100": "a100-80", "a10": "a10g", "4090": "rtx-4090", "5090": "rtx-5090"}


class UnknownGPUError(ValueError):
    """No such GPU in the table; the message lists those that are."""


def gpu_memory(name: str) -> int:
    """Bytes of memory of the GPU called `name`, such as "h100" or "RTX 4090".

    Raises UnknownGPUError.
    """
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    key = _ALIASES.get(key, key)
    if key not in GPUS:
        close = get_close_matches(key, GPUS, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(GPUS)}"
        raise UnknownGPUError(f"GPU {name!r} is not known: {remedy}")
    return GPUS[key]
