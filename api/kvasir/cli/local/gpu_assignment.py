"""The GPUs of this machine, and which replica gets which."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping


class GPUShortageError(ValueError):
    """The deployments need more GPUs than there are; the message says how many of each."""


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Identifiers of the GPUs this process may use, as CUDA_VISIBLE_DEVICES takes them."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return found.stdout.split()


def assign_gpus(needs: list[int], available: list[str]) -> Iterator[list[str]]:
    """Different GPUs for each replica, in order. Raises GPUShortageError."""
    if sum(needs) > len(available):
        raise GPUShortageError(
            f"the file asks for {sum(needs)} GPUs in all but this machine has {len(available)};"
            " lower spec.replicas or nvidia.com/gpu"
        )
    rest = iter(available)
    for need in needs:
        yield [next(rest) for _ in range(need)]
