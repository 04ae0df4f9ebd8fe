"""The shipped model's folder; and benchmarks/, which is not installed, made importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def tiny() -> Path:
    return ROOT / "engine" / "kvasir_engine" / "assets" / "tiny"
