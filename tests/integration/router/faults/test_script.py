"""e2e/router_faults.py, those faults that no other test has and that take little time."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "e2e" / "router_faults.py"
FAULTS = (
    *("poison", "status_500", "half_a_body", "bad_framing", "garbage_events", "slow_engine"),
    *("large_bodies", "bad_requests", "lying", "restarted"),
)


@pytest.mark.slow
def test_no_request_is_lost() -> None:
    made = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--only", *FAULTS], capture_output=True, text=True
    )
    print(made.stdout)
    assert made.returncode == 0, made.stdout + made.stderr
