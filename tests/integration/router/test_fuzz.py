"""Broken, hostile and random HTTP never ends a worker: e2e/http_fuzz.py, for a short and a long
while."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "e2e" / "http_fuzz.py"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_router_survives_any_http(seconds: int) -> None:
    made = subprocess.run(
        [sys.executable, str(SCRIPT), "--seconds", str(seconds)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "the router is well" in made.stdout
