"""Kernels compiled in a process without Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def compiled_elsewhere(tmp_path: Path) -> Callable[..., str]:
    """compiled_elsewhere(program, *arguments): what that Python program prints."""

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
