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
FIRST = ["install", "packages", "cluster", "lint", "docs", "readme"]
SECOND = ["versions", "clients", "images"]
STAGES = [*FIRST, "test", *SECOND, "faults", "attacks", "e2e"]
"""In the order of the table: stages that run beside others stand behind them."""

MAKE = """#!/bin/sh
echo "output of $2"
echo "begin $2" >> made
[ "$2" != "$HANGS" ] || { echo $$ > hanging; exec sleep 1000; }
# What fails does so beside what hangs.
until [ "$2" != "$FAILS" ] || [ "$HANGS" = none ] || [ -s hanging ]; do sleep 0.02; done
[ "$2" != "$FAILS" ] || exit 3
echo "end $2" >> made
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with .ci/run and, for make, a program that notes when its target begins and ends;
    FAILS and HANGS name a target that does not end well, and one that does not end."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(TOP / ".ci" / "run", tmp_path / ".ci" / "run")
    make = tmp_path / "bin" / "make"
    packages = tmp_path / "e2e" / "cluster" / "packages.sh"
    for program in (make, packages):
        program.parent.mkdir(parents=True)
        program.write_text(MAKE)
        program.chmod(0o755)
    return tmp_path


def run(checkout: Path, fails: str = "none", hangs: str = "none") -> tuple[int, list[str], str]:
    """The exit status, the lines of the table with digits as N, and what was printed before it."""
    path = f"{checkout}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        [checkout / ".ci" / "run"],
        env={**os.environ, "PATH": path, "FAILS": fails, "HANGS": hangs},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    printed, _, table = done.stdout.partition("== stages\n")
    return (
        done.returncode,
        [re.sub(r" +\d+ s", " N s", each) for each in table.splitlines()],
        printed,
    )


def begun(checkout: Path) -> list[str]:
    """The targets that were begun, in their order."""
    made = (checkout / "made").read_text().splitlines()
    return [line.removeprefix("begin ") for line in made if line.startswith("begin ")]


def test_every_stage_and_its_time(checkout: Path) -> None:
    status, table, printed = run(checkout)
    assert (status, table) == (0, [f"{name} N s" for name in (*STAGES, "total")])
    for name in STAGES:
        assert printed.count(f"\n== {name}\n") == 1
    for target in begun(checkout):
        assert printed.count(f"output of {target}\n") == 1


def test_a_stage_that_fails_ends_it_and_is_named(checkout: Path) -> None:
    status, table, _ = run(checkout, fails="test")
    assert status == 3
    assert table == [
        *(f"{name} N s" for name in STAGES[: STAGES.index("test")]),
        "test N s  FAILED",
        "total N s",
    ]
    assert begun(checkout).count("test") == 1, "no second try"
    assert begun(checkout)[-1] == "test", "what follows does not run"


@pytest.mark.parametrize(("fails", "next_one"), [("lint", "docs"), ("clients", "cluster-images")])
def test_so_does_one_beside_others(checkout: Path, fails: str, next_one: str) -> None:
    status, table, printed = run(checkout, fails=fails)
    assert status == 3
    assert f"{fails} N s  FAILED" in table
    assert sum("FAILED" in line for line in table) == 1
    assert f"output of {fails}\n" in printed
    assert not {next_one, "faults"} & set(begun(checkout))


def test_what_runs_beside_a_stage_that_fails_is_ended(checkout: Path) -> None:
    status, table, printed = run(checkout, fails="cluster-build", hangs="docs")
    assert status == 3
    assert table == [
        *(f"{name} N s" for name in ("install", "packages")),
        "cluster N s  FAILED",
        "lint N s",
        "docs N s  stopped",
        "total N s",
    ]
    assert "output of docs\n" in printed
    assert not Path("/proc", (checkout / "hanging").read_text().strip()).exists()


def test_what_judges_times_has_the_machine_for_itself(checkout: Path) -> None:
    run(checkout)
    made = (checkout / "made").read_text().splitlines()
    alone = [f"{what} {name}" for name in ("faults", "attacks", "e2e") for what in ("begin", "end")]
    assert made[-6:] == alone


def test_the_hooks_of_a_commit_are_commands_of_make_lint() -> None:
    [repository] = yaml.safe_load((TOP / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"].replace(" --force-exclude", "") for hook in repository["hooks"]]
    printed = subprocess.run(
        ["make", "-n", "lint"], cwd=TOP, check=True, capture_output=True, text=True
    ).stdout
    assert hooks
    assert set(hooks) <= {line.removesuffix(" .") for line in printed.splitlines()}
