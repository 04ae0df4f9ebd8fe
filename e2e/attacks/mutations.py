"""Mutated bodies: python mutations.py PORT MODEL SECONDS COUNT SEED

Sends real bodies of several routes, each mutated in its structure or its bytes, on eight
connections, for SECONDS or COUNT of them. Every one is to be answered, and none with a 5xx. Prints
JSON: how many were sent, statuses, and the first bodies that were answered otherwise.
"""

import asyncio
import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import uvloop

CONNECTIONS = 8
ANSWER_SECONDS = 30
MAX_BODY = 4096

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 2}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "logprobs": 2, "n": 2}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 1, "stop": ["x"], "seed": 1}),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "é😀"}, IMAGE]},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
            ],
            "tools": [TOOL],
            "tool_choice": "auto",
            "max_tokens": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 2,
            "temperature": 0.5,
            "logit_bias": {"5": 1},
            "user": "u",
        },
    ),
    ("/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 1, "cache_salt": "s"}),
    ("/tokenize", {"prompt": "Hello"}),
]
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 31,
    1 << 63,
    1 << 70,
    -(1 << 70),
    0.5,
    1e308,
    5e-324,
    "",
    "\0",
    "é",
    "\U0001f600",
    "x" * 999,
    "\\",
    '"',
    [],
    {},
    [[]],
    {"": None},
    [None],
    [0] * 99,
    "NaN",
    "__class__",
    {"$ref": "#"},
    ["a", 1, None],
    {"a": {"a": {"a": {"a": 1}}}},
]
RAW = (
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"01",
        b"\\ud800",
        b'"\\ud800"',
        b"\xff",
        b"\xed\xa0\x80",
        b"\0",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"//",
        b"1" * 400,
        b"\xef\xbb\xbf",
        b'"model":"x",',
    ),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return where a value may be replaced: each container with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in list(keys):
        if isinstance(value[key], (dict, list)):
            found += places(value[key])
    return found


def mutate_structure(body: dict[str, Any], draw: random.Random) -> bytes:
    """Change one to three values, names or places."""
    for _ in range(draw.randint(1, 3)):
        found = places(body)
        if not found:
            break
        where, key = draw.choice(found)
        what = draw.randrange(6)
        if what == 0:
            del where[key]
        elif what == 1:
            where[key] = [copy.deepcopy(where[key])] * draw.randint(0, 3)
        elif what == 2 and isinstance(where, dict):
            where[draw.choice([str(key).upper(), "", "model", "stream", "n"])] = where.pop(key)
        elif what == 3:
            other, name = draw.choice(found)
            where[key] = copy.deepcopy(other[name]) if _has(other, name) else None
        else:
            where[key] = copy.deepcopy(draw.choice(ODD))
    return json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def _has(where: Any, key: Any) -> bool:
    return key in where if isinstance(where, dict) else key < len(where)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Cut, double, insert or flip."""
    for _ in range(draw.randint(1, 3)):
        at, to = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        what = draw.randrange(4)
        if what == 0:
            data = data[:at] + data[to:]
        elif what == 1:
            data = data[:to] + data[at:]
        elif what == 2:
            data = data[:at] + draw.choice(RAW) + data[at:]
        elif data:
            at = draw.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        data = data or b" "
    return data[:MAX_BODY]


def make(model: str, draw: random.Random) -> tuple[str, bytes]:
    """Return a path and a body for it."""
    path, seed = draw.choice(SEEDS)
    body = copy.deepcopy({"model": model, **seed})
    if draw.random() < 0.6:
        return path, mutate_structure(body, draw)
    return path, mutate_bytes(json.dumps(body).encode(), draw)


class Sender:
    """One connection after the other, with one request after the other."""

    def __init__(self, port: int, model: str, draw: random.Random) -> None:
        self._port = port
        self._model = model
        self._draw = draw
        self.statuses: Counter[int] = Counter()
        self.bad: list[str] = []

    async def run(self, goes_on: Callable[[], bool]) -> None:
        reader = writer = None
        while goes_on():
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self._port, limit=1 << 22
                )
            path, body = make(self._model, self._draw)
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    status, kept = await read_answer(reader)
            except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
                status, kept = 0, False
                self.bad.append(f"{type(error).__name__} {path} {body[:300]!r}")
            self.statuses[status] += 1
            if status >= 500:
                self.bad.append(f"{status} {path} {body[:300]!r}")
            if not kept:
                writer.transport.abort()
                reader = writer = None


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Return the status, and whether the connection can be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        while (size := int(await reader.readline(), 16)) > 0:
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    return int(head.split(b" ", 2)[1]), b"connection: close" not in head


async def main(port: int, model: str, seconds: float, count: int, seed: int) -> None:
    until, left = time.monotonic() + seconds, count

    def goes_on() -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and time.monotonic() < until

    senders = [Sender(port, model, random.Random(f"{seed} {at}")) for at in range(CONNECTIONS)]
    await asyncio.gather(*(sender.run(goes_on) for sender in senders))
    statuses = sum((sender.statuses for sender in senders), Counter[int]())
    bad = [each for sender in senders for each in sender.bad]
    print(json.dumps({"sent": statuses.total(), "statuses": statuses, "bad": bad[:5]}))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])))
