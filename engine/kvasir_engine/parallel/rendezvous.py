"""Rendezvous of the ranks of one machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._C._distributed_c10d import FileStore

from kvasir_engine.device.collectives import all_reduce, init_tensor_parallel
from kvasir_engine.settings import EngineSettings, SettingsError

_ENVIRONMENT = {
    # Both libraries open sockets without authentication: nobody outside may reach them.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # Multicast over NVLink needs a fabric manager that not every host has set up for it.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
"""Variables that the libraries read while the ranks meet."""


def check_devices(size: int, device: torch.device) -> None:
    """Raise SettingsError when there are fewer GPUs than ranks."""
    if device.type == "cuda" and torch.cuda.device_count() < size:
        raise SettingsError(
            f"--tensor-parallel-size {size} needs {size} GPUs, but {torch.cuda.device_count()} "
            "can be seen; lower it, or name more in CUDA_VISIBLE_DEVICES."
        )


def meet(
    rank: int, settings: EngineSettings, *, store: Path, device: torch.device, step_bytes: int = 0
) -> None:
    """Join the group of processes that share the file `store`; waits for all of them.

    On CUDA rank r takes device r as its current one. `step_bytes` as in `init_tensor_parallel`.
    """
    size = settings.tensor_parallel_size
    if device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    with _environment():
        file = FileStore(str(store), size)
        init_tensor_parallel(
            rank,
            size,
            store=file,
            device=device,
            step_bytes=step_bytes,
            expert_parallel=settings.enable_expert_parallel,
        )
        # Connections are made at a group's first collective.
        all_reduce(torch.zeros(1, device=device))


@contextmanager
def _environment() -> Iterator[None]:
    added = [name for name in _ENVIRONMENT if name not in os.environ]
    os.environ.update({name: _ENVIRONMENT[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
