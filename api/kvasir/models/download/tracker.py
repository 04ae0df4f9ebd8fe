"""Progress of the running download, reported by many threads and read by others."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from kvasir.models.download.progress import DownloadPhase, Progress

_WINDOW_SECONDS = 30.0
_SAMPLE_SECONDS = 0.5


class Tracker:
    """The current Progress; its rate is that of the last half minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._progress = Progress()
        self._samples: deque[tuple[float, int]] = deque()

    def begin(self, done: int, total: int) -> None:
        """`done` bytes of `total` are already here; the rest is downloaded."""
        with self._lock:
            self._progress = Progress(DownloadPhase.DOWNLOADING, done, total)
            self._samples.clear()
            self._samples.append((self._clock(), done))

    def add(self, count: int) -> None:
        """`count` bytes more are here; less, when a file begins anew."""
        with self._lock:
            done = self._progress.bytes + count
            self._progress = replace(self._progress, bytes=done)
            now = self._clock()
            if now - self._samples[-1][0] >= _SAMPLE_SECONDS:
                self._samples.append((now, done))
                while now - self._samples[0][0] > _WINDOW_SECONDS:
                    self._samples.popleft()

    def end(self, progress: Progress) -> None:
        """Current progress."""
        with self._lock:
            self._progress = progress

    def verify(self) -> None:
        """Note that all files are here and are being checked."""
        with self._lock:
            self._progress = replace(self._progress, phase=DownloadPhase.VERIFYING)

    def read(self) -> Progress:
        """The progress as of now, with the time that is left."""
        with self._lock:
            progress = self._progress
            if progress.phase is not DownloadPhase.DOWNLOADING or not self._samples:
                return progress
            (since, before), now = self._samples[0], self._clock()
        gained = progress.bytes - before
        if gained <= 0 or now <= since:
            return progress
        left = max(0, progress.total_bytes - progress.bytes)
        return replace(progress, eta_seconds=round(left * (now - since) / gained))
