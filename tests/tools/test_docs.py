"""What the documentation names exists: links, anchors, files, variables, messages. Pages that are
made by scripts are as the scripts make them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from support.doc_pages import CURRENT, LISTED, PAGES, ROOT, blocks, inline, prose

from kvasir.resource.deployment_status import Reason

SOURCES = [
    name for name in LISTED if name.endswith(".py") and name.split("/")[0] not in ("tests", "e2e")
]
FILE_NAME = re.compile(r"`([\w./-]+\.py)`")
KVASIR = Path(sys.executable).parent / "kvasir"
COMPONENTS = {"docs/engine.md", "docs/router.md", "docs/operator.md"}
OTHERS = {"vllm/distributed/kv_events.py"}
"""Files of other projects."""


def missing(file: str) -> list[str]:
    """Return the file names in backticks that are the end of no file's path. A component's page
    names files of the component, of `api/`, or whole paths."""
    names = set(FILE_NAME.findall((ROOT / file).read_text())) - OTHERS
    near = ("api/", f"{Path(file).stem}/") if file in COMPONENTS else ("",)
    return [name for name in sorted(names) if not exists(name, near)]


def exists(name: str, near: tuple[str, ...]) -> bool:
    """Return True if `name` is a path, or the end of a path that begins with one of `near`."""
    return any(
        each == name or (each.endswith(f"/{name}") and each.startswith(near)) for each in LISTED
    )


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", CURRENT)
def test_files_that_a_page_names_exist(page: str) -> None:
    assert missing(page) == []


def test_files_that_docstrings_name_exist() -> None:
    found = {source: missing(source) for source in SOURCES}
    assert {source: names for source, names in found.items() if names} == {}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(str(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_anchors_are_headings(page: str) -> None:
    file = ROOT / page
    links = re.findall(r"\]\(([^)#:\s]*)#([^)]*)\)", file.read_text())
    wrong = [
        f"{path}#{anchor}"
        for path, anchor in links
        if anchor not in anchors((file.parent / path) if path else file)
    ]
    assert wrong == []


@cache
def strings() -> str:
    """Return every string of the packages' code, one a line; `{}` stands for what is filled in."""
    found = []
    for source in SOURCES:
        for node in ast.walk(ast.parse((ROOT / source).read_text())):
            match node:
                case ast.JoinedStr(values=parts):
                    filled = (p.value if isinstance(p, ast.Constant) else "{}" for p in parts)
                    found.append("".join(map(str, filled)))
                case ast.Constant(value=str(text)):
                    found.append(text)
    return "\n".join(found)


@pytest.mark.parametrize("page", CURRENT)
def test_routes_that_a_page_names_are_in_the_code(page: str) -> None:
    code = strings()
    named = [re.match(r"(?:(?:GET|POST|PUT) )?(/[a-z][\w./-]*)$", each) for each in inline(page)]
    routes = [re.sub(r"^/openai(?=/)|[A-Z]+$|\.\.\.$", "", each[1]) for each in named if each]
    assert [route for route in routes if route not in code] == []


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    cells = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    said = [each for cell in cells for each in re.findall(r"`([^`]+)`", cell)]
    messages = [each for each in said if not re.match(r"[/-]|kvasir", each)]
    lines = strings().splitlines()

    def is_said(message: str) -> bool:
        parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
        pattern = re.compile(".*".join(parts))
        return any(pattern.search(line) for line in lines)

    assert len(messages) > 40
    assert [each for each in messages if not is_said(each)] == []


FINE = {
    *("ACCEPTED", "NOT_NEEDED", "CACHED", "FITS", "AVAILABLE", "SCALED_TO_ZERO", "AS_EXPECTED"),
    *("ROUTED", "SERVING", "LOADED", "LOADING"),
    *("DOWNLOADING", "DOWNLOAD_PENDING", "WAITING", "STARTING", "ROLLING_OUT"),
}
"""Reasons of conditions that need no remedy, or only time."""


def test_reasons_that_need_a_remedy_are_in_troubleshooting() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = page.partition("## On Kubernetes")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    told = {each for cell in cells for each in re.findall(r"`(\w+)`", cell)}
    assert told == {reason.value for reason in Reason if reason.name not in FINE}


def test_variables_and_metrics_that_pages_name_are_in_the_code() -> None:
    files = [ROOT / name for name in LISTED if name.startswith(("api/", "engine/", "router/"))]
    files += [ROOT / name for name in LISTED if name.startswith(("operator/", "e2e/"))]
    code = "\n".join(each.read_text() for each in files if each.suffix in (".py", ".sh"))
    wrong = []
    for page in CURRENT:
        named = "\n".join(inline(page))
        wrong += [name for name in re.findall(r"KVASIR_[A-Z_]+", named) if name not in code]
        for metric in re.findall(r"\bkvasir_([a-z_0-9]+)", named):
            if re.sub(r"^router_|_total$|_seconds_p[0-9]+$", "", metric) not in code:
                wrong.append(metric)
    assert wrong == []


def test_files_and_folders_of_the_map_exist() -> None:
    tree = next(text for language, text in blocks("docs/architecture.md") if language == "text")
    parents: list[tuple[int, Path]] = []
    missing = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent > 6:  # a description goes on
            continue
        parents = [each for each in parents if each[0] < indent]
        folder = parents[-1][1] if parents else ROOT
        names = re.split(r"  +", line.strip())[0].split()
        missing += [name for name in names if not (folder / name).exists()]
        parents.append((indent, folder / names[0]))
    assert missing == []


def test_layers_of_the_map_are_those_of_import_linter() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    held = {
        contract["containers"][0]: [set(re.split(r" [|:] ", each)) for each in contract["layers"]]
        for contract in linter["contracts"]
        if contract["type"] == "layers"
    }
    page = (ROOT / "docs" / "architecture.md").read_text()
    said = re.findall(r"^\| `(kvasir_[\w.]+)` \| (.*) \|$", page, re.MULTILINE)
    layers = {name: [set(layer.split(", ")) for layer in row.split(" → ")] for name, row in said}
    assert layers == held


def test_the_map_stays_short() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().split()) <= 2000


def test_the_page_of_the_routers_files_is_made_of_their_models() -> None:
    command = [sys.executable, "scripts/config_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_in_sizing_is_what_plan_prints() -> None:
    command = [KVASIR, "plan", "--model", "benchmarks/models/llama8b"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = {line.split()[0]: re.split(r"  +", line.strip()) for line in printed.splitlines()[2:-1]}
    page = (ROOT / "docs" / "sizing.md").read_text()
    shown = [
        re.split(r" \| ", row) for row in re.findall(r"^\| ([a-z]\w+ \| \dx .*) \|$", page, re.M)
    ]
    assert len(shown) == 5
    assert [row for row in shown if row != lines[row[0]][:-1]] == []
