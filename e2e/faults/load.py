"""Clients that count what they lose."""

import asyncio
import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from faults.processes import MODEL

_LIMIT = 1 << 22


@dataclass(slots=True)
class Answer:
    """Answer as its client got it."""

    begun: float
    ended: float = 0.0
    status: int = 0
    """0 = the connection ended before an answer."""
    headers: bytes = b""
    body: bytes = b""
    whole: bool = False

    @property
    def slow(self) -> bool:
        """True if it took far longer than engines of these faults do."""
        return self.ended - self.begun > 0.4

    @property
    def text(self) -> str:
        """Text of a completion, or of the events of one."""
        if b"data: " not in self.body:
            return str(json.loads(self.body)["choices"][0]["text"])
        datas = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        chunks = [json.loads(data) for data in datas if data != b"[DONE]"]
        return "".join(each["choices"][0]["text"] for each in chunks if each["choices"])

    @property
    def problem(self) -> str:
        """Status and error code of an answer that is not good."""
        code = re.search(rb'"code": ?"(\w+)"', self.body)
        return f"{self.status} {code[1].decode() if code else ''}".strip()

    @property
    def is_good(self) -> bool:
        """True if nothing of it is missing: a stream has its [DONE] and no error event."""
        if self.status != 200 or not self.whole:
            return False
        if b"event-stream" not in self.headers:
            return True
        return b"data: [DONE]" in self.body and b'data: {"error"' not in self.body


async def ask(port: int, body: bytes, *lines: str, path: str = "/v1/completions") -> Answer:
    """Send one request on a connection of its own, and return the answer; never raises."""
    answer = Answer(time.monotonic())
    writer: asyncio.StreamWriter | None = None
    with suppress(OSError, asyncio.IncompleteReadError, ValueError, asyncio.LimitOverrunError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LIMIT)
        more = "".join(f"{line}\r\n" for line in lines)
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        writer.write(head.encode() + body)
        await _read(reader, answer)
    answer.ended = time.monotonic()
    if writer is not None:
        writer.transport.abort()
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    answer.headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    answer.status = int(answer.headers.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" in answer.headers:
        while (size := int(await reader.readline(), 16)) > 0:
            answer.body += (await reader.readexactly(size + 2))[:-2]
    else:
        length = int(answer.headers.split(b"content-length: ")[1].split(b"\r\n")[0])
        answer.body = await reader.readexactly(length)
    answer.whole = True


def completion(number: int | str, *, model: str = MODEL, tokens: int = 8, **fields: Any) -> bytes:
    prompt = f"request {number} " + "word " * 40
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": 1}
    return json.dumps({**body, **fields}).encode()


@dataclass
class Load:
    """Clients that ask for one short answer after the other, every second one for a stream."""

    port: int
    clients: int
    model: str = MODEL
    lines: tuple[str, ...] = ()
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopping = False
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self.clients)]

    async def _run(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            stream = (number + turn) % 2 == 0
            body = completion(f"{number} {turn}", model=self.model, stream=stream)
            self.answers.append(await ask(self.port, body, *self.lines))

    async def stop(self) -> list[Answer]:
        """All answers, those under way too."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        return self.answers

    def rate(self, start: float, end: float) -> float:
        """Good answers a second in that time."""
        good = sum(start <= answer.ended < end and answer.is_good for answer in self.answers)
        return good / (end - start)

    def recovered(self, since: float, wanted: float) -> float | None:
        """Seconds until so many good answers a second came, over a second."""
        for tenth in range(100):
            start = since + tenth / 10
            if self.rate(start, start + 1) >= wanted:
                return tenth / 10
        return None
