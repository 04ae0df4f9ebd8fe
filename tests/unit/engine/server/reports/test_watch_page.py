from __future__ import annotations

from pathlib import Path

from kvasir_engine.server.reports.watch_page import WatchPage


def test_each_watch_has_a_number_that_other_processes_read(tmp_path: Path) -> None:
    writer = WatchPage(tmp_path / "watch", create=True)
    reader = WatchPage(tmp_path / "watch")
    assert reader.number == 0
    numbers = []
    for _ in range(2):
        writer.watch(True)
        numbers.append(reader.number)
    writer.watch(False)
    assert reader.number == 0
    writer.watch(True)
    assert len({*numbers, reader.number}) == 3
    numbers.append(reader.number)
    successor = WatchPage(tmp_path / "watch")
    successor.watch(False)
    successor.watch(True)
    assert reader.number not in numbers
    assert 0 not in numbers
