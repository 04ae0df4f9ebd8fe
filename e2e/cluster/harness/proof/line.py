"""Line between pods and a store: as fast as a test wants, and remembers what was asked."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import suppress
from typing import Any

CHUNK = 16_384
_RANGE = re.compile(rb"\r\nrange: *bytes=([0-9]+)-", re.IGNORECASE)


class Line:
    """Listen on `host` for what `target`, a port of this machine, is asked."""

    def __init__(self, target: int, host: str) -> None:
        self.rate: float | None = None
        """Bytes a second of each connection; None = no limit."""
        self.reads = 0
        """Number of reads of the weights."""
        self.resumed_at: list[int] = []
        """Offsets at which reads of the weights began, other than their first byte."""
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        """Writers of all connections that there were."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, host, 0))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _end(self) -> None:
        # Not closed at once: that loses connections which are just being accepted.
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        while True:
            # Not closed: nobody reads what there is still for a pod that was killed.
            for writer in self._writers:
                writer.transport.abort()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if not tasks:
                break
            await asyncio.wait(tasks, timeout=0.1)
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        upstream = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers.append(upstream[1])
        both = {
            asyncio.create_task(self._ask(reader, upstream[1])),
            asyncio.create_task(self._answer(upstream[0], writer)),
        }
        try:
            with suppress(ConnectionError):
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            upstream[1].close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if data.startswith(b"GET ") and b"model.safetensors" in data.split(b"\r\n", 1)[0]:
                self.reads += 1
                if found := _RANGE.search(data):
                    self.resumed_at.append(int(found[1]))
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self.rate is not None:
                await asyncio.sleep(len(data) / self.rate)
            writer.write(data)
            await writer.drain()
