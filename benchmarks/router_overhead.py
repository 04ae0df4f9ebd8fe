"""What the router costs: CPU time of its process a request, and a chunk of a stream.

    python benchmarks/router_overhead.py [--seconds 5] [--repeat 5] [--json FILE]

The router runs pinned to one core; a mock replica and the load, processes of this same script, on
the other cores. CPU time is the scheduler's account of the process (/proc/PID/schedstat). The same
work also runs through a splice, which passes bytes on between sockets in the same loop and knows
nothing of HTTP: it is what the machine's system calls cost at that moment. The work:

- unary: 2 KB requests, 500-byte answers, 64 in flight; and larger ones
- fast: 500 streams at once of 200 chunks of 220 bytes, as fast as the mock writes them
- paced: 64 streams at 20 ms a chunk, so that no two chunks share a read
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).parents[1]
CHUNKS = 200
EVENT = b"data: " + b"x" * 212 + b"\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
ANSWER = b'{"object":"chat.completion","text":"%b"}' % (b"y" * 462)
UNARY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Work:
    """One kind of load. `interval` between chunks in seconds; None: unary."""

    name: str
    in_flight: int
    body_bytes: int
    interval: float | None = None

    @property
    def unit(self) -> str:
        return "request" if self.interval is None else "chunk"


WORKS = (
    Work("unary 2 KB", 64, 2048),
    Work("unary 64 KB", 32, 65536),
    Work("unary 400 KB", 8, 409600),
    Work("fast streams", 500, 2048, 0.0),
    Work("paced streams", 64, 2048, 0.02),
)


class MockReplica(asyncio.Protocol):
    """Answers each request with a canned answer; the header `x-interval` asks for a stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.loop = asyncio.get_running_loop()
        self.data = b""
        self.missing = 0

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
        else:
            self.data += data
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return
            self.head, body = self.data[:end].lower(), len(self.data) - end - 4
            self.data = b""
            self.missing = _number(self.head, b"content-length: ", int, 0) - body
        if self.missing == 0:
            self.answer()

    def answer(self) -> None:
        if self.head.startswith(b"get"):
            self.transport.write(UNARY)
            return
        interval = _number(self.head, b"x-interval: ", float, None)
        if interval is None:
            self.transport.write(UNARY)
        else:
            self.transport.write(STREAM)
            self.chunk(CHUNKS, interval)

    def chunk(self, left: int, interval: float) -> None:
        if self.transport.is_closing():
            return
        if left == 0:
            self.transport.write(b"0\r\n\r\n")
            return
        self.transport.write(CHUNK)
        self.loop.call_later(interval, self.chunk, left - 1, interval)


def _number(head: bytes, name: bytes, kind: Callable[[bytes], Any], default: Any) -> Any:
    start = head.find(name)
    if start < 0:
        return default
    return kind(head[start + len(name) :].split(b"\r\n", 1)[0])


class SpliceClient(asyncio.Protocol):
    """Passes each read on to an upstream connection of its own, and back."""

    upstream_port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.upstream: Any = None
        self.early = b""
        self.opening = asyncio.create_task(self.open())

    async def open(self) -> None:
        self.upstream, _ = await asyncio.get_running_loop().create_connection(
            lambda: SpliceUpstream(self.transport), "127.0.0.1", self.upstream_port
        )
        self.upstream.write(self.early)

    def data_received(self, data: bytes) -> None:
        if self.upstream is None:
            self.early += data
        else:
            self.upstream.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.opening.cancel()
        if self.upstream is not None:
            self.upstream.abort()


class SpliceUpstream(asyncio.Protocol):
    def __init__(self, client: Any) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        if not self.client.is_closing():
            self.client.write(data)


class LoadConnection(asyncio.Protocol):
    """Sends a request again as soon as its answer is complete."""

    def __init__(self, request: bytes, stream: bool, count: Callable[[int], None]) -> None:
        self.request = request
        self.stream = stream
        self.count = count
        self.size = 0
        self.expected = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.stream:
            self.count(data.count(b"\n\n"))
            if data.endswith(b"\r\n0\r\n\r\n"):
                self.transport.write(self.request)
            return
        if not self.expected:
            assert data.startswith(b"HTTP/1.1 200"), data[:200]
            self.expected = data.index(b"\r\n\r\n") + 4 + len(ANSWER)
        self.size += len(data)
        if self.size == self.expected:
            self.size = self.expected = 0
            self.count(1)
            self.transport.write(self.request)


