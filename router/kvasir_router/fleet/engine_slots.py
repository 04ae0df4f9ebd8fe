"""Learn how many requests an engine runs at once from its load reports.

An engine's own queue is first come, first served, and a request in it cannot go elsewhere any more.
So no more than a few wait there: enough that a place which becomes free is taken at once.
"""

from math import inf


class EngineSlots:
    """An engine that keeps requests waiting while it starts no more of them is full: what it runs
    then is what it can. `spare` more may wait in it; 0 = without bound.

    It is asked with the number of requests that this router has `in_flight` there, so that a
    request's coming and going costs nothing here.
    """

    __slots__ = ("_others", "_running", "_spare", "_waiting", "count")

    def __init__(self, spare: int) -> None:
        self.count = 0
        """Requests the engine runs at once; 0 = not known, and so no bound."""
        self._spare = spare
        self._running = 0
        self._waiting = 0
        self._others = 0
        """Requests in it at the last report that were not this router's."""

    def taken(self, in_flight: int) -> int:
        """Requests in it, as far as known: what it said and what came since; but never less than
        this router has there, some of which may not have got to where it counts."""
        return in_flight + max(self._others, 0)

    @property
    def bound(self) -> float:
        """Requests of this router in flight that fill it: a further one would only wait there."""
        if not self.count or not self._spare:
            return inf
        return self.count + self._spare - max(self._others, 0)

    def reported(self, running: int, waiting: int, in_flight: int) -> None:
        """The engine spoke. One report of waiting requests says little: each waits for the next
        step. A bound that is too low is found out by those who wait beyond it, and run."""
        if waiting and self._waiting and running <= self._running:
            self.count = max(self._running, 1)
        elif self.count:
            self.count = max(self.count, running)
        self._running, self._waiting = running, waiting
        self._others = running + waiting - in_flight
