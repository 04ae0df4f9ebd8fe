"""Clients that people use, unmodified, against a router and an engine: `make clients`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from clients.inventory import CLIENTS, JAVASCRIPT, ROOT, Client


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Fail where a client is not installed."""
    assert (ROOT / ".venv/clients/bin/python").exists(), "The clients are missing; make clients."
    assert (JAVASCRIPT / "node_modules").exists(), "node_modules is missing; make clients."


def passed(report: Path) -> set[str]:
    """Return the names of the tests that a report in JUnit's format says have passed."""
    cases = ElementTree.parse(report).iter("testcase")
    return {case.attrib["name"].removeprefix("test_") for case in cases if len(case) == 0}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda it: it.id)
def test_a_client(
    client: Client, router_url: str, client_environ: dict[str, str], tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    done = subprocess.run(
        client.command(report),
        cwd=client.file.parent,
        env=client_environ | {"KVASIR_URL": router_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    told = report.read_text() if report.exists() else ""
    assert done.returncode == 0, f"{done.stdout}\n{told}"
    assert passed(report) == set(client.tests)
