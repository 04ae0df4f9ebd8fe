"""Directories that the harness reads and writes."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
SOURCES = REPOSITORY / "e2e" / "cluster"


def cache() -> Path:
    """Return the directory of what outlives a cluster and a checkout: binaries, images, image
    stores."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvasir" / "cluster"


def run_directory() -> Path:
    """Return the directory of the cluster that is up; removed when it goes down.

    It lies beside the caches, because nodes get their images as hard links.
    """
    return cache() / "run"
