from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

API = Path(__file__).parents[4] / "api"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kvasir(tmp_path: Path) -> Run:
    """Run `kvasir ARGUMENTS` as a process, with only the shared package on its path."""

    def run(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KVASIR", "CUDA"))}
        return subprocess.run(
            [sys.executable, "-m", "kvasir", *arguments],
            env={**inherited, "PYTHONPATH": str(API), "HF_HOME": str(tmp_path), **environ},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
