"""Subjects of mutation testing, and the mutants that a seed draws from all changes of their files.

What changes nothing but what readers and mypy see is no mutant.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator, operator_names

TOP = Path(__file__).parents[1]
EQUIVALENT = {
    f"core/ReplaceComparisonOperator_{one}_{other}"
    for one, other in (("Is", "Eq"), ("Eq", "Is"), ("IsNot", "NotEq"), ("NotEq", "IsNot"))
}
"""Operators whose changes mean the same for enums, None and small numbers."""
UNSEEN = {"frozen", "kw_only", "slots"}
"""Arguments of a dataclass: promises that mypy checks at each use, not the running code."""


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
    made = (mutant for place in places if (mutant := mutant_at(subject.name, *place)) is not None)
    return list(islice(made, count)), len(places)


def mutant_at(subject: str, file: str, operator: str, occurrence: int) -> Mutant | None:
    """Return the mutant; None where it means the same, or cosmic-ray cannot make it."""
    source = (TOP / file).read_text()
    try:
        made = mutated(source, operator, occurrence)
    except AttributeError:  # the replacer of exceptions, by a name with a dot
        return None
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
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            node.keywords = []  # strict: both are as long whichever it is
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
