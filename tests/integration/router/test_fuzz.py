"""Broken, hostile and random HTTP never ends a worker: e2e/http_fuzz.py for a short while.
`make faults` runs it for a minute."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "e2e" / "http_fuzz.py"


@pytest.mark.slow
def test_a_router_survives_any_http() -> None:
    made = subprocess.run(
        [sys.executable, str(SCRIPT), "--seconds", "12"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "the router is well" in made.stdout
