"""Tests whose binary is not built."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[3] / "e2e" / "cluster"
TESTS = """
def test_with(control_plane): pass
def test_without(): pass
"""


@pytest.fixture
def run(tmp_path):
    """run(**environment): pytest over TESTS with an empty cache, its output and exit status."""
    (tmp_path / "test_it.py").write_text(TESTS)

    def start(*options: str, **environment: str) -> tuple[str, int]:
        plugins = ["-p", "harness.fixtures", "-p", "no:cacheprovider", "-o", "markers=slow"]
        outer = ("KVASIR_CLUSTER_TESTS", "PYTEST_XDIST_WORKER")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, *options],
            cwd=tmp_path,
            env={
                **{key: value for key, value in os.environ.items() if key not in outer},
                "PYTHONPATH": str(HARNESS),
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout, done.returncode

    return start


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "two processes"])
def test_they_are_left_out_and_the_last_lines_say_so(run, processes):
    output, status = run(*processes)
    assert status == 0
    assert "1 passed" in output
    assert "1 tests against a real API server were left out" in output
    assert "make cluster-build" in output


@pytest.mark.slow
def test_they_fail_where_they_are_required(run):
    output, status = run(KVASIR_CLUSTER_TESTS="required")
    assert status == 1
    assert "kube is not built: run `make cluster-build`" in output
    assert "1 passed, 1 error" in output


@pytest.mark.slow
def test_what_needs_a_control_plane_is_slow(run):
    output, status = run("-m", "not slow", KVASIR_CLUSTER_TESTS="required")
    assert status == 0
    assert "1 passed, 1 deselected" in output
