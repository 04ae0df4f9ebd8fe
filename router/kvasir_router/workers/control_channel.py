"""Words of the supervisor and its children: single letters over a socket pair."""

import asyncio
import signal
import socket
from contextlib import suppress

READY = b"r"
"""From a child: it serves."""
LEAVING = b"l"
"""From a worker: it was asked to end; another one may begin."""
TAKEN_OVER = b"o"
"""To a worker that leaves: the other one serves."""
GO = b"g"
"""To a worker: the whole router stops. To the index process: say that it does."""
END = b"e"
"""To the index process: the workers are gone."""
TERM = b"t"
"""A child's word to itself: it was sent SIGTERM."""


class Control:
    """A child's end."""

    def __init__(self, sock: socket.socket, listener: socket.socket) -> None:
        """`listener`: the bound socket of a worker, or the admin port's."""
        sock.setblocking(False)
        self._sock = sock
        self.listener = listener
        self._words: asyncio.Queue[bytes] = asyncio.Queue()

    def attach(self) -> None:
        """Begin to hear, in the running loop. SIGINT is the supervisor's alone: a terminal sends it
        to all."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._words.put_nowait, TERM)
        loop.add_reader(self._sock, self._hear)

    async def word(self) -> bytes:
        """The next one said."""
        return await self._words.get()

    def say(self, word: bytes) -> None:
        """To the supervisor."""
        with suppress(OSError):
            self._sock.send(word)

    def _hear(self) -> None:
        try:
            data = self._sock.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._sock)
        for letter in data:
            self._words.put_nowait(bytes([letter]))
