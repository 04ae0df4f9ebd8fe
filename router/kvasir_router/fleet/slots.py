"""How many requests an engine runs at once, learned from its reports, so that the others wait here.

An engine's own queue is first come, first served, and a request in it cannot go elsewhere any more.
So no more than a few wait there: enough that a place which becomes free is taken at once.
"""


class Slots:
    """An engine that keeps requests waiting while it starts no more of them is full: what it runs
    then is what it can. `spare` more may wait in it; 0 = without bound."""

    __slots__ = ("_net", "_own", "_running", "_slots", "_spare", "_waiting")

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._slots = 0
        """0 = not known, and so no bound."""
        self._running = 0
        self._waiting = 0
        self._own = 0
        self._net = 0
        """Requests sent less those ended since the last report."""

    @property
    def count(self) -> int:
        """Requests the engine runs at once; 0 = not known."""
        return self._slots

    @property
    def taken(self) -> int:
        """Requests in it, as far as known: what it said and what came since; but never less than
        this router has there, some of which may not have got to where it counts."""
        return max(self._own, self._running + self._waiting + self._net)

    @property
    def full(self) -> bool:
        """Whether a further request would only wait in the engine."""
        if not self._slots or not self._spare:
            return False
        return self.taken >= self._slots + self._spare

    def sent(self) -> None:
        """A request goes to the engine."""
        self._own += 1
        self._net += 1

    def ended(self) -> None:
        """A request has left it."""
        self._own -= 1
        self._net -= 1

    def reported(self, running: int, waiting: int) -> None:
        """The engine spoke. One report of waiting requests says little: each waits for the next
        step. A bound that is too low is found out by those who wait beyond it, and run."""
        if waiting and self._waiting and running <= self._running:
            self._slots = max(self._running, 1)
        elif self._slots:
            self._slots = max(self._slots, running)
        self._running, self._waiting, self._net = running, waiting, 0
