"""The clients of e2e/clients: their page, their locks, how they are installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from clients import page
from clients.inventory import CLIENTS, FEATURES, JAVASCRIPT, PYTHON, Client, is_about
from support.doc_pages import blocks

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda it: it.id)
LOCK = JAVASCRIPT / "package-lock.json"
DECLARED = json.loads((JAVASCRIPT / "package.json").read_text())["dependencies"]


def test_the_table_of_the_page_is_what_is_tested() -> None:
    assert page.PAGE.read_text() == page.page(), "make client-docs"


@each_client
def test_each_test_is_about_a_feature(client: Client) -> None:
    assert client.tests
    assert len(set(client.tests)) == len(client.tests)
    named = [test for test in client.tests if any(is_about(test, each) for each in FEATURES)]
    assert named == client.tests


def test_each_file_of_tests_is_a_clients() -> None:
    found = {*PYTHON.glob("test_*.py"), *JAVASCRIPT.glob("*.test.js")}
    assert {client.file for client in CLIENTS} == found


def test_each_example_of_the_page_is_run() -> None:
    text = page.PAGE.read_text()
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    sources = "\n".join(client.file.read_text() for client in CLIENTS)
    assert [heading for heading in headings if f'"{heading}"' not in sources] == []
    shown = [language for language, _ in blocks("docs/clients.md")]
    assert shown == ["python"] * text.count("```python") + ["javascript"] * 4
    assert len(headings) == len(shown)


def test_no_test_is_left_out() -> None:
    for client in CLIENTS:
        left_out = re.findall(r"skip|xfail|todo|\.only", client.file.read_text())
        assert left_out == [], client.file


def test_the_lock_of_javascript_is_what_is_asked_for_with_hashes_and_without_a_registry() -> None:
    text = LOCK.read_text()
    packages = json.loads(text)["packages"]
    asked = packages.pop("")["dependencies"]
    assert asked == DECLARED
    assert {name: packages[f"node_modules/{name}"]["version"] for name in asked} == asked
    assert [
        name for name, it in packages.items() if not it.get("integrity", "").startswith("sha5")
    ] == []
    assert [name for name, it in packages.items() if "resolved" in it] == []
    hosts = {urlsplit(url).hostname for url in re.findall(r'https?://[^"]+', text)}
    assert hosts <= {"github.com"}, "of sponsors"


@pytest.mark.parametrize(
    ("programs", "sentence"),
    [
        ({}, "node is missing; install Node.js 20 or newer, with npm."),
        ({"node": "[ $1 = --version ] && echo v18.1.0; exit 1"}, "node is v18.1.0; install"),
        ({"node": "exit 0"}, "npm is missing; install it beside Node.js."),
        ({"node": "exit 0", "npm": "echo no network; exit 1"}, "npm ci has failed"),
    ],
)
def test_what_is_missing_of_javascript_is_said(
    programs: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    for name in ("bash", "dirname", "cat", "sha256sum"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    folder = tmp_path / "javascript"
    folder.mkdir()
    for file in ("install.sh", "package.json", "package-lock.json"):
        shutil.copy(JAVASCRIPT / file, folder)
    done = subprocess.run(
        ["bash", folder / "install.sh"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert sentence in done.stderr
