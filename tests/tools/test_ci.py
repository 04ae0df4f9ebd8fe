"""Stages that run before a change lands: .ci/run says how long each took and which one failed; the
hooks of a commit are commands of `make lint`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).parents[2]
STAGES = [
    "install",
    "lint",
    "docs",
    "readme",
    "packages",
    "cluster",
    "test",
    "clients",
    "versions",
    "faults",
    "attacks",
    "e2e",
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with .ci/run and, for make, a program that notes its target and fails where
    FAILS says so."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(TOP / ".ci" / "run", tmp_path / ".ci" / "run")
    make = tmp_path / "bin" / "make"
    packages = tmp_path / "e2e" / "cluster" / "packages.sh"
    for program in (make, packages):
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\necho "$2" >> made\n[ "$2" != "$FAILS" ] || exit 3\n')
        program.chmod(0o755)
    return tmp_path


def run(checkout: Path, fails: str = "none") -> tuple[int, list[str]]:
    """The exit status, and the lines of the table with digits as N."""
    done = subprocess.run(
        [checkout / ".ci" / "run"],
        env={**os.environ, "PATH": f"{checkout}/bin:{os.environ['PATH']}", "FAILS": fails},
        capture_output=True,
        text=True,
        check=False,
    )
    table = done.stdout.partition("== stages\n")[2].splitlines()
    return done.returncode, [re.sub(r" +\d+ s", " N s", line) for line in table]


def test_every_stage_and_its_time(checkout: Path) -> None:
    assert run(checkout) == (0, [f"{name} N s" for name in (*STAGES, "total")])


def test_a_stage_that_fails_ends_it_and_is_named(checkout: Path) -> None:
    status, table = run(checkout, fails="test")
    assert status == 3
    assert table == [
        *(f"{name} N s" for name in STAGES[: STAGES.index("test")]),
        "test N s  FAILED",
        "total N s",
    ]
    made = (checkout / "made").read_text().split()
    assert made.count("test") == 1, "no second try"
    assert made[-1] == "test", "what follows does not run"


def test_the_hooks_of_a_commit_are_commands_of_make_lint() -> None:
    [repository] = yaml.safe_load((TOP / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"].replace(" --force-exclude", "") for hook in repository["hooks"]]
    printed = subprocess.run(
        ["make", "-n", "lint"], cwd=TOP, check=True, capture_output=True, text=True
    ).stdout
    assert hooks
    assert set(hooks) <= {line.removesuffix(" .") for line in printed.splitlines()}
