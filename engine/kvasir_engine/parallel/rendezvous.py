"""Rendezvous of the ranks of one machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._C._distributed_c10d import FileStore

from kvasir_engine.device.collectives import all_reduce, init_tensor_parallel
from kvasir_engine.settings import SettingsError

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def check_devices(size: int, device: torch.device) -> None:
    """Raise SettingsError when there are fewer GPUs than ranks."""
    if device.type == "cuda" and torch.cuda.device_count() < size:
        raise SettingsError(
            f"--tensor-parallel-size {size} needs {size} GPUs, but {torch.cuda.device_count()} "
            "can be seen; lower it, or name more in CUDA_VISIBLE_DEVICES."
        )


def meet(rank: int, size: int, *, store: Path, device: torch.device) -> None:
    """Join the group of `size` processes that share the file `store`; waits for all of them.

    gloo on a CPU; NCCL on CUDA, where rank r takes device r as its current one.
    """
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(rank)
        backend = "nccl"
    with _over_loopback():
        init_tensor_parallel(rank, size, backend=backend, store=FileStore(str(store), size))
        # Connections are made at a group's first collective.
        all_reduce(torch.zeros(1, device=device))


@contextmanager
def _over_loopback() -> Iterator[None]:
    """Both libraries open sockets without authentication: nobody outside may reach them."""
    added = [name for name in _INTERFACES if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "lo"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
