"""The status page, through two mappings as in two processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvasir_engine.core.status import CorePhase, CoreStatus
from kvasir_engine.scheduler.counters import SchedulerLoad


@pytest.fixture
def pages(tmp_path: Path) -> tuple[CoreStatus, CoreStatus]:
    path = tmp_path / "status"
    return CoreStatus(path, create=True), CoreStatus(path)


def test_a_new_page_is_starting_and_idle(pages: tuple[CoreStatus, CoreStatus]) -> None:
    _, reader = pages
    assert reader.phase is CorePhase.STARTING
    load = reader.load()
    assert (load.running, load.waiting, load.inflight_tokens, load.kv_usage) == (0, 0, 0, 0.0)
    assert load.step_age_seconds == load.turn_age_seconds == 0.0


def test_the_reader_sees_what_the_writer_sets(pages: tuple[CoreStatus, CoreStatus]) -> None:
    writer, reader = pages
    writer.phase = CorePhase.DRAINING
    writer.set_load(SchedulerLoad(3, 70_000, 1 << 40, 0.25))
    assert reader.phase is CorePhase.DRAINING
    load = reader.load()
    assert (load.running, load.waiting, load.inflight_tokens) == (3, 70_000, 1 << 40)
    assert load.kv_usage == 0.25


def test_ages_count_from_the_writers_clock_and_end_with_zero(
    pages: tuple[CoreStatus, CoreStatus],
) -> None:
    writer, reader = pages
    writer.set_launched_at(time.monotonic() - 5)
    writer.set_turned_at(time.monotonic() - 7)
    assert 5 <= reader.load().step_age_seconds < 65
    assert 7 <= reader.load().turn_age_seconds < 67
    writer.set_launched_at(0.0)
    writer.set_turned_at(0.0)
    assert reader.load().step_age_seconds == reader.load().turn_age_seconds == 0.0
