"""An engine that is faulty in one way: python bad_engine.py --port 9000 --mode half_body

It is ready, and answers every POST so:

- ok: {"size": bytes of the body}
- 500: status 500
- half_body: a length, and half of it
- bad_framing: the head of a stream, then no chunk of HTTP
- garbage_events: a stream of events that mean nothing, cut off
- dribble: a byte of its answer a second
- poison: as ok, but a body with `poison` in it ends the process
- events: a stream that never ends, an event a millisecond; GET /left says when each of them was
  left, by the monotonic clock
"""

import argparse
import asyncio
import json
import os
import time
from contextlib import suppress

LEFT: list[float] = []
SERVED = ["sim"]
"""The one name under which it serves."""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mode: str) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        while not writer.is_closing():
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET "):
                answer(writer, get(head.split(b" ", 2)[1].decode()))
                if b"\r\nconnection: close" in head.lower():
                    break
                continue
            lines = head.lower().split(b"\r\n")
            [length] = [line for line in lines if line.startswith(b"content-length: ")]
            body = await reader.readexactly(int(length.split(b": ")[1]))
            await post(writer, reader, mode, body)
    writer.close()


def get(path: str) -> object:
    if path == "/left":
        return LEFT
    return {"data": [{"id": SERVED[0], "root": SERVED[0], "max_model_len": 4096}]}


async def post(
    writer: asyncio.StreamWriter, reader: asyncio.StreamReader, mode: str, body: bytes
) -> None:
    if mode == "poison" and b"poison" in body:
        os._exit(1)
    if mode in ("ok", "poison"):
        answer(writer, {"size": len(body)})
    elif mode == "500":
        answer(writer, {"error": {"message": "broken"}}, b"500 Internal Server Error")
    elif mode == "half_body":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 50)
        await writer.drain()
        writer.transport.abort()
    elif mode == "dribble":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(1)
    else:
        await stream(writer, reader, mode)


async def stream(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, mode: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
    if mode == "bad_framing":
        # In a read of their own: whoever passes on the head by itself has answered by then.
        await asyncio.sleep(0.005)
        writer.write(b"zz\r\nno chunk\r\n")
    elif mode == "garbage_events":
        writer.write(b"14\r\ndata: \xff\xfe{[}\x00\r\n\r\n..\r\n")
    else:
        left = asyncio.ensure_future(reader.read())
        while not left.done():
            writer.write(b"9\r\ndata: 1\n\n\r\n")
            await asyncio.wait({left}, timeout=0.001)
        LEFT.append(time.monotonic())
    await writer.drain()
    writer.transport.abort()


def answer(writer: asyncio.StreamWriter, content: object, status: bytes = b"200 OK") -> None:
    body = json.dumps(content).encode()
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % (status, len(body)) + body)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--served-model-name", default=SERVED[0])
    options = parser.parse_args()
    SERVED[0] = options.served_model_name
    server = await asyncio.start_server(
        lambda reader, writer: serve(reader, writer, options.mode),
        *("127.0.0.1", options.port),
        limit=1 << 20,
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
