"""`kvasir serve` as a user starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engines.served_engine import Served, gone, launcher


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """serve(*flags, wait=True): a server on a free port; killed with its children afterwards."""
    with launcher(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def serve_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """`serve` for servers that a module's tests share."""
    with launcher(tmp_path_factory.mktemp("serve")) as start:
        yield start


@pytest.fixture
def assert_gone() -> Callable[[list[int]], None]:
    """assert_gone(pids): every process has ended."""

    def check(pids: list[int]) -> None:
        assert [pid for pid in pids if not gone(pid)] == []

    return check
