"""A caller with the fleet secret, and what an openai client sees of the streams it joins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from support.engines.resumed_streams import SECRET, ClientView, FleetCaller


@pytest.fixture
async def caller() -> AsyncIterator[FleetCaller]:
    """A FleetCaller."""
    made = FleetCaller()
    yield made
    await made.http.aclose()


@pytest.fixture
def client_view() -> Iterator[ClientView]:
    """client_view(path, events): what an openai client makes of them."""
    made = ClientView()
    yield made
    made.close()


@pytest.fixture(scope="module")
def start_tiny(serve_module: Callable[..., Any]) -> Callable[..., Any]:
    """start_tiny(*flags, wait=True): the tiny model, knowing the fleet secret."""

    def start(*flags: str, wait: bool = True) -> Any:
        names = ("--served-model-name", "tiny")
        env = {"KVASIR_FLEET_SECRET": SECRET}
        return serve_module("builtin://kvasir-tiny", *names, *flags, wait=wait, env=env)

    return start


@pytest.fixture(scope="module")
def pair(start_tiny: Callable[..., Any]) -> tuple[Any, Any]:
    """Two engines of one model, which draw seeds of their own."""
    one, other = start_tiny(wait=False), start_tiny("--seed", "7", wait=False)
    one.wait_ready()
    other.wait_ready()
    return one, other
