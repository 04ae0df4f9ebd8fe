from __future__ import annotations

from kvasir.cli.download_display import showing
from kvasir.models.download.progress import DownloadPhase
from kvasir.models.download.tracker import Tracker


def test_the_time_that_is_left_follows_the_rate_of_the_last_half_minute() -> None:
    now = 0.0
    tracker = Tracker(lambda: now)
    tracker.begin(1000, 11_000)
    assert tracker.read().eta_seconds is None
    for _ in range(10):
        now += 1
        tracker.add(100)
    assert (tracker.read().bytes, tracker.read().eta_seconds) == (2000, 90)
    for _ in range(40):  # ten times faster from now on
        now += 1
        tracker.add(200)
    assert tracker.read().eta_seconds == 5
    tracker.add(-10_000)
    assert tracker.read().eta_seconds is None


def test_nothing_is_left_while_it_is_verified() -> None:
    tracker = Tracker()
    tracker.begin(0, 10)
    tracker.add(10)
    tracker.verify()
    assert (tracker.read().phase, tracker.read().eta_seconds) == (DownloadPhase.VERIFYING, None)


def test_a_terminal_gets_a_bar(capsys) -> None:
    tracker = Tracker()
    tracker.begin(0, 2 << 20)
    with showing(tracker, "hf://org/model", bar=True):
        tracker.add(1 << 20)
    shown = capsys.readouterr().err
    assert "hf://org/model downloading" in shown
    assert "1.0/2.0 MiB" in shown
