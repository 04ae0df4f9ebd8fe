"""Requests that ended engines: their like is refused for a while."""

import time
from collections.abc import Callable
from hashlib import blake2b

_END = 128 * 1024
_SAMPLES, _SAMPLE = 64, 4 * 1024

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
    """Return what a body is known by: of a long one its length, both ends and samples between them,
    since 60 MiB would take 60 ms."""
    size = len(body)
    if size <= 2 * _END:
        return blake2b(body, digest_size=16).digest()
    made = blake2b(b"%d" % size, digest_size=16, person=b"long")
    made.update(body[:_END])
    for at in range(_END, size - _END, max(size // _SAMPLES, _SAMPLE)):
        made.update(body[at : at + _SAMPLE])
    made.update(body[size - _END :])
    return made.digest()
