"""Limits that keep the tree readable: import cycles, crowded folders, long files, clear names."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "kvasir": ROOT / "api/kvasir",
    "kvasir_engine": ROOT / "engine/kvasir_engine",
    "kvasir_router": ROOT / "router/kvasir_router",
    "kvasir_operator": ROOT / "operator/kvasir_operator",
}
MAX_MODULES = 16
MAX_LINES = 400
SAME_NAMES = {"__init__.py", "__main__.py"}


def modules(package: Path) -> list[Path]:
    return [path for path in package.rglob("*.py") if "proto" not in path.parts]


def cycles(graph: grimp.ImportGraph, package: str) -> Iterator[set[str]]:
    """Yield the strongly connected components of more than one module (Kosaraju's algorithm)."""
    every = [name for name in graph.modules if name.partition(".")[0] == package]
    order: list[str] = []
    seen: set[str] = set()

    def visit(start: str) -> None:
        stack = [(start, iter(graph.find_modules_directly_imported_by(start)))]
        seen.add(start)
        while stack:
            name, others = stack[-1]
            for other in others:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(graph.find_modules_directly_imported_by(other))))
                    break
            else:
                order.append(name)
                stack.pop()

    for name in every:
        if name not in seen:
            visit(name)
    left = set(every)
    for name in reversed(order):
        if name not in left:
            continue
        component, front = {name}, [name]
        left.discard(name)
        while front:
            for other in graph.find_modules_that_directly_import(front.pop()) & left:
                left.discard(other)
                component.add(other)
                front.append(other)
        if len(component) > 1:
            yield component


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Every import, those under TYPE_CHECKING included."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_import_each_other_in_no_circle(graph: grimp.ImportGraph, package: str) -> None:
    assert [sorted(each) for each in cycles(graph, package)] == []


def test_no_folder_is_crowded() -> None:
    counts: dict[str, int] = defaultdict(int)
    for package in PACKAGES.values():
        for path in modules(package):
            counts[str(path.parent.relative_to(ROOT))] += path.name != "__init__.py"
    found = {folder: count for folder, count in counts.items() if count > MAX_MODULES}
    assert found == {}


def test_no_file_is_long() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lengths = {
        name: len((ROOT / name).read_text().splitlines())
        for name in listed.stdout.split()
        if not name.endswith(("_pb2.py", "_pb2_grpc.py"))
    }
    assert lengths, "git lists the files"
    assert {n: k for n, k in lengths.items() if k > MAX_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_name_stands_twice(package: str) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules(PACKAGES[package]):
        if path.name not in SAME_NAMES:
            places[path.name].append(str(path.relative_to(ROOT)))
    assert [each for each in places.values() if len(each) > 1] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_name_stands_twice(package: str) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules(PACKAGES[package]):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: each for name, each in places.items() if len(each) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_raised_in_except_star(package: str) -> None:
    """Before Python 3.11.4 it comes out as an ExceptionGroup, which nobody expects."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules(PACKAGES[package])
        for clause in ast.walk(ast.parse(path.read_text()))
        if isinstance(clause, ast.TryStar)
        for handler in clause.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise) and node.exc is not None
    ]
    assert found == []
