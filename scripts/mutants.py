"""Mutation testing: change the code in one place, and see whether one of its tests fails.

    scripts/mutants.py                     300 mutants of all subjects; saved in benchmarks/results
    scripts/mutants.py --subject claims    only these, printed

A mutant is drawn by `--seed` from all that cosmic-ray's operators can make of a subject's files;
what changes nothing but annotations or docstrings is none. It is killed when a test fails, or when
the tests run five times longer than they do without it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import Any

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator, operator_names

TOP = Path(__file__).parents[1]
sys.path.append(str(TOP / "benchmarks"))

from common import RESULTS, commit  # noqa: E402

COPIED = ("api", "engine", "router", "operator", "tests", "e2e", "charts", "images", "manifests")
EQUIVALENT = {
    f"core/ReplaceComparisonOperator_{one}_{other}"
    for one, other in (("Is", "Eq"), ("Eq", "Is"), ("IsNot", "NotEq"), ("NotEq", "IsNot"))
}
"""Operators whose changes mean the same for enums, None and small numbers."""
PATIENCE = 5
"""Times the tests' own time after which a mutant hangs."""


@dataclass(frozen=True)
class Subject:
    """Files that are mutated, and the tests that have to tell."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[Path]:
        """The files that are mutated. Raises SystemExit where a pattern names none: what has moved
        would be left out without a word."""
        found = {pattern: sorted(TOP.glob(pattern)) for pattern in (*self.files, *self.tests)}
        if absent := [pattern for pattern, paths in found.items() if not paths]:
            raise SystemExit(f"mutants: no file matches {', '.join(absent)}")
        return sorted({path for pattern in self.files for path in found[pattern]})


SUBJECTS = (
    Subject(
        "scheduler",
        ("engine/kvasir_engine/scheduler/*.py",),
        ("tests/unit/engine/scheduler",),
    ),
    Subject(
        "block pool",
        ("engine/kvasir_engine/kv/block_pool.py", "engine/kvasir_engine/kv/manager.py"),
        ("tests/unit/engine/kv", "tests/unit/engine/scheduler/test_scheduler.py"),
    ),
    Subject(
        "admission",
        ("router/kvasir_router/admission/*.py",),
        ("tests/unit/router/admission",),
    ),
    Subject(
        "request parser",
        (
            "router/kvasir_router/wire/request_parser.py",
            "router/kvasir_router/wire/http_request.py",
        ),
        (
            "tests/unit/router/wire/test_request_parser.py",
            "tests/unit/router/wire/test_http_request.py",
            "tests/unit/router/wire/test_known_header.py",
            "tests/unit/router/proxy/test_connection.py",
        ),
    ),
    Subject(
        "claims",
        ("api/kvasir/resource/ownership/*.py",),
        ("tests/unit/api/resource",),
    ),
    Subject(
        "plan",
        ("operator/kvasir_operator/plan/**/*.py",),
        ("tests/unit/operator/plan",),
    ),
)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    subject: str
    file: str
    operator: str
    occurrence: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


class _Counter(Visitor):  # type: ignore[misc]  # cosmic-ray has no types
    """Count the places in a file that each operator can change."""

    def __init__(self, operators: dict[str, Any]) -> None:
        self.places: Counter[str] = Counter()
        self._operators = operators

    def visit(self, node: Any) -> Any:
        for name, operator in self._operators.items():
            self.places[name] += sum(1 for _ in operator.mutation_positions(node))
        return node


def operators() -> dict[str, Any]:
    """Return cosmic-ray's operators that need no arguments, by name."""
    found = {name: get_operator(name) for name in sorted(set(operator_names()) - EQUIVALENT)}
    return {name: each() for name, each in found.items() if not each.arguments()}


def drawn(subject: Subject, count: int, seed: int) -> tuple[list[Mutant], int]:
    """Return `count` mutants of the subject, and how many changes there are to draw from."""
    places = []
    for path in subject.paths():
        counter = _Counter(operators())
        counter.walk(get_ast(path.read_text()))
        where = str(path.relative_to(TOP))
        places += [(where, name, it) for name, n in counter.places.items() for it in range(n)]
    random.Random(f"{seed} {subject.name}").shuffle(places)
    made = (mutant for place in places if (mutant := _mutant(subject.name, *place)) is not None)
    return list(islice(made, count)), len(places)