async def load(port: int, work: Work, seconds: float, router_pid: int) -> tuple[float, float]:
    """CPU µs of the router for each unit, and units a second."""
    total = 0

    def count(units: int) -> None:
        nonlocal total
        total += units

    body = (
        b'{"model":"bench","stream":%b,"prompt":"' % (b"false", b"true")[work.interval is not None]
    )
    body += b"p" * (work.body_bytes - len(body) - 2) + b'"}'
    interval = b"" if work.interval is None else b"X-Interval: %f\r\n" % work.interval
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n"
        b"User-Agent: benchmark\r\nAuthorization: Bearer sk-benchmark\r\n"
        b"Content-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
    ) % (interval, len(body), body)
    loop = asyncio.get_running_loop()
    for _ in range(work.in_flight):
        await loop.create_connection(
            lambda: LoadConnection(request, work.interval is not None, count), "127.0.0.1", port
        )
    await asyncio.sleep(1.0)
    before, cpu, at = total, cpu_ns(router_pid), time.perf_counter()
    await asyncio.sleep(seconds)
    units, spent = total - before, cpu_ns(router_pid) - cpu
    return spent / 1000 / max(units, 1), units / (time.perf_counter() - at)


def cpu_ns(pid: int) -> int:
    """Nanoseconds all threads of the process have run."""
    return sum(
        int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


async def serve(role: str, port: int, upstream_port: int) -> None:
    SpliceClient.upstream_port = upstream_port
    protocol = MockReplica if role == "replica" else SpliceClient
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
    await server.serve_forever()


def start(*command: str, cpus: set[int], log: bool = False) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/api:{ROOT}/router"}
    output = subprocess.DEVNULL if log else None
    process = subprocess.Popen([sys.executable, *command], env=environment, stdout=output)
    os.sched_setaffinity(process.pid, cpus)
    return process


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_ready(url: str) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"{url} did not become ready")


def measure(
    seconds: float, repeat: int, wanted: list[str], router_options: list[str]
) -> dict[str, Any]:
    cpus = sorted(os.sched_getaffinity(0))
    router_cpus, other_cpus = {cpus[0]}, set(cpus[1:]) or {cpus[0]}
    replica_port, splice_port, port, admin = (free_port() for _ in range(4))
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "fleet.yaml"
        config.write_text(
            "models: [{name: bench, replicas: "
            f"[{{id: r0, url: 'http://127.0.0.1:{replica_port}'}}]}}]"
        )
        arguments = ["--config", str(config), "--port", str(port), "--admin-port", str(admin)]
        arguments += router_options
        mock = start(__file__, "--role", f"replica:{replica_port}:0", cpus=other_cpus)
        splice = start(__file__, "--role", f"splice:{splice_port}:{replica_port}", cpus=router_cpus)
        router = start("-m", "kvasir_router", *arguments, cpus=router_cpus, log=True)
        try:
            wait_ready(f"http://127.0.0.1:{port}/ready")
            os.sched_setaffinity(0, other_cpus)
            for work in WORKS:
                if wanted and not any(word in work.name for word in wanted):
                    continue
                runs, floor = [], []
                for _ in range(repeat):
                    runs.append(uvloop.run(load(port, work, seconds, router.pid)))
                    floor.append(uvloop.run(load(splice_port, work, seconds, splice.pid)))
                results[work.name] = {
                    f"cpu_us_per_{work.unit}": round(statistics.median(r[0] for r in runs), 2),
                    f"{work.unit}s_per_second": round(statistics.median(r[1] for r in runs)),
                    f"splice_us_per_{work.unit}": round(statistics.median(f[0] for f in floor), 2),
                    "in_flight": work.in_flight,
                }
                print(f"{work.name:14} {results[work.name]}", flush=True)
        finally:
            for process in (router, splice, mock):
                process.terminate()
                process.wait()
    return results


def machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=5, help="the median is reported")
    parser.add_argument("--only", nargs="*", default=[], help="words in the names of works to run")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument(
        "--router-options",
        default="",
        help="for `kvasir router`, as one string; has to begin with a space",
    )
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role, port, upstream_port = options.role.split(":")
        uvloop.run(serve(role, int(port), int(upstream_port)))
        return
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    print(f"{machine()}; Python {platform.python_version()}; {date}; {options.router_options}")
    results = measure(options.seconds, options.repeat, options.only, options.router_options.split())
    if options.json:
        report = {"machine": machine(), "date": date, "results": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
