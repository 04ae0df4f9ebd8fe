"""Turns of large reads: one connection has so much parsed before the others have theirs."""

from kvasir_router.wire.request_parser import RequestParser

TURN_BYTES = 16 * 1024
"""Bytes parsed. The rest of a body of known length costs nothing much and is not counted."""
_MAX_SCANNED = 64 * 1024
"""Bytes of bodies, which are scanned: asyncio reads on in one turn as long as more is there. It
reads up to 256 KiB at once, of which the densest take 2 ms; another's short request takes several
turns."""
_NOTHING = memoryview(b"")


class ReadTurn:
    """Bytes that were read, handed out a turn at a time."""

    def __init__(self, parser: RequestParser) -> None:
        self._parser = parser
        self._unread = _NOTHING
        self._budget = 0
        self._taken = 0

    @property
    def waits(self) -> bool:
        """Return whether something is left."""
        return len(self._unread) > 0

    @property
    def is_over(self) -> bool:
        """Return whether the others are to have their turn."""
        return len(self._unread) > 0 or self._taken > _MAX_SCANNED

    def add(self, data: bytes) -> None:
        """Something was read; all that was before has been handed out."""
        self._unread = memoryview(data)
        self._taken += len(data)
        self._budget = TURN_BYTES

    def begin(self) -> None:
        """Begin the next turn."""
        self._taken = 0
        self._budget = TURN_BYTES

    def drop(self) -> None:
        """Nobody wants the rest."""
        self._unread = _NOTHING

    def next_part(self) -> memoryview:
        """Return what is to be parsed next in this turn; nothing when it is over."""
        unread, missing = self._unread, self._parser.missing
        if not (self._budget or missing >= len(unread)):
            return _NOTHING
        size = max(missing, self._budget)
        if missing < size:
            self._budget = 0
        part, self._unread = unread[:size], unread[size:]
        return part
