"""A directory of safetensors files, and the filling of a model's parameters from it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kvasir_engine.layers.weights import WeightShard, WeightSlot
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.safetensors_stream import TensorFile, buffers_of_thread

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TENSORS_PER_TASK = 32
_MAX_THREADS = 8
_NOT_WEIGHTS = (
    *("rotary_emb.inv_freq", "masked_bias", "attn.bias"),
    *(".k_scale", ".v_scale"),
    *(".qzeros", ".g_idx", ".weight_shape"),
)
"""Endings of constants that older checkpoints carry and that are computed here, of scales for a
quantised KV cache, and of what config.json says of 4-bit weights, too: that zero points are all
alike, the order of inputs, and shapes."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    file: Path
    name: str


class Checkpoint:
    """The tensors of a model directory, by slot name. Reads no more than headers until `fill`.

    Raises ModelLoadError when there are no safetensors, a shard is missing or a file is truncated.
    """

    def __init__(self, directory: Path, slot_name: Callable[[str], str] = str) -> None:
        self.directory = directory
        self.tensors = {
            slot_name(name): _Tensor(file, name)
            for file in _weight_files(directory)
            for name in _tensor_names(file)
        }

    def fill(self, slots: Mapping[str, WeightSlot]) -> list[str]:
        """Copy every slot's shards into place, in parallel; returns the names that no slot takes.

        Each file is read only where a shard needs it. Raises ModelLoadError when a tensor is
        missing or has another shape than the config asks for.
        """
        missing = [name for name in slots if name not in self.tensors]
        if missing:
            raise ModelLoadError(
                f"{self.directory} lacks {len(missing)} weights that its config.json asks for,"
                f" such as {', '.join(missing[:5])}; the config and the weights do not belong"
                f" together, or the download is incomplete"
            )
        by_file: dict[Path, list[str]] = {}
        for name in slots:
            by_file.setdefault(self.tensors[name].file, []).append(name)
        tasks = [
            (file, names[i : i + _TENSORS_PER_TASK])
            for file, names in by_file.items()
            for i in range(0, len(names), _TENSORS_PER_TASK)
        ]
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            for done in [pool.submit(self._fill_from, *task, slots) for task in tasks]:
                done.result()
        return [n for n in self.tensors if n not in slots and not n.endswith(_NOT_WEIGHTS)]

    def _fill_from(self, file: Path, names: list[str], slots: Mapping[str, WeightSlot]) -> None:
        try:
            with safe_open(file, framework="pt") as tensors, closing(TensorFile(file)) as stream:
                for name in names:
                    stored = self.tensors[name].name
                    _fill_slot(stored, tensors, stream, slots[name])
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, error) from error


def _fill_slot(name: str, tensors: Any, stream: TensorFile, slot: WeightSlot) -> None:
    lies = stream.tensors[name]
    # A single number may have any number of dimensions.
    if lies.shape != slot.shape and (slot.shape != (1,) or math.prod(lies.shape) != 1):
        raise ModelLoadError(
            f"weight {name} has shape {list(lies.shape)} where config.json asks for"
            f" {list(slot.shape)}; the config and the weights do not belong together"
        )
    for shard in slot.shards:
        if shard.store is None:
            _read(name, tensors, stream, shard)
            continue
        buffers = buffers_of_thread(shard.target.device)
        with buffers.behind_copies():
            dtype = lies.dtype or torch.float32
            read = torch.empty(shard.target.shape, dtype=dtype, device=shard.target.device)
        _read(name, tensors, stream, replace(shard, target=read, store=None))
        with buffers.behind_copies():
            shard.store(read)


def _read(name: str, tensors: Any, stream: TensorFile, shard: WeightShard) -> None:
    lies = stream.tensors[name]
    if shard.start == 0 and lies.shape == tuple(shard.target.shape):
        shard = replace(shard, dim=0)  # All of it, whichever dimension is divided.
    if lies.streams(shard):
        stream.read(name, shard, buffers_of_thread(shard.target.device))
        return
    source = tensors.get_slice(name)
    if math.prod(lies.shape) == 1:
        shard.target.copy_(source[:].reshape(shard.target.shape))
        return
    shard.target.copy_(source[(slice(None),) * shard.dim + (slice(shard.start, shard.stop),)])


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.is_file():
        files = [directory / name for name in _shard_names(index)]
        for file in files:
            if not file.is_file():
                raise ModelLoadError(
                    f"{directory} lacks the shard {file.name} that {INDEX} names;"
                    f" download the model again"
                )
        return files
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    files = sorted(directory.glob("*.safetensors"))
    if files:
        return files
    pickled = sorted(directory.glob("*.bin")) + sorted(directory.glob("*.pt*"))
    if pickled:
        raise ModelLoadError(
            f"{directory} has no safetensors files, only {pickled[0].name}, which is a pickle and"
            f" may run code when it is read; convert the model to safetensors"
        )
    raise ModelLoadError(
        f"{directory} has no safetensors files; download the model's weights,"
        f" or use --load-format dummy for random ones"
    )


def _shard_names(index: Path) -> list[str]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(
            f"{index} is not a safetensors index with a weight_map; download the model again"
        ) from error
    outside = [name for name in names if Path(str(name)).name != name]
    if outside:
        raise ModelLoadError(f"{index} names {outside[0]!r}, which is not a file beside it")
    return sorted(names)


def _tensor_names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> ModelLoadError:
    return ModelLoadError(
        f"{file} cannot be read as safetensors ({error}); it is truncated or damaged:"
        f" download the model again"
    )
