"""A router with workers that are stopped and started again and again, while new connections come.

    python e2e/router_cycles.py [--cycles 200] [--workers 2] [--clients 8] [--what worker,router]

Clients open a connection, ask once and close it, all the time. In each cycle a worker gets SIGTERM
and its successor takes over; or the whole router gets SIGTERM and another one is started on the
same port. No connection that was made may be reset, and no request lost; one that is refused,
because no router listens at that moment, is tried again. Prints what happened, and exits with 1
when something was lost. A replica is part of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvasir.cli.local.ports import free_ports

ROOT = Path(__file__).parents[1]
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b"
) % (len(BODY), BODY)
ANSWER = b'{"answer":"hello"}'
READY_SECONDS = 60.0


@dataclass
class Seen:
    """Counts of what became of the clients' requests."""

    answered: int = 0
    refused: int = 0
    """Nobody listened."""
    lost: Counter[str] = field(default_factory=Counter)


async def serve_replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers after a few milliseconds, as long as the connection lives."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ),
                0,
            )
            await reader.readexactly(length)
            if length:
                await asyncio.sleep(random.uniform(0.0, 0.01))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
            await writer.drain()
    writer.close()


async def ask(port: int, seen: Seen) -> None:
    """Send one request on a connection of its own."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        seen.refused += 1
        await asyncio.sleep(0.01)
        return
    except OSError as error:
        seen.lost[f"connecting: {error!r}"] += 1
        return
    try:
        writer.write(REQUEST)
        answer = await asyncio.wait_for(reader.read(), 30)
        if answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(ANSWER):
            seen.answered += 1
        else:
            seen.lost[answer[:60].decode(errors="replace")] += 1
    except (OSError, TimeoutError) as error:
        seen.lost[repr(error)] += 1
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class Router:
    """`kvasir router --workers N` as a process."""

    def __init__(self, config: Path, workers: int) -> None:
        self.port, self._admin_port = free_ports(2)
        self._command = [
            *(sys.executable, "-m", "kvasir_router", "--config", str(config)),
            *("--port", str(self.port), "--admin-port", str(self._admin_port)),
            *("--workers", str(workers), "--no-access-log"),
        ]
        self._workers = workers

    async def start(self) -> None:
        """Return when it is ready, and every worker is."""
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT}/api:{ROOT}/router",
            "KVASIR_LOG_LEVEL": "error",
        }
        self._process = await asyncio.create_subprocess_exec(*self._command, env=environment)
        try:
            async with asyncio.timeout(READY_SECONDS):
                while len(self.workers()) < self._workers or not await self._is_ready():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except BaseException:
            self._process.kill()  # its workers end with it
            raise

    async def stop(self) -> None:
        """SIGTERM; it drains."""
        self._process.terminate()
        status = await asyncio.wait_for(self._process.wait(), 60)
        if status:
            raise RuntimeError(f"the router ended with status {status}")

    async def replace_worker(self) -> None:
        """SIGTERM to one; returns when it is gone, and another one there."""
        worker = random.choice(sorted(self.workers()))
        os.kill(worker, signal.SIGTERM)
        async with asyncio.timeout(READY_SECONDS):
            while worker in (now := self.workers()) or len(now) < self._workers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def workers(self) -> set[int]:
        """Return the workers' process ids."""
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        found = set()
        for pid in children:
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("router-worker"):
                    found.add(int(pid))
        return found

    async def _is_ready(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.write(b"GET /ready HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n")
        try:
            return (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 ")
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()


async def run(options: argparse.Namespace) -> int:
    server = await asyncio.start_server(serve_replica, "127.0.0.1", 0)
    replica = server.sockets[0].getsockname()[1]
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "fleet.yaml"
        config.write_text(
            "models: [{name: m, replicas: "
            f"[{{id: r0, url: 'http://127.0.0.1:{replica}', engine: openai}}]}}]\n"
        )
        for what in options.what.split(","):
            total += await cycles(what, config, options)
    server.close()
    return 1 if total else 0


async def cycles(what: str, config: Path, options: argparse.Namespace) -> int:
    """Return how many requests were lost."""
    router, seen = Router(config, options.workers), Seen()
    await router.start()
    stopping = asyncio.Event()

    async def client() -> None:
        while not stopping.is_set():
            await ask(router.port, seen)

    clients = [asyncio.create_task(client()) for _ in range(options.clients)]
    started = time.monotonic()
    for cycle in range(1, options.cycles + 1):
        await asyncio.sleep(random.uniform(0.0, 0.1))
        if what == "worker":
            await router.replace_worker()
        else:
            await router.stop()
            await router.start()
        if cycle % 20 == 0:
            print(f"{what}: {cycle} cycles, {sum(seen.lost.values())} lost so far", flush=True)
    seconds = time.monotonic() - started
    stopping.set()
    await asyncio.gather(*clients)
    await router.stop()
    lost = sum(seen.lost.values())
    print(
        f"{what}: {options.cycles} cycles in {seconds:.0f} s, {seen.answered} answered, "
        f"{seen.refused} refused while none listened, {lost} lost {dict(seen.lost) or ''}",
        flush=True,
    )
    return lost + (seen.refused if what == "worker" else 0)


def main() -> None:
    """Parse, run, exit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--what", default="worker,router")
    options = parser.parse_args()
    if options.workers < 2:
        parser.error("--workers must be at least 2: a router of one process has none to replace")
    sys.exit(asyncio.run(run(options)))


if __name__ == "__main__":
    main()
