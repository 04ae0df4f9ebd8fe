"""Measure how long the largest bodies hold the router's event loop, and the cost of scanning them.

    python benchmarks/router_bodies.py [--save]

A router in this process, its client and its replica in others. Between two turns of the loop the
CPU time of this thread is read, so that what else the machine does is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop
import yaml
from common import Figure, Report, Table, warn_if_busy

from kvasir.cli.local.ports import free_ports
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.process.client_port import listen
from kvasir_router.process.single_process import RouterServer
from kvasir_router.wire.envelope import OUTLINED
from kvasir_router.wire.long_bodies.body_scan import BodyScan, build

MIB = 1 << 20
SIZE = 60 * MIB
PIECE = 64 * 1024
KEY = b"a-key"
GOAL = "<= 20"
REPEATS = 2

TEXT = b"The quick brown fox jumps over the lazy dog, and a few words more. "
CONTENTS = {
    "text": (b'"', TEXT, b'"'),
    "escapes": (b'"', b"\\n\\u00e9", b'"'),
    "empty objects": (b"[", b"{},", b"{}]"),
    "numbers": (b"[", b"0,", b"0]"),
    "one image": (
        b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,',
        b"iVBORw0K",
        b'"}}]',
    ),
}
"""Beginning of a message's content, what is repeated, and the end."""
FORM = "form"
BODIES = [*CONTENTS, FORM]


def body(name: str, model: str, size: int = SIZE) -> bytes:
    """Return a chat with one message of such a content."""
    first, again, last = CONTENTS[name]
    content = first + again * (size // len(again)) + last
    return b'{"messages":[{"role":"user","content":%b}],"model":"%b"}' % (content, model.encode())


def upload(model: str, size: int = SIZE) -> bytes:
    """Return a form with a file of zeros behind the model's name, so that renaming moves it."""
    part = b'--xyz\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    return part % (b"model", model.encode()) + part % (b"file", bytes(size)) + b"--xyz--\r\n"


async def replica(port: int) -> None:
    """Answer whatever comes, when it has come."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"content-length: " in head:
                    left = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                    while left:
                        left -= len(await reader.read(min(left, MIB)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


async def ask(port: int, name: str, model: str) -> None:
    """Send one body, and print the status of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path, content_type = "/v1/chat/completions", "application/json"
    if name == FORM:
        path, content_type = "/v1/audio/transcriptions", "multipart/form-data; boundary=xyz"
    data = upload(model) if name == FORM else body(name, model)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {content_type}\r\n"
    head += f"Authorization: Bearer {KEY.decode()}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode())
    writer.write(data)
    print(int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]))
    writer.transport.abort()


class Turns:
    """CPU time of the loop's turns, while they are watched."""

    def __init__(self) -> None:
        self._at = 0.0
        self.longest = 0.0
        """Seconds."""
        self.watches = False

    def begin(self) -> None:
        self.longest, self.watches = 0.0, True
        self._at = time.thread_time()
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._at)
        self._at = now
        if self.watches:
            asyncio.get_running_loop().call_soon(self._turn)


async def _child(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, *arguments), stdout=subprocess.PIPE
    )


@contextlib.asynccontextmanager
async def router(folder: Path) -> AsyncIterator[int]:
    """Run a router with keys, so that bodies are salted, and a canary, so that they are renamed."""
    [port] = free_ports(1)
    child = await _child("--replica", str(port))
    keys, config = folder / "keys.yaml", folder / "fleet.yaml"
    keys.write_bytes(dump_keys(KeyFile(keys=(ApiKey(id="a", hash=hash_key(KEY)),))))
    entry = {"id": "r", "url": f"http://127.0.0.1:{port}", "engine": "kvasir"}
    content = {
        "models": [{"name": "m", "replicas": [entry]}],
        "canaries": [{"name": "canary", "split": {"m": 100}}],
    }
    config.write_text(yaml.safe_dump(content))
    settings = RouterSettings(config=config, keys_file=keys, access_log=False, drain_timeout=0.1)
    with listen("127.0.0.1", 0, "") as sock, listen("127.0.0.1", 0, "") as admin_sock:
        served = sock.getsockname()[1]
        server = RouterServer(settings)
        await server.start(sock, admin_sock)
        while not server.gateway.ready:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
        try:
            yield served
        finally:
            await server.stop()
            child.kill()
            await child.wait()


async def held(names: list[str]) -> dict[str, float]:
    """Return the milliseconds of the longest turn by body: the best of a few, since a page fault or
    a collection is nobody's."""
    longest: dict[str, float] = {}
    turns = Turns()
    with tempfile.TemporaryDirectory() as folder:
        async with router(Path(folder)) as port:
            for name in names:
                for model in ("m", "canary"):
                    times = []
                    for _ in range(REPEATS):
                        turns.begin()
                        child = await _child("--ask", str(port), name, model)
                        output, _ = await child.communicate()
                        turns.watches = False
                        if output.strip() != b"200":
                            raise RuntimeError(f"{name} was answered {output!r}")
                        times.append(turns.longest * 1e3)
                    longest[f"{name}{', renamed' * (model != 'm')}"] = round(min(times), 1)
    return longest


def scanned() -> dict[str, float]:
    """Return microseconds of CPU a KiB of each body, in pieces as they come from a socket."""
    costs = {}
    for name in CONTENTS:
        data = body(name, "m", 4 * MIB)
        times = []
        for _ in range(REPEATS):
            scan = BodyScan(OUTLINED)
            began = time.thread_time()
            for at in range(0, len(data), PIECE):
                scan.feed(data[at : at + PIECE])
            times.append((time.thread_time() - began) / (len(data) / 1024) * 1e6)
        costs[name] = round(min(times), 2)
    return costs


def publish(turns: dict[str, float], scans: dict[str, float], *, save: bool) -> None:
    """The longest turn of all has a goal."""
    Report(
        name="router_bodies",
        title="What the largest bodies cost the router",
        work=f"Chats and uploads of {SIZE // MIB} MiB, one at a time, to a router with keys; in "
        f"the name of a model, and of a canary, for which the body is edited. Best of {REPEATS}.",
        figures=[
            Figure("longest turn of the loop, CPU time", "ms", [max(turns.values())], GOAL, 1),
            Figure("scanning text", "us a KiB", [scans["text"]]),
            Figure("scanning the densest", "us a KiB", [max(scans.values())]),
        ],
        tables=[
            Table(
                "Longest turn of the loop by body",
                ["body", "ms"],
                [[name, str(value)] for name, value in turns.items()],
            ),
            Table(
                "Scanning by body",
                ["body", "us a KiB"],
                [[name, str(value)] for name, value in scans.items()],
            ),
        ],
        packages=("uvloop",),
        folder="",
    ).publish(save=save)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--only", nargs="*", default=BODIES, choices=BODIES)
    parser.add_argument("--replica", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replica:
        asyncio.run(replica(options.replica))
    elif options.ask:
        port, name, model = options.ask
        asyncio.run(ask(int(port), name, model))
    else:
        if not build():
            raise SystemExit("the scanner needs a C compiler")
        warn_if_busy()
        publish(uvloop.run(held(options.only)), scanned(), save=options.save)


if __name__ == "__main__":
    main()
