"""Mutation testing: change the code in one place, and see whether one of its tests fails.

    scripts/mutants.py                            300 mutants of all subjects, saved in
                                                  benchmarks/results/mutants.json
    scripts/mutants.py --subject claims           only the 50 of these, printed
    scripts/mutants.py --subject claims --save    and saved in place of the earlier ones

A mutant is drawn by `--seed` from all that cosmic-ray's operators can make of a subject's files;
what changes nothing but annotations or docstrings is none. It is killed when a test fails, or when
the tests need five times the CPU time that they need without it. The module's own test file runs
first, then the others in the order of what they have killed so far.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
UNSEEN = {"frozen", "kw_only", "slots"}
"""Arguments of a dataclass: promises that mypy checks at each use, not the running code."""
PATIENCE = 5
"""Times the tests' own CPU time after which a mutant hangs."""
WAIT = 60
"""Seconds that one test may wait: what hangs without using the CPU."""
MEMORY = 12 << 30
"""Bytes of address space: a mutant that allocates without end ends alone."""


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
        (
            "tests/unit/engine/kv/test_block_pool.py",
            "tests/unit/engine/kv/test_manager.py",
            "tests/unit/engine/scheduler/test_scheduler.py",
        ),
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
        ("tests/unit/api/resource/ownership",),
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
    """Return the source without annotations, docstrings, comments and what only mypy and memory
    know of dataclasses and of how arguments are passed; "" for what is no Python."""
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
        elif isinstance(node, ast.arguments):
            _pass_by_either(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dataclass":
            node.keywords = [each for each in node.keywords if each.arg not in UNSEEN]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.unparse(tree)


def _pass_by_either(these: ast.arguments) -> None:
    """Forget which arguments must be passed by name, and which by position."""
    plain = [*these.posonlyargs, *these.args]
    defaults = [*[None] * (len(plain) - len(these.defaults)), *these.defaults, *these.kw_defaults]
    these.posonlyargs, these.args, these.kwonlyargs = [], [*plain, *these.kwonlyargs], []
    these.defaults, these.kw_defaults = defaults, []  # type: ignore[assignment]


def changed_line(source: str, made: str) -> tuple[int, str, str]:
    """Return number and texts of the first line that differs."""
    pairs = enumerate(zip(source.splitlines(), made.splitlines(), strict=False), 1)
    found = ((line, one.strip(), other.strip()) for line, (one, other) in pairs if one != other)
    return next(found, (0, "", ""))


class Tests:
    """The test files of a subject, in the order in which they are likely to tell."""

    def __init__(self, subject: Subject) -> None:
        found = (TOP / each for each in subject.tests)
        files = (
            path
            for it in found
            for path in (sorted(it.rglob("test_*.py")) if it.is_dir() else [it])
        )
        self._kills = Counter({str(path.relative_to(TOP)): 0 for path in files})

    def killed_by(self, file: str) -> None:
        """Count a mutant that this file killed."""
        if file in self._kills:
            self._kills[file] += 1

    def stages(self, module: str = "") -> list[list[str]]:
        """Return the files in two lots: those likely to tell, the module's own first, and the rest.
        Each lot costs its collection."""
        own = f"test_{Path(module).stem}.py"
        files = sorted(self._kills, key=lambda it: (Path(it).name != own, -self._kills[it]))
        return [lot for lot in (files[:_LIKELY], files[_LIKELY:]) if lot]


_LIKELY = 3


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

    def survives(self, mutant: Mutant, tests: Tests, seconds: int) -> bool:
        """Tell if the tests pass with the mutant."""
        copy = self._free.get()
        path = copy / mutant.file
        source = path.read_text()
        try:
            path.write_text(mutated(source, mutant.operator, mutant.occurrence))
            lots = tests.stages(mutant.file)
            found = (failing(copy, lot, seconds) for lot in lots)
            killer = next((file for file in found if file is not None), None)
        finally:
            path.write_text(source)
            self._free.put(copy)
        tests.killed_by(killer or "")
        return killer is None

    def seconds(self, tests: Tests) -> int:
        """Return the CPU time of the tests without a mutant. Raises SystemExit where they fail."""
        copy = self._free.get()
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        for lot in tests.stages():
            if (file := failing(copy, lot, 600)) is not None:
                raise SystemExit(f"mutants: {file} fails without a mutant")
        self._free.put(copy)
        return round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)


