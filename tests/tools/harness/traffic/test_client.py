"""Only the right answer counts: everything a broken server may do is a failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from harness.streams import serving
from harness.traffic.client import Client
from harness.traffic.plan import Question

QUESTION = Question("Sort: 3 1", 2)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
GOOD = HEAD + chunk(event("1 ")) + chunk(b": comment\n\n" + event("3")) + chunk(DONE)
CASES = {
    "right": (GOOD + chunk(b""), None),
    "wrong text": (HEAD + chunk(event("1 4") + DONE) + chunk(b""), "wrong text"),
    "no [DONE]": (HEAD + chunk(event("1 3")) + chunk(b""), "no [DONE]"),
    "cut": (GOOD[:-30], "Payload"),
    "after [DONE]": (GOOD + chunk(event("!")) + chunk(b""), "after [DONE]"),
    "error event": (
        HEAD + chunk(b'data: {"error": {"message": "gone"}}\n\n') + chunk(b""),
        "error event",
    ),
    "status": (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "status 503: busy"),
    "nothing": (b"", "Disconnected"),
}


@asynccontextmanager
async def server(answer: bytes | None) -> AsyncIterator[str]:
    """A server that gives `answer` to one request and closes the connection; None = never."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(4096)
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)

    async with serving(serve) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("case", CASES)
async def test_a_stream_is_judged(case: str) -> None:
    answer, failure = CASES[case]
    silences: list[float] = []
    async with server(answer) as url, aiohttp.ClientSession() as session:
        client = Client(session, "m", None, 10, silences.append)
        outcome = await client.ask(url, QUESTION, "stream", "1 3")
    if failure is None:
        assert outcome.failure is None
        assert len(silences) == GOOD.count(b"\n\n") * 2  # a line, and the empty one after it
    else:
        assert failure in (outcome.failure or "")


async def test_an_answer_that_never_ends_is_a_failure() -> None:
    async with server(None) as url, aiohttp.ClientSession() as session:
        client = Client(session, "m", None, 0.2, lambda seconds: None)
        outcome = await client.ask(url, QUESTION, "unary", "1 3")
    assert "no end within" in (outcome.failure or "")
