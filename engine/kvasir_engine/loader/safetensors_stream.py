"""Read rows of safetensors straight into pinned memory, from where they go to the GPU.

A mapped file would be copied twice, page fault by page fault, by a driver that stages one copy at a
time. Each thread has two buffers and a stream of its own: while one buffer is on its way to the
device, the file is read into the other.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from kvasir_engine.layers.weights import WeightShard

BUFFER_BYTES = 16 << 20
"""Bytes of each of a thread's two buffers."""
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "U8": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Position and type of a tensor in its file."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None for a type that is not read here."""
    begin: int

    def streams(self, shard: WeightShard) -> bool:
        """Return True if `shard` is one run of the file's bytes."""
        return self.dtype is not None and shard.dim == 0 and len(self.shape) > 0


class TensorFile:
    """An open safetensors file. Raises OSError where it ends too early."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._fd = os.open(file, os.O_RDONLY)
        length = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        header = json.loads(os.pread(self._fd, length, 8))
        self.tensors = {
            name: StoredTensor(
                tuple(entry["shape"]),
                _DTYPES.get(entry["dtype"]),
                8 + length + entry["data_offsets"][0],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }

    def close(self) -> None:
        """Close the file: nothing can be read any more."""
        os.close(self._fd)

    def read(self, name: str, shard: WeightShard, buffers: PinnedBuffers) -> None:
        """Copy the shard's rows of `name`, which `StoredTensor.streams` allows, into place."""
        stored = self.tensors[name]
        dtype = stored.dtype or torch.float32
        row_bytes = math.prod(stored.shape[1:]) * dtype.itemsize
        if not row_bytes:
            return
        at_once = max(1, BUFFER_BYTES // row_bytes)
        for row in range(shard.start, shard.stop, at_once):
            rows = min(at_once, shard.stop - row)
            with buffers.next(rows * row_bytes) as memory:
                self._read_at(memory, stored.begin + row * row_bytes)
                source = memory.view(dtype).view(rows, *stored.shape[1:])
                first = row - shard.start
                shard.target[first : first + rows].copy_(source, non_blocking=True)

    def _read_at(self, memory: torch.Tensor, offset: int) -> None:
        view, done = memory.numpy().data, 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], offset + done)
            if not count:
                raise OSError(f"{self._file} ends at byte {offset + done}")
            done += count


class PinnedBuffers:
    """Two buffers of one thread, by turns; pinned when they feed a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._memory: list[torch.Tensor] = [torch.empty(0, dtype=torch.uint8)] * 2
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    @contextmanager
    def behind_copies(self) -> Iterator[None]:
        """Launch what the body launches behind the copies out of the buffers, and wait for it."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    @contextmanager
    def next(self, size: int) -> Iterator[torch.Tensor]:
        """`size` bytes that may be written; copies out of them are made in the body."""
        turn = self._turn = 1 - self._turn
        copied = self._copied[turn]
        if copied is not None:
            copied.synchronize()
        if len(self._memory[turn]) < size:
            wanted = max(size, BUFFER_BYTES)
            self._memory[turn] = torch.empty(wanted, dtype=torch.uint8, pin_memory=self._on_gpu)
        if self._stream is None:
            yield self._memory[turn][:size]
            return
        with torch.cuda.stream(self._stream):
            yield self._memory[turn][:size]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._copied[turn] = event


_local = threading.local()


def buffers_of_thread(device: torch.device) -> PinnedBuffers:
    """The calling thread's, made when they are first asked for."""
    made: dict[torch.device, PinnedBuffers] = _local.__dict__.setdefault("buffers", {})
    if device not in made:
        made[device] = PinnedBuffers(device)
    return made[device]
