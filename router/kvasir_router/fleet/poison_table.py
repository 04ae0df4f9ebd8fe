"""Requests that ended engines: their like is refused for a while."""

import time
from collections.abc import Callable
from hashlib import blake2b

MAX_BODIES = 1024
"""More different ones within the time push the oldest out."""


class PoisonTable:
    """Hashes of bodies that were in flight at two engine deaths, each for `seconds`."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[bytes, float] = {}
        self.added: Callable[[bytes], None] = lambda digest: None
        """Told the digest of each body that `add` was called with."""

    def add(self, body: bytes) -> None:
        """Refuse this body from now on, for as long as the table says."""
        digest = _digest(body)
        self.add_digest(digest)
        self.added(digest)

    def add_digest(self, key: bytes) -> None:
        """The same for a body of which only the digest is known."""
        self._until.pop(key, None)
        while len(self._until) >= MAX_BODIES:
            del self._until[next(iter(self._until))]
        self._until[key] = self._clock() + self._seconds

    def holds(self, body: bytes) -> bool:
        """Return True if the body is to be refused. Costs nothing while none is."""
        if not self._until:
            return False
        key = _digest(body)
        until = self._until.get(key)
        if until is None:
            return False
        if until > self._clock():
            return True
        del self._until[key]
        return False

    def __len__(self) -> int:
        return len(self._until)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
