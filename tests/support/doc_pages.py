"""The Markdown pages of this repository, and the blocks of code in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
PAGES = [name for name in LISTED if name.endswith(".md") and name != "CHANGELOG.md"]
MEASURED = ("docs/benchmarks.md", "benchmarks/notes/")
"""Pages that name files and commands as they were when the figures were taken."""
CURRENT = [name for name in PAGES if not name.startswith(MEASURED)]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Return (language, text) of each block of code of a page; no language is an empty string."""
    return [(each[1], each[2]) for each in _FENCE.finditer((ROOT / page).read_text())]


def prose(page: str) -> str:
    """Return the page without its blocks of code."""
    return _FENCE.sub("", (ROOT / page).read_text())


def inline(page: str) -> list[str]:
    """Return what stands in backticks outside of blocks."""
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", prose(page))]


def shell(page: str) -> list[str]:
    """Return the lines of the page's shell blocks, continued ones joined, without comments."""
    text = "\n".join(text for language, text in blocks(page) if language == "sh")
    return re.sub(r"(?m)(^|\s)#.*$", "", text.replace("\\\n", " ")).splitlines()
