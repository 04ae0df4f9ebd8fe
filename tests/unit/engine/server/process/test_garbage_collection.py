"""When an API process collects its garbage: seldom while responses are running, soon after."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from kvasir_engine.server.process import garbage_collection
from kvasir_engine.server.process.garbage_collection import (
    THRESHOLDS,
    collect_seldom,
    collect_when_idle,
)


class Loop:
    """An object in a cycle, which only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


class Responses:
    """The part of a Lifecycle that is asked."""

    def __init__(self, *, idle: bool) -> None:
        self.ended = idle
        self.asked = asyncio.Event()

    @property
    def idle(self) -> bool:
        self.asked.set()
        return self.ended


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.enable()


def test_full_collections_are_rare() -> None:
    gc.disable()
    collect_seldom()
    assert gc.isenabled()
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > 0


async def test_garbage_goes_once_no_response_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "IDLE_CHECK_SECONDS", 0.01)
    gc.set_threshold(0)  # nothing else collects
    kept = Loop()
    gone = asyncio.Event()
    garbage = weakref.ref(kept, lambda _: gone.set())
    gc.collect(1)  # it is of the oldest generation now
    del kept
    responses = Responses(idle=False)
    collecting = asyncio.create_task(collect_when_idle(responses))  # type: ignore[arg-type]
    try:
        await asyncio.wait_for(responses.asked.wait(), 30)
        assert garbage() is not None, "a response is running"
        responses.ended = True
        await asyncio.wait_for(gone.wait(), 30)
    finally:
        collecting.cancel()


async def test_nothing_is_collected_again_without_new_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage_collection, "IDLE_CHECK_SECONDS", 0.001)
    found: list[int] = []
    gc.set_threshold(0)
    gc.collect()
    monkeypatch.setattr(gc, "collect", lambda: found.append(1))
    responses = Responses(idle=True)
    collecting = asyncio.create_task(collect_when_idle(responses))  # type: ignore[arg-type]
    for _ in range(5):
        responses.asked.clear()
        await asyncio.wait_for(responses.asked.wait(), 30)
    collecting.cancel()
    assert found == []
