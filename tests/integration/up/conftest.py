"""A stand-in for the engine and the router: real processes that speak HTTP.

The supervisor's own behaviour (order, restarts, no process left) is tested without a model to load.
The stand-in takes the place of both by the entry points that the CLI finds commands through.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models.standin import API, ENTRY_POINTS, STANDIN, Standin
from support.web_server import free_port  # noqa: F401


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[Standin]:
    site = tmp_path / "site"
    metadata = site / "kvasir-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvasir\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "standin.py").write_text(STANDIN)
    environ = {**os.environ, "PYTHONPATH": f"{site}:{API}", "XDG_STATE_HOME": str(tmp_path)}
    found = Standin({k: v for k, v in environ.items() if k != "OMP_NUM_THREADS"})
    yield found
    for pid in found.processes():
        os.kill(pid, 9)
