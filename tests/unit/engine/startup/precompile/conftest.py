"""Programs for an absent GPU, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BEGIN = """
import json, sys
sys.path.insert(0, {here!r})
from absent_gpu import pretend
device = pretend()
"""


@pytest.fixture
def without_gpu(without_interpreter: Callable[..., str]) -> Callable[..., Any]:
    """without_gpu(program, *arguments): the JSON of its last line."""
    begin = BEGIN.format(here=str(Path(__file__).parent))

    def run(program: str, *arguments: str) -> Any:
        return json.loads(without_interpreter(begin + program, *arguments).splitlines()[-1])

    return run
