"""Throws broken, hostile and random HTTP at a router process: python e2e/http_fuzz.py --seconds 300

Hypothesis draws what connections send: requests cut, doubled, mixed and mutated, header floods,
bodies that are no JSON, forms that are none, garbage, in reads of any size, half-closed or left
open. The router must stay alive, answer good requests in between, grow by less than 200 MB, and log
no traceback. The exit status is 1 otherwise, and what was sent is printed, as small as it goes.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvasir.cli.local.ports import free_ports

ROOT = Path(__file__).parents[1]
MAX_GROWTH = 200_000_000
CHECK_EVERY = 25
GOOD = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

lines = st.sampled_from(
    [
        *(
            b"Host: a",
            b"Host: b",
            b"Content-Length: 5",
            b"Content-Length: 66",
            b"Content-Length: -1",
        ),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue"),
        *(b"Connection: close", b"Connection: upgrade, host", b"Upgrade: websocket", b" folded"),
        *(b"X-Request-Id: \xff", b"X-Request-Timeout: nan", b"X-Request-Timeout: 0.001"),
        *(b"Origin: null", b"Authorization: Bearer \x80", b"Cookie: " + b"c" * 9000, b"x" * 40_000),
        *(b"Content-Type: multipart/form-data; boundary=x", b"Content-Encoding: gzip", b"a:b:c"),
    ]
) | st.binary(max_size=60)
methods = st.sampled_from([b"POST", b"GET", b"HEAD", b"OPTIONS", b"PUT", b"CONNECT", b"post", b""])
targets = st.sampled_from(
    [
        *(b"/v1/chat/completions", b"/v1/completions", b"/v1/audio/transcriptions", b"/tokenize"),
        *(b"/v1/models", b"/v1/models/%ff", b"/health", b"/metrics", b"*", b"http://b/", b"/../x"),
        b"/" + b"t" * 9000,
    ]
) | st.binary(max_size=40)
bodies = st.one_of(
    st.just(GOOD),
    st.just(GOOD.replace(b"hello", b"h" * 300_000)),
    st.binary(max_size=200),
    st.integers(1, 3000).map(lambda depth: b'{"model": "m", "messages": ' + b"[" * depth),
    st.integers(1, 3000).map(
        lambda depth: b'{"model": "m", "messages": %b%b}' % (b"[" * depth, b"]" * depth)
    ),
    st.sampled_from(
        [
            *(b"{}", b"[]", b"null", b'{"model": 1}', b'{"model": "m", "messages": "no list"}'),
            *(
                b'{"model": "m", "messages": [1, null, {"content": {"a": []}}]}',
                b'{"model": "\xed"}',
            ),
            *(b'{"model": "m", "stream": true, "n": 1e400, "max_tokens": -1}', b"--x\r\n\r\n--x--"),
            *(
                b'{"model": "m", "messages": [{"role": "\\ud800", "content": "\\u0000"}]}',
                b"5\r\na",
            ),
        ]
    ),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that may be good, and mostly is not."""
    body: bytes = draw(bodies)
    headers = draw(st.lists(lines, max_size=6))
    if draw(st.booleans()):
        headers += [b"Host: a", b"Content-Length: %d" % len(body)]
    if draw(st.integers(0, 20)) == 0:
        headers += [b"X-%d: y" % number for number in range(150)]
    first = b" ".join((draw(methods), draw(targets), b"HTTP/1.1"))
    data = b"\r\n".join((first, *headers, b"", b"")) + body
    if draw(st.booleans()):
        place = draw(st.integers(0, min(len(data), 2000)))
        data = data[:place] + draw(st.binary(max_size=4)) + data[place + draw(st.integers(0, 3)) :]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 3)) == 0 else data


connections = st.tuples(
    st.lists(requests(), min_size=1, max_size=4).map(b"".join),
    st.integers(1, 70_000),  # bytes a write
    st.booleans(),  # whether it half-closes
)


