"""Devices that a plan is made for: a kind of GPU, this machine's GPU, or its CPU."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from kvasir.models.fit.gpu_table import GPUS, UnknownGPUError, gpu_capability, gpu_memory
from kvasir.quantity import parse_bytes


class DeviceError(ValueError):
    """No device to plan for is known; the message names the option and the remedy."""


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of GPU, or the CPU of this machine, and its memory."""

    name: str
    memory_bytes: int
    is_gpu: bool = True
    capability: tuple[int, int] | None = None
    """Compute capability of a GPU; None = not known."""


def named_gpu(name: str | None, memory: str | None) -> Device | None:
    """The GPU called `name`, or one with `memory`; None when neither is given.

    Raises DeviceError.
    """
    if memory is not None:
        try:
            return Device(name or memory, parse_bytes(memory), capability=_capability(name))
        except ValueError as error:
            raise DeviceError(f"--gpu-memory: {error}") from None
    if name is None:
        return None
    try:
        return Device(name.lower(), gpu_memory(name), capability=gpu_capability(name))
    except UnknownGPUError as error:
        raise DeviceError(f"--gpu: {error}; or give --gpu-memory") from None


def known_gpus() -> list[Device]:
    """Every GPU of the table."""
    return [Device(name, memory, capability=gpu_capability(name)) for name, memory in GPUS.items()]


def local_gpu() -> Device:
    """The first GPU of this machine. Raises DeviceError when there is none."""
    asked = "--query-gpu=name,memory.total,compute_cap"
    command = ["nvidia-smi", asked, "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        name, mebibytes, capability = found.stdout.splitlines()[0].rsplit(",", 2)
        return Device(name.strip(), int(mebibytes) * 2**20, capability=_numbers(capability))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        raise DeviceError(
            "this machine has no GPU; say for which to plan with --gpu NAME or --gpu-memory SIZE"
        ) from None


def _numbers(capability: str) -> tuple[int, int] | None:
    major, _, minor = capability.strip().partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _capability(name: str | None) -> tuple[int, int] | None:
    try:
        return gpu_capability(name) if name else None
    except UnknownGPUError:
        return None


def cpu() -> Device:
    """This machine's CPU with all of its memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("cpu", memory, is_gpu=False)