def failing(copy: Path, tests: list[str], seconds: int) -> str | None:
    """Run pytest over the copy for so much CPU time; return the file of the first test that fails,
    "" where pytest itself ends, None where all pass."""
    options = ("-x", "-q", "-n0", "--tb=no", "-rfE", "-p", "no:cacheprovider", f"--timeout={WAIT}")
    packages = ":".join(str(copy / name) for name in ("api", "engine", "router", "operator"))
    # Seeded by the profile: a mutant is killed or not by the same examples each time
    environment = {
        **os.environ,
        "HYPOTHESIS_PROFILE": "unshrunk",
        "PYTHONPATH": packages,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
    resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    said, _ = process.communicate()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) ([^: ]+)", said, re.MULTILINE)
    return found[1] if found else ""


@dataclass(frozen=True)
class Verdict:
    """What became of the mutants of a subject."""

    subject: str
    command: str
    commit: str
    date: str
    places: int
    mutants: int
    killed: int
    survivors: list[Mutant]

    def __str__(self) -> str:
        return (
            f"{self.subject}: {self.killed} of {self.mutants} killed "
            f"({self.killed / self.mutants:.1%}); drawn from {self.places} places"
        )


def judged(subject: Subject, copies: Copies, jobs: int, count: int, seed: int) -> Verdict:
    """Run the tests over `count` mutants of the subject; print those that survive."""
    mutants, places = drawn(subject, count, seed)
    tests = Tests(subject)
    limit = PATIENCE * copies.seconds(tests) + 10
    survivors = []
    with ThreadPoolExecutor(jobs) as pool:
        lives = pool.map(lambda it: copies.survives(it, tests, limit), mutants)
        for mutant, alive in zip(mutants, lives, strict=True):
            if alive:
                survivors.append(mutant)
                print(f"survives: {mutant}", flush=True)
    command = " ".join(["scripts/mutants.py", *sys.argv[1:]])
    today = datetime.now(UTC).date().isoformat()
    killed = len(mutants) - len(survivors)
    found = (commit(), today, places, len(mutants), killed, survivors)
    return Verdict(subject.name, command, *found)


def save(verdicts: list[Verdict]) -> None:
    """Write the verdicts in place of the earlier ones of their subjects."""
    path = RESULTS / "mutants.json"
    saved = json.loads(path.read_text())["subjects"] if path.exists() else []
    known = {each["subject"]: each for each in [*saved, *map(asdict, verdicts)]}
    subjects = [known[each.name] for each in SUBJECTS if each.name in known]
    totals = {key: sum(each[key] for each in subjects) for key in ("mutants", "killed")}
    path.write_text(json.dumps({**totals, "subjects": subjects}, indent=1) + "\n")


def main() -> None:
    """Draw, judge and print; save what all subjects gave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=50, help="mutants of each subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--subject", choices=[each.name for each in SUBJECTS], action="append")
    parser.add_argument("--save", action="store_true", help="also what --subject gave")
    given = parser.parse_args()
    subjects = [it for it in SUBJECTS if given.subject is None or it.name in given.subject]
    with tempfile.TemporaryDirectory() as directory:
        copies = Copies(Path(directory), given.jobs)
        for subject in subjects:
            verdict = judged(subject, copies, given.jobs, given.count, given.seed)
            print(verdict, flush=True)
            if given.save or given.subject is None:
                save([verdict])


if __name__ == "__main__":
    main()
