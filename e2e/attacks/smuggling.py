"""Request smuggling: requests that two servers may read differently, with a second one hidden.

Every spelling is sent to a strict and to a lenient backend. Neither may ever see the hidden
request, and no client may get two answers.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import product

from faults.processes import get

HIDDEN = b"/score?hidden"
PATH = b"/v1/audio/transcriptions"
_FORM = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
    b"\r\n\r\n\r\n%b\r\n--x--\r\n"
)
_AT_ONCE = 64
_ANSWER_SECONDS = 0.3
"""Time in which backends answer: nothing tells that no second answer comes."""

_CHUNKED = (
    *(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding\t: chunked",
    ),
    *(
        b"Transfer-Encoding:\tchunked",
        b"Transfer-Encoding: \x0bchunked",
        b" Transfer-Encoding: chunked",
    ),
    *(
        b"Transfer-Encoding: chunked\x00",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunke",
    ),
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    *(
        b'Transfer-Encoding: "chunked"',
        b"Transfer-Encoding: 'chunked'",
        b"Transfer-Encoding: CHUNKED",
    ),
    *(
        b"Transfer-Encoding:\r\n chunked",
        b"Transfer-Encoding: x\r\n chunked",
        b"X: y\nTransfer-Encoding: chunked",
    ),
    *(
        b"X: y\rTransfer-Encoding: chunked",
        b"Transfer_Encoding: chunked",
        b"Transfer-Encoding;: chunked",
    ),
    *(
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer\xad-Encoding: chunked",
    ),
    *(
        b"Transfer-Encoding: chunked;q=1",
        b"\x00Transfer-Encoding: chunked",
        b"TE: chunked",
        b"X-TE: y",
    ),
    b"Connection: transfer-encoding\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding:chunked",
)
_PLAIN = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding:chunked",
    b"Transfer-Encoding: CHUNKED",
    b"Connection: transfer-encoding\r\nTransfer-Encoding: chunked",
)
_LENGTH = (
    *(
        b"Content-Length: %d",
        b"Content-Length : %d",
        b"Content-Length: +%d",
        b"Content-Length: %d, %d",
    ),
    b"Content-Length: %d\r\nContent-Length: %d",
    b"Content-Length: 0\r\nContent-Length: %d",
    b"Content-Length: %d\r\nContent-Length: 0",
    b"Content-Length: 0%d",
    b"Content-Length: %dx",
    *(
        b"Content-Length: -%d",
        b"Content-Length: 0x%d",
        b"Content-Length: %d\x00",
        b"Content_Length: %d",
    ),
    *(
        b" Content-Length: %d",
        b"X: y\nContent-Length: %d",
        b"Content-Length:\r\n %d",
        b"Content-Length: %d %d",
    ),
    b"Content-Length: 99999999999999999%d",
    b"Content-Length: %d\r\nConnection: content-length",
    b"Content-Length:\xa0%d",
)
_CHUNKS = (
    b"%x\r\n%b\r\n0\r\n\r\n",
    b"%x;a=b\r\n%b\r\n0\r\n\r\n",
    b"%x;a=b\n%b\r\n0\r\n\r\n",
    b"%x;%%b\r\n%b\r\n0\r\n\r\n",
    b"%x \r\n%b\r\n0\r\n\r\n",
    b" %x\r\n%b\r\n0\r\n\r\n",
    b"0x%x\r\n%b\r\n0\r\n\r\n",
    b"0%x\r\n%b\r\n0\r\n\r\n",
    b"+%x\r\n%b\r\n0\r\n\r\n",
    b"%x\n%b\n0\n\n",
    b"%x\r\n%bX\r\n0\r\n\r\n",
    b"%x\r\n%b\r\n0\r\nContent-Length: 0\r\n\r\n",
    b"%x\r\n%b\r\n0\r\n",
    b"%x\r\n%b\r\n00000000000000000\r\n\r\n",
    b"1000000000000000%x\r\n%b\r\n0\r\n\r\n",
    b"%x\r\n%b\r\n-1\r\n\r\n",
)
_FIRST = (
    b"POST %b HTTP/1.1",
    b"POST http://b%b HTTP/1.1",
    b"POST %b HTTP/1.0",
    b"POST %b HTTP/0.9",
    b"CONNECT %b HTTP/1.1",
    b"POST  %b HTTP/1.1",
    b"POST %b  HTTP/1.1",
    b"POST %b HTTP/1.1 ",
    *(
        b"POST %b?\r\n HTTP/1.1",
        b"POST %b HTTP/1.1\x00",
        b"POST\t%b\tHTTP/1.1",
        b"post %b HTTP/1.1",
    ),
    b"\r\nPOST %b HTTP/1.1",
    b"POST %b HTTP/2.0",
    b"GET %b HTTP/1.1",
    b"POST %b\x00 HTTP/1.1",
    *(
        b"POST /..%b HTTP/1.1",
        b"POST /v1/..%%2f%b HTTP/1.1",
        b"POST %b#x HTTP/1.1",
        b"PRI * HTTP/2.0",
    ),
    b"POST %b",
    b"POST %b HTTP/1.1\nX: y",
    b"TRACE %b HTTP/1.1",
    b"POST %b;x=/ HTTP/1.1",
)
_UPGRADES = (
    *(
        b"Connection: Upgrade\r\nUpgrade: websocket",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c",
    ),
    *(
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"Expect: 200-ok",
        b"Connection: close, te\r\nTE: trailers",
    ),
    b"Connection: host",
    b"Host: b",
    b"X-HTTP-Method-Override: GET",
    b"X-Original-URL: /hidden",
)
_ENDS = (b"\r\n\r\n", b"\n\n", b"\r\n\n", b"\n\r\n", b"\r\r\n\r\n", b"\r\n\x00\r\n\r\n")


def corpus(model: str) -> list[bytes]:
    """Return what connections send. None of it is two whole requests in order: a second one that is
    seen was hidden in the first."""
    return list(dict.fromkeys(_spellings(model)))


def _spellings(model: str) -> Iterator[bytes]:
    asked = b'{"model": "%b", "prompt": "p"}' % model.encode()
    hidden = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
        *(HIDDEN, len(asked)),
        asked,
    )
    # A form may hold any bytes, so it is sent on; what is behind its end belongs to it.
    body = _FORM % (model.encode(), hidden)
    first = b"POST %b HTTP/1.1" % PATH
    inside = len(body) + len(hidden)
    for chunked, length in product(_CHUNKED, (None, *_LENGTH[:5])):
        # Read by its length, the hidden request is body; read by its chunks, it comes after them,
        # or the other way around.
        for content in (
            b"0\r\n\r\n" + hidden,
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + hidden,
        ):
            lines = [chunked]
            if length is not None:
                lines.insert(0, _filled(length, len(content)))
            elif chunked in _PLAIN:
                continue  # two requests in order
            yield _request(first, lines, content)
            if length is not None:
                yield _request(first, lines[::-1], content)
    for length in _LENGTH[1:]:
        yield _request(first, [_filled(length, inside)], body + hidden)
        yield _request(first, [b"Content-Length: %d" % inside, b"X: y"], body + hidden)
    for chunks in _CHUNKS[1:]:
        data = chunks.replace(b"%%", b"\0").replace(b"%x", b"%x" % inside)
        data = data.replace(b"%b", body + hidden).replace(b"\0", b"%")
        yield _request(first, [b"Transfer-Encoding: chunked"], data)
    for start in _FIRST:
        line = start % PATH if b"%b" in start else start
        yield _request(line, [b"Content-Length: %d" % inside], body + hidden)
    for upgrade in _UPGRADES:
        yield _request(first, [upgrade, b"Content-Length: %d" % inside], body + hidden)
    for end in _ENDS:
        yield _request(first, [b"Content-Length: %d" % inside], body + hidden, end)
        yield _request(first, [b"Content-Length: %d" % inside, b"X: " + end + hidden], body)


def _filled(line: bytes, length: int) -> bytes:
    return line.replace(b"%d", b"%d" % length)


def _request(first: bytes, lines: list[bytes], content: bytes, end: bytes = b"\r\n\r\n") -> bytes:
    kind = b"Content-Type: multipart/form-data; boundary=x"
    return b"\r\n".join((first, b"Host: a", kind, *lines)) + end + content


async def attack(port: int, model: str) -> tuple[int, list[bytes]]:
    """Send it all, each twice: at once, and in three pieces. Return how many were sent, and those
    that were answered twice."""
    requests, twice = corpus(model), []
    room = asyncio.Semaphore(_AT_ONCE)

    async def send(data: bytes, pieces: list[bytes]) -> None:
        async with room:
            if (await _send(port, pieces)).count(b"HTTP/1.1 200 ") > 1:
                twice.append(data)

    await asyncio.gather(
        *(send(data, [data]) for data in requests),
        *(send(data, [data[:40], data[40:90], data[90:]]) for data in requests),
    )
    return 2 * len(requests), twice


async def _send(port: int, pieces: list[bytes]) -> bytes:
    """Return what came back."""
    came = b""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                if len(pieces) > 1:
                    await asyncio.sleep(0.001)
            async with asyncio.timeout(_ANSWER_SECONDS):
                while part := await reader.read(1 << 16):
                    came += part
        finally:
            writer.transport.abort()
    return came


async def seen(port: int) -> dict[str, int]:
    """Return how many requests a backend has got, and how many of them were hidden."""
    return dict(json.loads(await get(port, "/seen")))
