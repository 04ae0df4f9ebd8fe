"""Only a router that was just killed excuses a broken connection; nothing excuses an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from soaking.client import REROUTE_SECONDS, Client, Outcome, RouterKills
from soaking.questions import Answer, Question

from harness.streams import serving

STREAM = Question("stream", "/v1/completions", '{"max_tokens": 2}', stream=True)
UNARY = Question("unary", "/v1/completions", '{"max_tokens": 2}')
RIGHT = Answer(("1 3",), ("length",), (5, 2))
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}


def choice(text: str, end: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": end}


def event(**fields: Any) -> bytes:
    data = b"data: " + json.dumps(fields).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST, LAST = event(choices=[choice("1 ")]), event(choices=[choice("3", "length")])
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
GOOD = HEAD + FIRST + LAST + event(choices=[], usage=USAGE) + DONE
CUT = HEAD + FIRST


def unary(text: str = "1 3", **changes: Any) -> bytes:
    body = json.dumps({"choices": [choice(text, "length")], "usage": USAGE | changes}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[str]:
    """A server of one answer a connection, the last one again and again; each is then closed."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0) if len(left) > 1 else left[0])

    async with serving(serve) as port:
        yield f"http://127.0.0.1:{port}"


async def ask(
    *answers: bytes,
    question: Question = STREAM,
    killed: float | None = None,
    leave: int | None = None,
) -> Outcome:
    """Outcome of one question; `killed`: so many seconds ago a router was."""
    kills = RouterKills()
    if killed is not None:
        kills.note(time.monotonic() - killed)
    async with server(*answers) as url, aiohttp.ClientSession() as session:
        client = Client(session, kills, 0)
        return await client.ask(url, question, RIGHT, model="m", key="k", leave_after=leave)


async def test_the_right_answers_are_not_lost() -> None:
    for question, answer in ((STREAM, GOOD), (UNARY, unary())):
        outcome = await ask(answer, question=question)
        assert (outcome.failure, outcome.retries, outcome.left) == (None, 0, False)


@pytest.mark.parametrize("broken", [CUT, b"", HEAD + FIRST + b"0\r\n\r\n"])
async def test_a_broken_connection_is_a_loss(broken: bytes) -> None:
    assert (await ask(broken, GOOD)).failure is not None
    late = await ask(broken, GOOD, killed=REROUTE_SECONDS + 1)
    assert (late.failure is not None, late.retries) == (True, 0)


@pytest.mark.parametrize("broken", [CUT, b"", HEAD + FIRST + b"0\r\n\r\n"])
async def test_unless_a_router_was_just_killed(broken: bytes) -> None:
    outcome = await ask(broken, GOOD, killed=1)
    assert (outcome.failure, outcome.retries) == (None, 1)


@pytest.mark.parametrize(
    ("answer", "question", "said"),
    [
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", STREAM, "status 503: busy"),
        (HEAD + event(error={"message": "gone"}) + b"0\r\n\r\n", STREAM, "error event"),
        (GOOD.replace(b'"1 "', b'"1!"'), STREAM, "wrong text"),
        (GOOD.replace(b'"completion_tokens": 2', b'"completion_tokens": 1'), STREAM, "usage"),
        (HEAD + FIRST + LAST + DONE, STREAM, "no usage"),
        (GOOD.replace(b"HTTP/1.1", b"HTTP?1.1"), STREAM, "Bad status line"),
        (unary("1 4"), UNARY, "wrong text"),
        (unary(prompt_tokens=6), UNARY, "usage"),
        (unary().replace(b"choices", b"chances"), UNARY, "form"),
    ],
)
async def test_an_answer_that_is_not_the_right_one_is_a_loss_whatever_was_killed(
    answer: bytes, question: Question, said: str
) -> None:
    outcome = await ask(answer, question=question, killed=1)
    assert said in (outcome.failure or "")
    assert outcome.retries == 0


async def test_a_client_that_leaves_has_the_beginning() -> None:
    assert (await ask(CUT + event(choices=[choice("3")]) * 2, leave=1)).left
    wrong = await ask(CUT.replace(b'"1 "', b'"2 "'), leave=1)
    assert "wrong beginning" in (wrong.failure or "")
    assert (await ask(CUT, leave=5)).failure is not None
