"""Programs for a GPU that is not there, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BEGIN = """
import json, sys
sys.path.insert(0, {here!r})
from absent_gpu import pretend
device = pretend()
"""


@pytest.fixture
def without_gpu(tmp_path: Path) -> Callable[..., Any]:
    """without_gpu(program, *arguments): the JSON of its last line. Triton compiles, into a cache of
    the test's own."""

    begin = BEGIN.format(here=str(HERE))

    def run(program: str, *arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", begin + program, *arguments],
            capture_output=True,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "TRITON_CACHE_DIR": str(tmp_path / "triton"),
                "PYTHONPATH": ":".join(sys.path),
            },
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
