from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.server.reports import report_backlog
from kvasir_engine.server.reports import report_relay as relay_module
from kvasir_engine.server.reports.report_relay import ReportHub, ReportRelay
from kvasir_engine.server.reports.reporter import PromptReporter
from kvasir_engine.server.reports.watch_page import WatchPage

REPORT = PromptReport([2**63, 7], [1, 2], bytes(range(32)))


@pytest.fixture
async def two(
    tmp_path: Path, byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[PromptReporter, PromptReporter]]:
    """The reporters of the first process and of another one, joined by hub and relay."""
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(report_backlog, "KEPT_SECONDS", 0.5)
    address = f"ipc://{tmp_path}/reports"
    page = WatchPage(tmp_path / "watch", create=True)
    first = PromptReporter(byte_tokenizer, 16, page.watch)
    other = PromptReporter(byte_tokenizer, 16)
    hub = ReportHub(address, first)
    relay = ReportRelay(address, WatchPage(tmp_path / "watch"), other)
    yield first, other
    await relay.close()
    hub.close()


async def test_a_report_of_another_process_reaches_the_watcher(two, until) -> None:
    first, other = two
    assert not other.watched
    with first.subscribe() as subscription:
        await until(lambda: other.watched)
        other.deliver(REPORT)
        async with asyncio.timeout(10):
            [report], dropped = await subscription.next_reports()
    assert (report, dropped) == (REPORT, 0)
    await until(lambda: not other.watched)


async def test_a_new_watch_is_told_everything_anew(two, until) -> None:
    first, other = two
    for _ in range(2):
        with first.subscribe():
            await until(lambda: other.watched)
            before = other.watch
            with first.subscribe():
                await until(lambda before=before: other.watch == before + 1)
        await until(lambda: not other.watched)


async def test_a_report_of_another_process_waits_for_a_watcher_that_comes_again(two, until) -> None:
    first, other = two
    with first.subscribe():
        await until(lambda: other.watched)
    other.deliver(REPORT)
    await asyncio.sleep(0.1)
    for _ in range(2):
        with first.subscribe() as subscription:
            async with asyncio.timeout(10):
                [report], dropped = await subscription.next_reports()
        assert (report, dropped) == (REPORT, 0)
