from __future__ import annotations

import asyncio

import pytest

from harness.streams import serving
from kvasir.cli.local.probe import is_ready


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1\r\n", False),
        (b"", False),
        (b"x" * 200_000, False),
    ],
)
async def test_only_200_is_ready(answer: bytes, ready: bool) -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)

    async with serving(serve) as port:
        assert await is_ready(f"http://127.0.0.1:{port}/ready") is ready
    assert requests[0].startswith(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_nobody_listens(free_port: int) -> None:
    assert not await is_ready(f"http://127.0.0.1:{free_port}/ready")
