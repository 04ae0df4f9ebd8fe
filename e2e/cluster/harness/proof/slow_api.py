"""The API server, but what watches say comes late: shows what the readiness gate is good for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from harness.control_plane import ControlPlane
from harness.streams import MAX_HEAD, Stream, connection, serving


@asynccontextmanager
async def slow_api(plane: ControlPlane, delay: float) -> AsyncIterator[int]:
    """A TLS server on the control plane's address; gives its port.

    It passes requests on as they are; what watches answer comes `delay` seconds late. Certificates
    are the cluster's own, so a pod needs nothing but another KUBERNETES_SERVICE_HOST and _PORT.
    """
    plane.authority.issue("slow-api", "/CN=slow-api", [f"IP:{plane.host}"])
    pki = plane.authority.path
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(pki("slow-api.crt"), pki("slow-api.key"))
    client_side = ssl.create_default_context(cafile=str(plane.authority.certificate))
    port = int(plane.url.rpartition(":")[2])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            async with connection(plane.host, port, client_side) as upstream:
                await _pass_on((reader, writer), upstream, delay)

    async with serving(serve, plane.host, server_side) as own:
        yield own


async def _pass_on(client: Stream, upstream: Stream, delay: float) -> None:
    """Both directions of one connection, until one of them ends."""
    state = {"watch": False}
    tasks = {
        asyncio.create_task(_requests(client[0], upstream[1], state)),
        asyncio.create_task(_answers(upstream[0], client[1], state, delay)),
    }
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: dict[str, bool]
) -> None:
    while data := await reader.read(MAX_HEAD):
        # A watch is the last request of its connection, and its line comes in one piece.
        state["watch"] = b"watch=" in data.split(b"\r\n", 1)[0]
        writer.write(data)
        await writer.drain()


async def _answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: dict[str, bool], delay: float
) -> None:
    """Each piece is written when it is due, while the next ones are read."""
    due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def write() -> None:
        while True:
            when, data = await due.get()
            await asyncio.sleep(when - loop.time())
            writer.write(data)
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        while data := await reader.read(MAX_HEAD):
            due.put_nowait((loop.time() + (delay if state["watch"] else 0.0), data))
    finally:
        writing.cancel()
