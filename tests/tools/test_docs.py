"""What the documentation names exists: links, files, commands and their flags, make's targets,
messages. Pages that are made by scripts are as the scripts make them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.cli.commands import COMMANDS, load_command

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


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
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


def fences(page: str) -> str:
    """Return the page's shell blocks, continued lines joined and comments left out."""
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    return re.sub(r"(?m)(^|\s)#.*$", "", "\n".join(blocks).replace("\\\n", " "))


def inline(page: str) -> list[str]:
    """Return what stands in backticks outside of blocks."""
    prose = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", prose)]


def calls(page: str) -> list[list[str]]:
    """Return the words of each `kvasir` command that a page shows."""
    lines = [*fences(page).splitlines(), *inline(page)]
    command = re.compile(r"(?:^\s*(?:\w+=\S+ )*|bin/|\| )kvasir ([a-z][^|&>;]*)")
    found = (command.search(line) for line in lines)
    return [each[1].split() for each in found if each]


def flags(words: list[str]) -> list[str]:
    """Return what of `words` no command has: the command itself, or flags of it."""
    infos = {info.name: info for info in COMMANDS}
    if words[0] not in infos:
        return [words[0]]
    command = load_command(infos[words[0]])
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    known = {"--help", "-h"}
    for each in command.params:
        known |= {*each.opts, *each.secondary_opts}
    used = [word.split("=")[0] for word in words[1:] if re.match(r"--?[a-zA-Z]", word)]
    return [word for word in used if word not in known]


@pytest.mark.parametrize("page", [name for name in PAGES if not name.startswith(MEASURED)])
def test_commands_that_a_page_shows_have_those_flags(page: str) -> None:
    wrong = {" ".join(words): flags(words) for words in calls(page)}
    assert {call: missing for call, missing in wrong.items() if missing} == {}


@pytest.mark.parametrize("page", PAGES)
def test_targets_that_a_page_names_are_in_the_makefile(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    text = "\n".join([fences(page), *inline(page)])
    named = re.findall(r"^\s*make ([a-z][a-z0-9-]*)", text, re.MULTILINE)
    assert [name for name in named if name not in targets] == []


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


def test_the_map_stays_short() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().split()) <= 2000


def test_the_page_of_the_routers_files_is_made_of_their_models() -> None:
    command = [sys.executable, "scripts/config_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
