"""Transcript of what the client of a stream has received, kept while the stream runs."""

_STEP = 64 * 1024


class TranscriptBudget:
    """Memory for all transcripts of a process, given out in steps of 64 KiB."""

    def __init__(self, stream_bytes: int, total_bytes: int) -> None:
        self.stream_bytes = stream_bytes
        """For one stream at most; 0 = none are kept."""
        self._total = total_bytes
        self.used = 0
        """Bytes given out."""

    def reserve_bytes(self, held: int) -> int:
        """The next step for a transcript that holds `held` bytes; 0 when there is none."""
        step = min(_STEP, self.stream_bytes - held)
        if step <= 0 or self.used + step > self._total:
            return 0
        self.used += step
        return step

    def release_bytes(self, size: int) -> None:
        self.used -= size


NO_BUDGET = TranscriptBudget(0, 0)
"""Budget of streams that cannot migrate: zero bytes."""


class Transcript:
    """The bytes of a stream, unparsed. Kept as they came, and joined once a step: many small
    objects would need far more memory than their bytes."""

    __slots__ = ("_blocks", "_held", "_parts", "_room", "_size")

    def __init__(self, room: TranscriptBudget) -> None:
        self._room = room
        self._blocks: list[bytes] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._held = 0

    def add(self, data: bytes) -> bool:
        """False when there is no room: nothing is kept any more."""
        self._size += len(data)
        if self._size > self._held and not self._grow():
            return False
        self._parts.append(data)
        return True

    def content(self) -> bytes:
        """All of it."""
        return b"".join((*self._blocks, *self._parts))

    @property
    def empty(self) -> bool:
        return self._size == 0

    def close(self) -> None:
        """Give the memory back; safe to call twice."""
        self._blocks.clear()
        self._parts.clear()
        self._room.release_bytes(self._held)
        self._held = 0

    def _grow(self) -> bool:
        self._blocks.append(b"".join(self._parts))
        self._parts.clear()
        while self._size > self._held:
            step = self._room.reserve_bytes(self._held)
            if not step:
                self.close()
                return False
            self._held += step
        return True
