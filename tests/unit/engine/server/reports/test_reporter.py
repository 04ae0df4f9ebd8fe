from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.block_hash import chain_hashes
from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.server.reports import report_backlog
from kvasir_engine.server.reports import reporter as reporter_module
from kvasir_engine.server.reports.reporter import PromptReporter

BLOCK = 8
LONG = "a prompt of more than a block of text. " * 40


@pytest.fixture
def drops() -> list[int]:
    """What the reporter said to have dropped."""
    return []


@pytest.fixture
def reporter(byte_tokenizer: Tokenizer, drops: list[int]) -> Iterator[PromptReporter]:
    made = PromptReporter(byte_tokenizer, BLOCK, count_dropped=drops.append)
    yield made
    made.close()


@pytest.fixture
def offer(reporter: PromptReporter, byte_tokenizer: Tokenizer) -> Callable[[str], None]:
    """Give the reporter a completion's prompt."""

    def give(text: str) -> None:
        ids = byte_tokenizer.encode(text)
        hashes = chain_hashes(ids, BLOCK)
        reporter.completion({}, text, ids, hashes, add_special_tokens=True)

    return give


async def test_nothing_is_made_while_nobody_watches(reporter: PromptReporter, offer: Any) -> None:
    offer(LONG)
    with reporter.subscribe() as subscription:
        offer("other " + LONG)
        async with asyncio.timeout(10):
            reports, dropped = await subscription.next_reports()
        assert len(reports) == 1
        assert dropped == 0


async def test_a_watcher_that_comes_again_misses_nothing(
    reporter: PromptReporter, offer: Any
) -> None:
    with reporter.subscribe():
        offer("sent as the stream ended " + LONG)
    offer("without a stream " + LONG)
    with reporter.subscribe() as renewed:
        offer("on the new stream " + LONG)
        heard = []
        async with asyncio.timeout(10):
            while len(heard) < 3:
                reports, dropped = await renewed.next_reports()
                heard += reports
                assert dropped == 0
    assert len({report.text_hashes[0] for report in heard}) == 3


async def test_nobody_is_waited_for_longer_than_reports_are_kept(
    byte_tokenizer: Tokenizer, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_backlog, "KEPT_SECONDS", 0.01)
    told: list[bool] = []
    reporter = PromptReporter(byte_tokenizer, BLOCK, told.append)
    with reporter.subscribe():
        reporter.deliver(PromptReport([1], [0], bytes(16)))
    assert reporter.watched
    assert reporter.watch == 1
    await until(lambda: not reporter.watched)
    assert told == [True, False]
    assert reporter.watch == 0
    with reporter.subscribe() as subscription, pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await subscription.next_reports()


async def test_a_late_watcher_hears_of_what_others_heard_before(
    reporter: PromptReporter, offer: Any
) -> None:
    with reporter.subscribe() as first:
        offer(LONG)
        async with asyncio.timeout(10):
            [report], _ = await first.next_reports()
            with reporter.subscribe() as second:
                [kept], _ = await second.next_reports()
                offer(LONG)
                [again], _ = await second.next_reports()
        assert kept == again == report


async def test_a_slow_watcher_loses_the_oldest(
    reporter: PromptReporter, drops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_QUEUED_REPORTS", 2)
    with reporter.subscribe() as subscription:
        for number in range(5):
            subscription.put(PromptReport([number], [0], bytes(16)))
        reports, dropped = await subscription.next_reports()
    assert [list(report.text_hashes) for report in reports] == [[3], [4]]
    assert dropped == sum(drops) == 3


async def test_reports_that_are_too_many_for_a_message_come_in_several(
    reporter: PromptReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_MESSAGE_BLOCKS", 3)
    monkeypatch.setattr(reporter_module, "MAX_QUEUED_REPORTS", 4)
    with reporter.subscribe() as subscription:
        for blocks in (1, 2, 1, 4, 1):
            hashes = list(range(blocks))
            subscription.put(PromptReport(hashes, hashes, bytes(16 * blocks)))
        taken = []
        async with asyncio.timeout(10):
            while sum(len(reports) for reports, _ in taken) < 4:
                taken.append(await subscription.next_reports())
        sizes = [[len(report.text_hashes) for report in reports] for reports, _ in taken]
        assert sizes == [[2, 1], [4], [1]]
        assert [dropped for _, dropped in taken] == [1, 0, 0]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await subscription.next_reports()


async def test_prompts_beyond_the_queue_are_dropped(
    reporter: PromptReporter, offer: Any, drops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_QUEUED_PROMPTS", 3)
    with reporter.subscribe():
        for number in range(5):
            offer(f"{number} {LONG}")
        assert sum(drops) == 2
