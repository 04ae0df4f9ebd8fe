"""Each reason that needs a remedy has one, as docs/troubleshooting.md has."""

from __future__ import annotations

import re
from pathlib import Path

from kvasir.cli.kubectl.plugin_commands import PLUGIN_COMMANDS
from kvasir.cli.kubectl.remedies import REMEDIES, remedy_of

PAGE = Path(__file__).parents[5] / "docs" / "troubleshooting.md"
PASSING = {"Downloading", "DownloadPending", "Waiting", "Starting", "RollingOut"}
"""Reasons that need time alone, which the page leaves out."""


def test_the_reasons_are_those_of_the_page() -> None:
    table = PAGE.read_text().partition("## On Kubernetes")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    told = {each for cell in cells for each in re.findall(r"`(\w+)`", cell)}
    assert {reason.value for reason in REMEDIES} == told | PASSING


def test_commands_that_remedies_name_exist() -> None:
    named = {
        word for remedy in REMEDIES.values() for word in re.findall(r"kubectl kvasir (\w+)", remedy)
    }
    assert named
    assert named <= {info.name for info in PLUGIN_COMMANDS}


def test_a_remedy_names_the_model() -> None:
    assert "kubectl kvasir retry qwen" in str(remedy_of("Aborted", "qwen"))
    assert remedy_of("OfANewerOperator", "qwen") is None
    assert remedy_of("Serving", "qwen") is None