async def converse(port: int, data: bytes, size: int, half_close: bool) -> None:
    """Send it all, and read what comes, for a moment."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for start in range(0, len(data), max(size, len(data) // 50)):
                    writer.write(data[start : start + max(size, len(data) // 50)])
                    await writer.drain()
                if half_close:
                    writer.write_eof()
                async with asyncio.timeout(0.02):
                    while await reader.read(1 << 16):
                        pass
            finally:
                writer.transport.abort()


async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers whatever is a whole request; stops the test when something that is none arrives."""
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.count(b"\r\ncontent-length: ") > 1 or b"transfer-encoding" in head:
                os._exit(3)
            if b"\r\ncontent-length: " in head:
                length = head.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0]
                await reader.readexactly(int(length))
            writer.write(ANSWER)
    writer.close()


class Router:
    """The process under test."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log
        self.resident = 0

    def check(self) -> None:
        """Raise RuntimeError unless it is alive, serves, and is not much larger than before."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the router ended with status {self.process.returncode}")
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", GOOD)
        with urllib.request.urlopen(request, timeout=20) as response:
            if response.status != 200:
                raise RuntimeError(f"a good request was answered {response.status}")
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE")
        self.resident = self.resident or resident
        if resident > self.resident + MAX_GROWTH:
            raise RuntimeError(f"it grew from {self.resident} to {resident} bytes")
        if b"Traceback" in self.log.read_bytes():
            raise RuntimeError(f"it logged a traceback:\n{self.log.read_text()[-4000:]}")


@contextmanager
def running_router(replica_port: int) -> Iterator[Router]:
    with tempfile.TemporaryDirectory() as folder:
        config, log, port = Path(folder, "fleet.yaml"), Path(folder, "log"), free_ports(1)[0]
        url = f"http://127.0.0.1:{replica_port}"
        config.write_text(f"models: [{{name: m, replicas: [{{id: r0, url: '{url}'}}]}}]")
        command = [sys.executable, "-m", "kvasir_router", "--config", str(config), "--cors-origin"]
        command += ["*", "--port", str(port), "--admin-port", str(free_ports(1)[0])]
        path = {"PYTHONPATH": f"{ROOT}/api:{ROOT}/router"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=os.environ | path, stdout=subprocess.DEVNULL, stderr=file
            )
        try:
            wait_ready(port)
            yield Router(process, port, log)
        finally:
            process.kill()
            process.wait()


def wait_ready(port: int) -> None:
    for _ in range(400):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the router did not become ready")


def fuzz(router: Router, seconds: float) -> int:
    """Return how many examples were sent. Raises RuntimeError."""
    count, until = 0, time.monotonic() + seconds

    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(connections, min_size=1, max_size=8))
    def round_(drawn: list[tuple[bytes, int, bool]]) -> None:
        nonlocal count
        if time.monotonic() > until:
            return
        count += 1
        asyncio.run(send_all(router.port, drawn))
        if router.process.poll() is not None or count % CHECK_EVERY == 0:
            router.check()

    while time.monotonic() < until:
        round_()
    router.check()
    return count


async def send_all(port: int, drawn: list[tuple[bytes, int, bool]]) -> None:
    await asyncio.gather(*(converse(port, *each) for each in drawn))


def main() -> None:
    """Run both sides."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--replica", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replica:
        asyncio.run(serve(options.replica))
        return
    (port,) = free_ports(1)
    engine = subprocess.Popen([sys.executable, __file__, "--replica", str(port)])
    try:
        with running_router(port) as router:
            router.check()
            print(f"{fuzz(router, options.seconds)} examples sent; the router is well.")
            if engine.poll() is not None:
                raise SystemExit("a replica was sent a request with an ambiguous length")
    finally:
        engine.kill()
        engine.wait()


async def serve(port: int) -> None:
    server = await asyncio.start_server(replica, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    main()
