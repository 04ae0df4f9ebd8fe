"""Kinds of GPUs, the key of measured tables: capability, multiprocessors, memory bandwidth."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_NAME = re.compile(r"(\d+)\.(\d+)-(\d+)sm-(\d+)gbs")

SAME_PRODUCT = 0.05
"""Most that cards of one product differ: H200s tell of 4,810 and of 4,920 GB/s."""


@dataclass(frozen=True, slots=True)
class GpuKind:
    """Kind of GPU, whichever product it is sold as; `str` gives the form that file names have."""

    major: int
    minor: int
    multiprocessors: int
    bandwidth: int
    """Nominal GB/s of its memory; 0 = not known."""

    def __str__(self) -> str:
        """Return the form that `parsed` reads."""
        return f"{self.major}.{self.minor}-{self.multiprocessors}sm-{self.bandwidth}gbs"

    def distance(self, other: GpuKind) -> float | None:
        """Return how unlike the two are, 0 for the same; None where what is measured on one says
        nothing of the other, as with another compute capability."""
        if (self.major, self.minor) != (other.major, other.minor):
            return None
        size = abs(math.log(self.multiprocessors / other.multiprocessors))
        if 0 in (self.bandwidth, other.bandwidth):
            return size
        return size + abs(math.log(self.bandwidth / other.bandwidth))

    def is_like(self, other: GpuKind | None) -> bool:
        """True if the two differ by no more than cards that are sold as one product."""
        away = None if other is None else self.distance(other)
        return away is not None and away <= SAME_PRODUCT


def gpu_kind(device: torch.device) -> GpuKind:
    """Return the kind of the GPU `device`."""
    properties: Any = torch.cuda.get_device_properties(device)
    # kHz and bits; a transfer at both edges of the clock. Not every build of torch tells.
    clock = getattr(properties, "memory_clock_rate", 0)
    width = getattr(properties, "memory_bus_width", 0)
    bandwidth = round(2 * clock * width / 8e6 / 10) * 10
    return GpuKind(properties.major, properties.minor, properties.multi_processor_count, bandwidth)


def parsed(name: str) -> GpuKind | None:
    """Return the kind of GPU that a file's name holds, None where it holds none."""
    found = _NAME.search(name)
    return None if found is None else GpuKind(*map(int, found.groups()))


def nearest(files: Iterable[Path], kind: GpuKind) -> Path | None:
    """Return the file of the kind most like `kind`; None where all are of other capabilities."""
    ranked = []
    for file in sorted(files):
        of = parsed(file.name)
        distance = None if of is None else kind.distance(of)
        if distance is not None:
            ranked.append((distance, file))
    return min(ranked)[1] if ranked else None
