"""Runs the examples of docs/clients.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from questions import URL

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
_BLOCK = r"^### {}$.*?^```python\n(.*?)^```$"


@pytest.fixture
def run_example(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """run_example(heading): what the example under a heading of the page prints."""

    def run(heading: str) -> str:
        found = re.search(_BLOCK.format(re.escape(heading)), PAGE.read_text(), re.M | re.S)
        assert found, f"{PAGE} has no example under {heading}"
        code = found[1].replace("http://127.0.0.1:8080", URL)
        exec(compile(code, f"{PAGE} {heading}", "exec"), {"__name__": "example"})
        return capsys.readouterr().out.strip()

    return run
