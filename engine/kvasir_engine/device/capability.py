"""Device capability: which GPUs the Triton kernels support, and what to do with the others."""

from __future__ import annotations

from functools import cache

import torch

from kvasir_engine.settings import KernelChoice

MIN_CAPABILITY = (8, 0)
"""Compute capability from which the Triton kernels are used: bf16 tensor cores."""
FP8_CAPABILITY = (8, 9)
"""Compute capability from which tensor cores multiply float8."""

_choice: KernelChoice = "auto"


def choose_kernels(choice: KernelChoice) -> None:
    """Have this process run torch's own operations alone ("torch"), or kernels where they run."""
    global _choice
    _choice = choice


def kernels_run_on(device: torch.device) -> bool:
    """Return True for a GPU that the kernels are made for, unless torch's own were chosen."""
    return _choice == "auto" and _supports(device)


def supports_hopper(device: torch.device) -> bool:
    """Return True for GPUs with Hopper's own instructions: compute capability 9.0 and no other."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) == (9, 0)
    )


def unsupported_gpu(device: torch.device) -> str | None:
    """Return why no kernels run on `device` and the remedy, a sentence; None for a CPU and for a
    GPU on which they run, or on which torch's own operations were chosen and run."""
    if device.type != "cuda" or kernels_run_on(device):
        return None
    name, remedy = torch.cuda.get_device_name(device), "--device cpu"
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < _torch_capability():
        return (
            f"{name} has compute capability {_dotted(capability)}, for which torch "
            f"{torch.__version__} has no code; use {remedy}, or a build of torch that has."
        )
    if _choice == "torch":
        return None
    remedy = f"--kernels torch, which is several times slower, or {remedy}"
    if torch.version.hip is not None:
        return f"{name} is an AMD GPU, and the kernels are for NVIDIA's; use {remedy}."
    return (
        f"{name} has compute capability {_dotted(capability)}, and the kernels need "
        f"{_dotted(MIN_CAPABILITY)} or higher; use {remedy}."
    )


def unsupported_dtype(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why `device` cannot compute in `dtype`, a sentence, or None where it can."""
    if dtype != torch.bfloat16 or device.type != "cuda" or torch.version.hip is not None:
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability >= MIN_CAPABILITY:
        return None
    return (
        f"{torch.cuda.get_device_name(device)} has compute capability {_dotted(capability)} and no "
        "bfloat16; use --dtype float16 or --dtype float32."
    )


def unsupported_fp8(device: torch.device) -> str | None:
    """Return why `device` cannot multiply numbers in float8, a sentence, or None where it can."""
    if device.type != "cuda" or not kernels_run_on(device):
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability >= FP8_CAPABILITY:
        return None
    return (
        f"{torch.cuda.get_device_name(device)} has compute capability {_dotted(capability)}, and"
        f" float8 weights need {_dotted(FP8_CAPABILITY)} or higher; use weights that are not"
        f" quantised, or --kernels torch, which is several times slower."
    )


@cache
def _supports(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
    )


def _torch_capability() -> tuple[int, int]:
    """Return the lowest compute capability that this build of torch has code for."""
    codes = [arch.partition("_")[2].rstrip("af") for arch in torch.cuda.get_arch_list()]
    return min(((int(code[:-1]), int(code[-1])) for code in codes), default=(0, 0))


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
