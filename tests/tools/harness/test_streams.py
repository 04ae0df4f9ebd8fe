"""No connection is left open: what asyncio forgets is an error of whichever test comes next."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings
from pathlib import Path

import pytest

from harness.pki import Authority
from harness.streams import connection, serving


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's."""
    authority = Authority(Path(tmp_path_factory.mktemp("pki")))
    authority.create()
    authority.issue("server", "/CN=server", ["IP:127.0.0.1"])
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(authority.path("server.crt"), authority.path("server.key"))
    return server, ssl.create_default_context(cafile=str(authority.certificate))


async def test_what_is_sent_before_the_handler_returns_arrives() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 10_000_000)

    async with serving(answer) as port, connection("127.0.0.1", port) as (reader, _):
        assert len(await reader.read(-1)) == 10_000_000


async def test_a_handler_is_cancelled_and_its_connection_reset() -> None:
    cancelled = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(hang) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0)
    assert await reader.read(-1) == b""
    assert cancelled.is_set() or writer.transport.is_closing()
    writer.close()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_nothing_is_left_however_far_an_opening_was(
    secure: bool, steps: int, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server_side, client_side = contexts if secure else (None, None)

    async def relay() -> None:
        async with serving(echo, context=server_side) as inner:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                async with connection("127.0.0.1", inner, client_side) as (answers, onward):
                    onward.write(await reader.read(1000))
                    writer.write(await answers.read(1000))

            async with serving(serve) as port, connection("127.0.0.1", port) as (_, writer):
                writer.write(b"hello")
                for _ in range(steps):
                    await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(relay())
        gc.collect()
    assert [str(each.message) for each in caught] == []
