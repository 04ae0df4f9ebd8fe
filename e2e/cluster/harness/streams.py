"""Connections and servers of asyncio that are gone when their block ends, whatever happens in it.

A loop that ends over an open connection leaves it to the garbage collector, which warns of it in
the middle of another test.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

MAX_HEAD = 64 * 1024
"""Most bytes that `readuntil` finds its end in."""


@asynccontextmanager
async def connection(
    host: str, port: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[Stream]:
    """A connection, reset at the end. Raises OSError."""
    opening = asyncio.ensure_future(asyncio.open_connection(host, port, ssl=context))
    try:
        # asyncio loses a connection whose opening is cancelled just before or after the handshake
        stream = await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(OSError):
            await reset((await opening)[1])
        raise
    try:
        yield stream
    finally:
        await reset(stream[1])


@asynccontextmanager
async def serving(
    handle: Handler, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """A server whose connections `handle` serves, each closed when it returns; gives its port.

    At the end what still runs of `handle` is cancelled, and all connections are reset.
    """
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):  # the other side left
            await handle(reader, writer)
            writer.close()
            await writer.wait_closed()

    def ended(task: asyncio.Task[None]) -> None:
        # Here rather than in the task, which is cancelled before it begins, too
        serving.pop(task).transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        serving[task] = writer
        task.add_done_callback(ended)

    server = await asyncio.start_server(accept, host, 0, ssl=context, limit=MAX_HEAD)
    async with server:
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            writers = list(serving.values())
            for task in list(serving):
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            for writer in writers:
                await reset(writer)


async def reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection and wait until its socket is closed."""
    writer.transport.abort()
    await asyncio.sleep(0)  # asyncio closes it in the loop's next turn
