"""Image archives of one layer, written without any tool (the docker-archive format)."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any


def write(path: Path, reference: str, files: dict[str, Path], config: dict[str, Any]) -> None:
    """An image with executable `files` (name in the image -> file here)."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, source in files.items():
            content = source.read_bytes()
            tar.addfile(_entry(name, len(content), 0o755), io.BytesIO(content))
    data = layer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    description = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [
        {"Config": "config.json", "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}
    ]
    parts = {
        f"{digest}/layer.tar": data,
        "config.json": json.dumps(description).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for name, content in parts.items():
            tar.addfile(_entry(name, len(content), 0o644), io.BytesIO(content))


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry
