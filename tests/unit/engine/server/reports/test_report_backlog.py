from __future__ import annotations

import pytest

from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.server.reports import report_backlog
from kvasir_engine.server.reports.report_backlog import KEPT_SECONDS, ReportBacklog


def report(first: int, blocks: int = 1) -> PromptReport:
    hashes = list(range(first, first + blocks))
    return PromptReport(hashes, [0] * blocks, bytes(16 * blocks))


def test_old_reports_are_no_longer_kept() -> None:
    now = 0.0
    backlog = ReportBacklog(lambda: now)
    for number in range(4):
        backlog.add(report(number))
        now += KEPT_SECONDS / 4
    assert backlog.recent() == [report(number) for number in (1, 2, 3)]
    backlog.clear()
    assert backlog.recent() == []


@pytest.mark.parametrize(
    ("limit", "sizes", "kept"),
    [("MAX_KEPT_REPORTS", [1, 1, 1, 1], 2), ("MAX_KEPT_BLOCKS", [1, 4, 1, 1], 2)],
)
def test_of_many_the_latest_are_kept(
    monkeypatch: pytest.MonkeyPatch, limit: str, sizes: list[int], kept: int
) -> None:
    monkeypatch.setattr(report_backlog, limit, 2)
    backlog = ReportBacklog(lambda: 0.0)
    made = [report(number, blocks) for number, blocks in enumerate(sizes)]
    for each in made:
        backlog.add(each)
    assert backlog.recent() == made[-kept:]
