"""Bodies that are small to send and large to read: python bombs.py PORT MODEL BYTES

Compressed, nested, dense, in many parts, one after the other. A process of its own, since making
them takes a core. Prints JSON: statuses of the compressed ones; beginnings and statuses of the
others.
"""

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import Iterator

MIB = 1 << 20
_COMPLETIONS = b"POST /v1/completions HTTP/1.1"
_CHAT = b"POST /v1/chat/completions HTTP/1.1"


def compressed() -> Iterator[bytes]:
    """Requests of 64 MiB of one character, compressed: each is to be refused with 415."""
    text = b'{"model": "m", "prompt": "%b"}' % (b"x" * (64 * MIB))
    raw = zlib.compressobj(wbits=-15)
    bodies = {
        b"gzip": gzip.compress(text, 1),
        b"x-gzip": gzip.compress(text, 1),
        b"deflate": raw.compress(text) + raw.flush(),
        b"gzip, gzip": gzip.compress(gzip.compress(text, 1), 1),
        b"br": b"\x8b\x02\x80" * 99,
        b"zstd": b"\x28\xb5\x2f\xfd" * 99,
    }
    for coding, body in bodies.items():
        yield request(_COMPLETIONS, body, b"Content-Encoding: " + coding)


def nested(model: str, size: int) -> Iterator[bytes]:
    """Requests of `size` bytes that hold many values, or values in values."""
    name = model.encode()

    def chat(messages: bytes) -> bytes:
        return request(_CHAT, b'{"model":"%b","messages":[%b]}' % (name, messages))

    for unit in (b"{}", b"[]", b'""', b"7", b'{"a":0}', b"[" * 400 + b"]" * 400, b"1e5", b"null"):
        yield chat(b",".join([unit] * (size // (len(unit) + 1))))
    yield chat(b"[" * size)
    yield chat(b'{"a":' * (size // 5))
    yield chat(b"[" * (size // 2) + b"]" * (size // 2))
    yield chat(b"1" * size)
    yield chat(b'{"role":"user","content":"%b"}' % (b"\\u0000" * (size // 6)))
    yield chat(b'{"role":"user","content":[%b]}' % b",".join([b"{}"] * (size // 3)))
    yield request(_CHAT, b'{"model":"%b"%b}' % (name, b',"model":"x"' * (size // 12)))
    keys = b"".join(b',"k%d":0' % at for at in range(size // 12))
    yield request(_CHAT, b'{"model":"%b"%b}' % (name, keys))


def framed(model: str) -> Iterator[bytes]:
    """Requests with far more framing than content."""
    body = b'{"model":"%b","prompt":"%b"}' % (model.encode(), b"x" * 200_000)
    chunks = b"".join(b"1;%b\r\n%c\r\n" % (b"e" * 99, byte) for byte in body)
    yield b"%b\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (_COMPLETIONS, chunks)
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' for _ in range(99_999)
    )
    yield request(
        b"POST /v1/audio/transcriptions HTTP/1.1",
        parts + b"--x--\r\n",
        b"Content-Type: multipart/form-data; boundary=x",
    )
    headers = b"\r\n".join(b"x-%d: y" % at for at in range(50_000))
    yield request(_COMPLETIONS, body, headers)
    yield request(b"POST /v1/completions?%b HTTP/1.1" % (b"q" * MIB), body)


def request(first: bytes, body: bytes, *lines: bytes) -> bytes:
    """Return a request that ends its connection."""
    head = (first, b"Host: a", b"Connection: close", b"Content-Length: %d" % len(body), *lines)
    return b"\r\n".join((*head, b"", body))


async def status(port: int, request: bytes) -> int:
    """Send a request, however large; the status of its answer, 0 if it was cut off, 599 if there
    was none in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.ensure_future(reader.read(1 << 16))
    try:
        async with asyncio.timeout(60):
            for at in range(0, len(request), MIB):
                if reading.done():
                    break
                writer.write(request[at : at + MIB])
                await writer.drain()
            head = await reading
        return int(head.split(b" ", 2)[1]) if head else 0
    except TimeoutError:
        return 599
    except OSError:
        head = reading.result() if reading.done() and not reading.exception() else b""
        return int(head.split(b" ", 2)[1]) if head else 0
    finally:
        writer.transport.abort()


async def main(port: int, model: str, size: int) -> None:
    squeezed = [await status(port, each) for each in compressed()]
    dense = [
        (repr(each[:160]), await status(port, each))
        for bodies in (nested(model, size), framed(model))
        for each in bodies
    ]
    print(json.dumps({"compressed": squeezed, "dense": dense}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