def _mutant(subject: str, file: str, operator: str, occurrence: int) -> Mutant | None:
    """Return the mutant; None where it means the same."""
    source = (TOP / file).read_text()
    made = mutated(source, operator, occurrence)
    if meaning_of(made) == meaning_of(source):
        return None
    return Mutant(subject, file, operator, occurrence, *changed_line(source, made))


def mutated(source: str, operator: str, occurrence: int) -> str:
    """Return the source with that occurrence of what the operator can change changed."""
    return str(
        MutationVisitor(occurrence, get_operator(operator)()).walk(get_ast(source)).get_code()
    )


def meaning_of(source: str) -> str:
    """Return the source without annotations, docstrings and comments; "" for what is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.unparse(tree)


def changed_line(source: str, made: str) -> tuple[int, str, str]:
    """Return number and texts of the first line that differs."""
    pairs = enumerate(zip(source.splitlines(), made.splitlines(), strict=False), 1)
    found = ((line, one.strip(), other.strip()) for line, (one, other) in pairs if one != other)
    return next(found, (0, "", ""))


class Copies:
    """Copies of the tree, one for each worker."""

    def __init__(self, directory: Path, count: int) -> None:
        self._free: Queue[Path] = Queue()
        left_out = shutil.ignore_patterns("__pycache__")
        for number in range(count):
            copy = directory / str(number)
            for name in COPIED:
                shutil.copytree(TOP / name, copy / name, ignore=left_out)
            shutil.copy(TOP / "pyproject.toml", copy)
            self._free.put(copy)

    def survives(self, mutant: Mutant, tests: tuple[str, ...], seconds: float) -> bool:
        """Tell if the tests pass with the mutant."""
        copy = self._free.get()
        path = copy / mutant.file
        source = path.read_text()
        try:
            path.write_text(mutated(source, mutant.operator, mutant.occurrence))
            return passes(copy, tests, seconds)
        finally:
            path.write_text(source)
            self._free.put(copy)

    def seconds(self, tests: tuple[str, ...]) -> float:
        """Return how long the tests take without a mutant. Raises SystemExit where they fail."""
        copy = self._free.get()
        began = time.monotonic()
        if not passes(copy, tests, 600):
            raise SystemExit(f"mutants: {' '.join(tests)} fails without a mutant")
        self._free.put(copy)
        return time.monotonic() - began


def passes(copy: Path, tests: tuple[str, ...], seconds: float) -> bool:
    """Run pytest over the copy; end it with its children after `seconds`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    packages = ":".join(str(copy / name) for name in ("api", "engine", "router", "operator"))
    # Seeded by the profile: a mutant is killed or not by the same examples each time
    environment = {**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return False


def judge(subjects: list[Subject], count: int, seed: int, jobs: int) -> list[tuple[Mutant, bool]]:
    """Return the mutants that were drawn, and whether each survives."""
    found: list[tuple[Mutant, bool]] = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        copies = Copies(Path(directory), jobs)
        for number, subject in enumerate(subjects):
            share = count // len(subjects) + (number < count % len(subjects))
            mutants, places = drawn(subject, share, seed)
            limit = PATIENCE * copies.seconds(subject.tests) + 10
            lives = pool.map(lambda it: copies.survives(it, subject.tests, limit), mutants)  # noqa: B023
            for mutant, alive in zip(mutants, lives, strict=True):
                found.append((mutant, alive))
                if alive:
                    print(
                        f"survives: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}"
                    )
            killed = sum(not alive for it, alive in found if it.subject == subject.name)
            print(f"{subject.name}: {killed} of {len(mutants)} killed; drawn from {places} places")
    return found


def main() -> None:
    """Draw, judge, print, and save what all subjects gave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--subject", choices=[each.name for each in SUBJECTS], action="append")
    given = parser.parse_args()
    subjects = [it for it in SUBJECTS if given.subject is None or it.name in given.subject]
    found = judge(subjects, given.count, given.seed, given.jobs)
    killed = sum(not alive for _, alive in found)
    print(f"{killed} of {len(found)} killed: {killed / len(found):.1%}")
    if given.subject is None:
        result = {
            "command": " ".join(["scripts/mutants.py", *sys.argv[1:]]),
            "commit": commit(),
            "date": datetime.now(UTC).date().isoformat(),
            "mutants": len(found),
            "killed": killed,
            "survivors": [asdict(mutant) for mutant, alive in found if alive],
        }
        (RESULTS / "mutants.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
