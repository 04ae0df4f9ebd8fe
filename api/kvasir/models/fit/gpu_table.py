"""Memory and compute capability of known GPUs."""

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

_CAPABILITIES: dict[str, tuple[int, int]] = {
    "b200": (10, 0),
    "h200": (9, 0),
    "gh200": (9, 0),
    "h100-nvl": (9, 0),
    "h100": (9, 0),
    "a100-80": (8, 0),
    "a100-40": (8, 0),
    "rtx-pro-6000": (12, 0),
    "rtx-a6000": (8, 6),
    "l40s": (8, 9),
    "rtx-5090": (12, 0),
    "v100-32": (7, 0),
    "rtx-4090": (8, 9),
    "l4": (8, 9),
    "a10g": (8, 6),
    "t4": (7, 5),
}

_ALIASES = {"a100": "a100-80", "a10": "a10g", "4090": "rtx-4090", "5090": "rtx-5090"}


class UnknownGPUError(ValueError):
    """No such GPU in the table; the message lists those that are."""


def gpu_memory(name: str) -> int:
    """Bytes of memory of the GPU called `name`, such as "h100" or "RTX 4090".

    Raises UnknownGPUError.
    """
    return GPUS[_known(name)]


def gpu_capability(name: str) -> tuple[int, int]:
    """Compute capability of the GPU called `name`. Raises UnknownGPUError."""
    return _CAPABILITIES[_known(name)]


def _known(name: str) -> str:
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    key = _ALIASES.get(key, key)
    if key not in GPUS:
        close = get_close_matches(key, GPUS, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(GPUS)}"
        raise UnknownGPUError(f"GPU {name!r} is not known: {remedy}")
    return key
