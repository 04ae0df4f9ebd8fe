"""Lines that several processes write to one pipe."""

import os
from select import PIPE_BUF


class WholeLines:
    """Write pieces of whole lines that are not longer than PIPE_BUF, if the lines are not: what
    the kernel puts into a pipe as one. A longer line may have another process's in it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes) -> None:
        """Write all of it. Raises OSError."""
        while data:
            end = len(data) if len(data) <= PIPE_BUF else data.rfind(b"\n", 0, PIPE_BUF) + 1
            data = data[os.write(self._fd, data[: end or PIPE_BUF]) :]

    def flush(self) -> None:
        """Nothing waits here."""
