"""Links and file names in the documentation and in docstrings name what exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
PAGES = [name for name in LISTED if name.endswith(".md") and name != "CHANGELOG.md"]
MEASURED = ("docs/benchmarks.md", "benchmarks/notes/")
"""Name files as they were called when the figures were taken."""
SOURCES = [
    name for name in LISTED if name.endswith(".py") and name.split("/")[0] not in ("tests", "e2e")
]
FILE_NAME = re.compile(r"`([\w./-]+\.py)`")
OTHERS = {"vllm/distributed/kv_events.py"}
"""Files of other projects."""


def missing(file: str) -> list[str]:
    """Return the file names in backticks that are the end of no file's path."""
    names = set(FILE_NAME.findall((ROOT / file).read_text())) - OTHERS
    return [name for name in sorted(names) if not exists(name)]


def exists(name: str) -> bool:
    """Whether `name` is the end of a file's path."""
    return any(each == name or each.endswith(f"/{name}") for each in LISTED)


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", [name for name in PAGES if not name.startswith(MEASURED)])
def test_files_that_a_page_names_exist(page: str) -> None:
    assert missing(page) == []


def test_files_that_docstrings_name_exist() -> None:
    found = {source: missing(source) for source in SOURCES}
    assert {source: names for source, names in found.items() if names} == {}
