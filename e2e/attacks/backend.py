"""A replica that says what it was sent: python backend.py PORT MODEL strict|lenient

`strict` reads requests with httptools; `lenient` as the most careless server would: bare line
feeds, folded headers, any spelling of `chunked` before any length. Both answer each request with
200, and GET /seen with how many they got, and how many of them by a target with `hidden` in it.
"""

import asyncio
import json
import re
import sys
from typing import cast

import httptools
import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
SEEN = {"count": 0, "hidden": 0}
MODEL = "m"


def reply(transport: asyncio.Transport, target: bytes) -> None:
    """Answer one request."""
    transport.write(answer(target))
    if target == b"/seen":
        transport.close()


def answer(target: bytes) -> bytes:
    """Note a request, and return its answer."""
    content: object = {}
    if target == b"/seen":
        content = SEEN
    elif target == b"/v1/models":
        content = {"data": [{"id": MODEL, "root": MODEL, "max_model_len": 4096}]}
    elif target not in (b"/ready", b"/health", b"/metrics"):
        SEEN["count"] += 1
        SEEN["hidden"] += b"hidden" in target
    data = json.dumps(content).encode()
    return ANSWER % (len(data), data)


class Strict(asyncio.Protocol):
    """Requests as httptools reads them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.transport.close()

    def on_message_begin(self) -> None:
        self.target = b""

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_message_complete(self) -> None:
        reply(self.transport, self.target)


class Lenient(asyncio.Protocol):
    """Requests as a server reads them that takes whatever it can make sense of."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.held = b""

    def data_received(self, data: bytes) -> None:
        self.held += data
        while (found := self._request()) is not None:
            target, self.held = found
            reply(self.transport, target)

    def _request(self) -> tuple[bytes, bytes] | None:
        """Return the target of the next whole request, and what follows it."""
        held = self.held.lstrip(b"\r\n")
        end = re.search(rb"\r?\n\r?\n", held)
        if end is None:
            return None
        head, rest = held[: end.start()], held[end.end() :]
        words = head.split(None, 2)
        target = words[1] if len(words) > 1 else b""
        if re.search(rb"transfer-encoding[^\n]*\n?[^\n]*chunked", head, re.IGNORECASE):
            read = self._chunks(rest)
            return None if read is None else (target, read)
        lengths = re.findall(rb"content-length[^\n:]*:[^\n\d]*(\d+)", head, re.IGNORECASE)
        length = int(lengths[0]) if lengths else 0
        return None if len(rest) < length else (target, rest[length:])

    @staticmethod
    def _chunks(rest: bytes) -> bytes | None:
        """Return what follows the last chunk."""
        while (line := re.match(rb"[^\n]*\n", rest)) is not None:
            digits = re.match(rb"[ \t]*(?:0x)?([0-9a-fA-F]*)", line[0])
            size = int((digits and digits[1]) or b"0", 16)
            rest = rest[line.end() :]
            if size == 0:
                return re.sub(rb"^\r?\n", b"", rest)
            if len(rest) < size:
                return None
            rest = re.sub(rb"^\r?\n", b"", rest[size:])
        return None


async def main(port: int, kind: str) -> None:
    loop = asyncio.get_running_loop()
    protocol = Lenient if kind == "lenient" else Strict
    server = await loop.create_server(protocol, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    MODEL = sys.argv[2]
    uvloop.run(main(int(sys.argv[1]), sys.argv[3]))
