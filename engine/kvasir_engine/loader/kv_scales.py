"""Scales of a float8 KV cache that a checkpoint has: a number for each layer's keys and values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from kvasir_engine.kv.cache_spec import KVScales
from kvasir_engine.loader.checkpoint import Checkpoint
from kvasir_engine.loader.load_error import ModelLoadError

_SCALE = re.compile(r"\.(\d+)\.\w*attn\.(?:\w+\.)*([kv])_scale$")
"""`model.layers.0.self_attn.k_scale` (llm-compressor, AutoFP8), `...self_attn.k_proj.k_scale`
(ModelOpt)."""


def read_kv_scales(model_dir: Path, layers: int) -> list[KVScales] | None:
    """Return the scales of each of `layers` layers; None where the checkpoint has none.

    Scales of single heads are replaced by the largest, which every head's numbers fit. Raises
    ModelLoadError when some are missing or not positive.
    """
    found = dict(_scales(Checkpoint(model_dir)))
    if not found:
        return None
    missing = [
        (layer, kind) for layer in range(layers) for kind in "kv" if (layer, kind) not in found
    ]
    if missing:
        layer, kind = missing[0]
        raise ModelLoadError(
            f"{model_dir} has scales of a float8 KV cache, but no {kind}_scale of layer {layer};"
            f" the download is incomplete, or take --kv-cache-dtype of the model's own type"
        )
    return [KVScales(found[layer, "k"], found[layer, "v"]) for layer in range(layers)]


def _scales(checkpoint: Checkpoint) -> Iterator[tuple[tuple[int, str], float]]:
    """Yield layer and kind, "k" or "v", with the scale."""
    for name, tensor in checkpoint.tensors.items():
        match = _SCALE.search(name)
        if match is None:
            continue
        try:
            with safe_open(tensor.file, framework="pt") as tensors:
                scale = float(tensors.get_tensor(tensor.name).float().max())
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(
                f"{tensor.file} cannot be read ({error}); download it again"
            ) from error
        if not 0.0 < scale < float("inf"):
            raise ModelLoadError(
                f"weight {name} is {scale} where a scale is a positive number; the checkpoint is"
                f" damaged"
            )
        yield (int(match[1]), match[2]), scale
