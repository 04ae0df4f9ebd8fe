"""First lines of docstrings stand alone: none begins as if it went on from the name above it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "benchmarks", "e2e", "engine", "operator", "router", "scripts")
CONTINUES = re.compile(r"(?:How|Of|What|Where|Whether|Who|Why)\b")


def continuing(source: str) -> list[tuple[int, str]]:
    """Return line and first line of each docstring that does not stand alone.

    A docstring is any statement that is a string: a module's, a class's, a function's, an
    attribute's.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if CONTINUES.match(text.strip()):
                found.append((node.lineno, text.strip().split("\n")[0]))
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, list[tuple[int, str]]]:
    """Continuing docstrings of each file that git lists."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *(f"{folder}/*.py" for folder in FOLDERS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {name.split("/")[0] for name in listed} == set(FOLDERS), "git lists the files"
    return {name: continuing((ROOT / name).read_text()) for name in listed}


@pytest.mark.parametrize(
    "source",
    [
        '"""What a module holds."""',
        'class A:\n    """Who asks."""',
        'def f():\n    """\n    Whether it runs.\n    """',
        'async def f():\n    """How many run."""',
        'A = 1\n"""Of all bytes."""',
        'class A:\n    b: int = 0\n    """Where it lies."""',
        'def f(self):\n    self.a = 1\n    """Why it ended."""',
    ],
)
def test_every_kind_of_docstring_is_seen(source: str) -> None:
    assert len(continuing(source)) == 1


def test_others_stand_alone() -> None:
    assert continuing('"""Offsets, whether or not used."""\nA = "What"\nf("Where")') == []


def test_docstrings_stand_alone(found: dict[str, list[tuple[int, str]]]) -> None:
    lines = [f"{file}:{line}: {text}" for file, each in found.items() for line, text in each]
    assert not lines, "say what it is or does, as in `Return ...`:\n" + "\n".join(lines)
