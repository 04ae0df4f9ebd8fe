"""Progress of a download, shown on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvasir.models.download.progress import DownloadPhase, Progress
from kvasir.models.download.tracker import Tracker
from kvasir.quantity import format_bytes

_BAR_SECONDS = 0.2
_LINE_SECONDS = 10.0


@contextmanager
def showing(tracker: Tracker, name: str, *, bar: bool) -> Iterator[None]:
    """Show `tracker` on stderr meanwhile: as a bar, or as a line every ten seconds."""
    ended = threading.Event()
    target = _draw if bar else _write_lines
    thread = threading.Thread(target=target, args=(tracker, name, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _draw(tracker: Tracker, name: str, ended: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    left = TextColumn("{task.fields[left]}")
    with Bar(*columns, TransferSpeedColumn(), left, console=Console(stderr=True)) as bars:
        task = bars.add_task(name, total=None, left="")
        while True:
            last = ended.wait(_BAR_SECONDS)
            progress = tracker.read()
            bars.update(
                task,
                completed=progress.bytes,
                total=progress.total_bytes or None,
                description=f"{name} {progress.phase.value}",
                left=_left(progress),
            )
            if last:
                return


def _write_lines(tracker: Tracker, name: str, ended: threading.Event) -> None:
    while not ended.wait(_LINE_SECONDS):
        progress = tracker.read()
        line = f"{name}: {progress.phase.value}"
        if progress.phase is DownloadPhase.DOWNLOADING:
            line += f" {format_bytes(progress.bytes)} of {format_bytes(progress.total_bytes)}"
        print(line, _left(progress), file=sys.stderr, flush=True)


def _left(progress: Progress) -> str:
    if progress.eta_seconds is None or progress.phase is not DownloadPhase.DOWNLOADING:
        return ""
    minutes, seconds = divmod(progress.eta_seconds, 60)
    return f"{minutes}:{seconds:02} left"
