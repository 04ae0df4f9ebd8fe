"""docs/benchmarks.md is what benchmarks/report.py makes of the committed results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_the_page_belongs_to_the_committed_results():
    made = run(str(BENCHMARKS / "report.py"), "--check")
    assert made.returncode == 0, made.stderr


def test_results_name_machine_versions_and_every_run():
    for path in BENCHMARKS.glob("results/**/*.json"):
        content = json.loads(path.read_text())
        assert content["machine"]
        assert content["date"]
        assert content["versions"]["python"]
        assert all(figure["runs"] for figure in content["figures"])


@pytest.mark.parametrize(
    ("goal", "runs", "met"),
    [
        ("<= 3", [2.0, 3.0, 9.0], True),
        ("<= 3", [2.0, 3.1, 9.0], False),
        (">= 2", [1.0, 2.0, 2.0], True),
        (">= 2", [1.9, 1.9, 5.0], False),
    ],
)
def test_the_median_meets_the_goal_or_not(goal: str, runs: list[float], met: bool):
    code = f"from common import Figure; print(Figure('x', 'ms', {runs}, {goal!r}).met)"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    assert made.stdout.strip() == str(met)
