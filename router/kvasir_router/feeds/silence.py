"""Detect sources that have sent nothing for too long."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Source = TypeVar("Source", bound=Hashable)


class SilenceWatch(Generic[Source]):
    """Sources that speak at least every so often. It reads no clock: `look` is to be called about
    every `tick` seconds.

    When `look` itself comes late, it was this process that stood still; then nobody's silence of
    that time is held against them.
    """

    def __init__(self, limit: float, tick: float) -> None:
        """`limit`: seconds without a word that are silence."""
        self._limit = limit
        self._late = 2 * tick
        self._heard: dict[Source, float] = {}
        self._looked: float | None = None

    def heard(self, source: Source, now: float) -> None:
        """Note that the source spoke; from now on it is watched."""
        self._heard[source] = now

    def forget_source(self, source: Source) -> None:
        """Watch the source no more: it is not expected to speak."""
        self._heard.pop(source, None)

    def expired(self, now: float) -> list[Source]:
        """Return the sources that have fallen silent; each is named once, and watched again when it
        speaks."""
        looked, self._looked = self._looked, now
        if looked is not None and now - looked > self._late:
            self._heard = dict.fromkeys(self._heard, now)
            return []
        silent = [source for source, at in self._heard.items() if now - at > self._limit]
        for source in silent:
            del self._heard[source]
        return silent
