"""Check that files make a model: a config, and weights that are whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.source import Selection

_INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100 << 20
"""Maximum bytes of a header in the safetensors format."""


def check_model(directory: Path, what: str, selection: Selection) -> None:
    """Raise PermanentError unless `directory` holds a config.json (an adapter's:
    adapter_config.json) and complete safetensors, or weights of another format that were asked
    for."""
    if not (directory / selection.config_file).is_file():
        kind = "a LoRA adapter of peft" if selection.adapter else "a model for transformers"
        raise PermanentError(f"{what} has no {selection.config_file}; is it {kind}?")
    weights = sorted(directory.glob("*.safetensors"))
    if not weights and not selection.include:
        raise PermanentError(
            f"{what} has no safetensors files; convert the model to safetensors, or ask for other"
            " weights with --include"
        )
    for file in weights:
        _check_safetensors(file)
    _check_index(directory, what)


def _check_safetensors(file: Path) -> None:
    """The header's offsets must end where the file does: a check that needs no hash."""
    size = file.stat().st_size
    try:
        with file.open("rb") as source:
            length = int.from_bytes(source.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
                raise ValueError("its header has no possible length")
            header = json.loads(source.read(length))
        ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError(f"its tensors end at {8 + length + max(ends, default=0)} of {size}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PermanentError(f"{file.name} is not a whole safetensors file: {error}") from error


def _check_index(directory: Path, what: str) -> None:
    index = directory / _INDEX
    if not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PermanentError(f"{what}: {_INDEX} has no weight_map") from error
    missing = sorted(str(s) for s in shards if not (directory / str(s)).is_file())
    if missing:
        raise PermanentError(f"{what} lacks {missing[0]}, which its {_INDEX} names")


def promote_root(files: Path, config_file: str = "config.json") -> None:
    """Move the model that lies in some folder of `files` to its top and remove everything else.

    Archives mostly hold a folder, images a whole file system: the model is the highest folder with
    a config.json (an adapter's `config_file`) and safetensors, else the highest with a config.json.
    """
    configs = sorted(files.rglob(config_file), key=lambda path: (len(path.parts), path))
    whole = [path for path in configs if any(path.parent.glob("*.safetensors"))]
    root = next((path.parent for path in (*whole, *configs)), files)
    if root != files:
        aside = files.with_name("root")
        shutil.rmtree(aside, ignore_errors=True)
        root.rename(aside)
        shutil.rmtree(files)
        aside.rename(files)
    for path in files.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
