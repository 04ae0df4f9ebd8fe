"""Two operators: the leader is frozen (SIGSTOP) in the middle of its work, and later goes on.

    PYTHONPATH=e2e:e2e/cluster:api python e2e/operator_freezes.py [--rounds 3] [--seconds 60] \
        [--lease 15] [--save FILE]

Both run against a real etcd, API server and controller manager (`make cluster-build`), each through
a gateway that notes every write. LLMDeployments are edited all the time, so that a leader always
has something to write. In each round the leader is stopped for some seconds, the other one takes
the Lease, and the first is let go on: it must end without having written anything after the other
began. Prints a row a round, and exits with 1 when there were ever two writers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from harness.control_plane import ControlPlane
from harness.streams import MAX_HEAD, connection, serving
from kvasir.cli.local.ports import free_ports
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir.resource.crd_writer import as_yaml
from kvasir_operator.kinds import LLMDEPLOYMENTS

NAMES = ("a", "b", "c", "d")
DEADLINE = 120.0
"""Seconds that something may take on a loaded machine."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Write:
    """One request to the API server that is no GET."""

    at: float
    operator: str
    what: str
    is_lease: bool


@dataclass
class Round:
    """Outcome of one freeze."""

    frozen_seconds: float
    taken_after_seconds: float
    """From the freeze to the other one's first write of the Lease."""
    ended_after_seconds: float
    """From the end of the freeze to the end of the process."""
    exit_code: int
    writes_before: int
    """Writes of the leader until it was frozen."""
    writes_of_the_next: int
    overlapping: list[str] = field(default_factory=list)
    """Writes of the first one after the second had the Lease, and of the second before."""


class Gateway:
    """The API server as one operator reaches it; every write is noted as it comes in."""

    def __init__(self, plane: ControlPlane, operator: str, writes: list[Write]) -> None:
        self._trust = ssl.create_default_context(cafile=str(plane.authority.certificate))
        where = urlsplit(plane.url)
        self._address = str(where.hostname), int(where.port or 443)
        self._operator = operator
        self._writes = writes
        self.refused = ""
        """Path whose reads are answered with 503."""
        self.holds = ""
        """Method and path, as `PATCH /apis/...`, of requests that the network keeps; "" = none."""
        self.held: list[bytes] = []
        """Requests that it has kept."""

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Pass on one of the operator's connections."""
        async with connection(*self._address, self._trust) as (answers, onward):
            back = asyncio.create_task(_pass_on(answers, writer))
            try:
                await self._take(reader, writer, onward)
            finally:
                back.cancel()

    async def _take(self, reader: StreamReader, back: StreamWriter, onward: StreamWriter) -> None:
        with suppress(ConnectionError):
            async for head, body in requests_of(reader):
                if self.refused and head.startswith(f"GET {self.refused} ".encode()):
                    back.write(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                if self.holds and head.startswith(self.holds.encode()):
                    self.held.append(head + body)
                    continue
                self._note(head)
                onward.write(head + body)
                await onward.drain()

    async def deliver(self) -> int:
        """Send the first request that was held; return the status of its answer."""
        async with connection(*self._address, self._trust) as (reader, writer):
            writer.write(self.held.pop(0))
            head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    def _note(self, head: bytes) -> None:
        method, target, _ = head.decode("latin-1").split(" ", 2)
        if method not in ("GET", "HEAD"):
            path = target.partition("?")[0]
            is_lease = "/leases" in path
            what = f"{method} {path}"
            self._writes.append(Write(time.monotonic(), self._operator, what, is_lease))


async def requests_of(reader: StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the head and the body of each request of a connection. Raises ConnectionError."""
    with suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            yield head, await reader.readexactly(int(length[1]) if length else 0)


async def _pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(MAX_HEAD):
            writer.write(data)
            await writer.drain()


class Candidate:
    """One operator process, started again and again."""

    def __init__(self, name: str, kubeconfig: Path, log: Path, flags: tuple[str, ...]) -> None:
        self.name = name
        self._port = free_ports(1)[0]
        self._log = log
        self._flags = flags
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "kvasir", "operator", *self._flags]
        command += ["--host", "127.0.0.1", "--metrics-port", str(self._port)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def leads(self) -> bool:
        """Tell if it holds the Lease."""
        try:
            async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
                answer = await client.get(f"http://127.0.0.1:{self._port}/readyz")
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    async def ended(self) -> bool:
        """Tell if the process has ended."""
        assert self.process is not None
        return self.process.poll() is not None

    def kill(self) -> None:
        """End it, frozen or not."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Freezes:
    """Two candidates and what they wrote."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.writes: list[Write] = []
        self.candidates: list[Candidate] = []
        self.gateways: list[Gateway] = []
        self._cluster = cluster
        self.namespace = namespace

    async def edit(self) -> None:
        """Change one LLMDeployment after the other, for ever: each change is a write to come."""
        number = 0
        while True:
            for name in NAMES:
                number += 1
                spec = {"model": {"uri": "builtin://kvasir-tiny"}, "replicas": number % 3}
                body = {
                    "apiVersion": LLMDEPLOYMENTS.api_version,
                    "kind": "LLMDeployment",
                    "metadata": {"name": name, "namespace": self.namespace},
                    "spec": spec,
                }
                await self._cluster.apply(LLMDEPLOYMENTS, body, "user")
                await asyncio.sleep(0.05)

    async def freeze(self, seconds: float) -> Round:
        """Freeze the leader for at least `seconds`, and until the other one is at work."""
        leader, other = await self._leader()
        await asyncio.sleep(random.uniform(0.5, 1.5))
        leader.signal(signal.SIGSTOP)
        frozen = time.monotonic()
        first, second = leader.name, other.name

        async def at_work() -> bool:
            return any(w.operator == second and not w.is_lease for w in self._since(frozen))

        await eventually(at_work, "another leader at work")
        await asyncio.sleep(max(0.0, frozen + seconds - time.monotonic()))
        thawed = time.monotonic()
        leader.signal(signal.SIGCONT)
        await eventually(leader.ended, "the end of the one that was frozen")
        ended = time.monotonic()
        taken = next(w.at for w in self._since(frozen) if w.operator == second and w.is_lease)
        assert leader.process is not None
        found = Round(
            frozen_seconds=round(thawed - frozen, 1),
            taken_after_seconds=round(taken - frozen, 1),
            ended_after_seconds=round(ended - thawed, 2),
            exit_code=int(leader.process.returncode),
            writes_before=sum(w.operator == first and w.at < frozen for w in self._work()),
            writes_of_the_next=sum(w.operator == second and w.at > taken for w in self._work()),
            overlapping=[
                f"{w.operator} {w.what}"
                for w in self._work()
                if (w.operator == first) == (w.at >= taken)
            ],
        )
        self.writes.clear()
        leader.start()
        return found

    def _work(self) -> list[Write]:
        return [each for each in self.writes if not each.is_lease]

    def _since(self, moment: float) -> list[Write]:
        return [each for each in self.writes if each.at >= moment]

    async def _leader(self) -> tuple[Candidate, Candidate]:
        found: list[Candidate] = []

        async def leads() -> bool:
            found[:] = [each for each in self.candidates if await each.leads()]
            return len(found) == 1

        await eventually(leads, "one leader")
        (leader,) = found
        (other,) = (each for each in self.candidates if each is not leader)
        mine = leader.name

        async def works() -> bool:
            return any(w.operator == mine for w in self._work())

        await eventually(works, "a leader at work")
        return leader, other


async def eventually(check: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until `check` says yes. Raises TimeoutError."""
    end = time.monotonic() + DEADLINE
    while not await check():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {DEADLINE:.0f} s: {what}")
        await asyncio.sleep(0.05)


@asynccontextmanager
async def freezes(plane: ControlPlane, lease: float, directory: Path) -> AsyncIterator[Freezes]:
    """Two operators in a namespace of their own, and the edits that keep them at work."""
    namespace = plane.namespace("freezes")
    flags: tuple[str, ...] = ("--namespace", namespace, "--watch-namespace", namespace)
    flags += (
        # A class is one release's, and each of these has a namespace of its own
        "--class-name",
        namespace,
        "--image-cpu",
        "cpu:1",
        "--lease-seconds",
        str(lease),
        "--resync-seconds",
        "5",
        "--no-router-gate",
    )
    async with AsyncExitStack() as stack:
        access = await load_access(environ={"KUBECONFIG": str(plane.kubeconfig)})
        cluster = await stack.enter_async_context(Cluster(access, timeout=60))
        made = Freezes(cluster, namespace)
        config = json.loads(plane.kubeconfig.read_text())
        for name in ("first", "second"):
            gateway = Gateway(plane, name, made.writes)
            made.gateways.append(gateway)
            port = await stack.enter_async_context(serving(gateway.serve))
            config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
            config["users"][0]["user"] = {"token": plane.token_for(f"{namespace}/default")}
            path = directory / f"{name}.kubeconfig"
            path.write_text(json.dumps(config))
            made.candidates.append(Candidate(name, path, directory / f"{name}.log", flags))
        plane.kubectl(
            *("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin"),
            f"--serviceaccount={namespace}:default",
        )
        editing = asyncio.create_task(made.edit())
        for candidate in made.candidates:
            candidate.start()
            stack.callback(candidate.kill)
        try:
            yield made
        finally:
            editing.cancel()
            await asyncio.gather(editing, return_exceptions=True)


async def run(options: argparse.Namespace) -> list[Round]:
    """Run all rounds on a control plane of their own."""
    with tempfile.TemporaryDirectory() as directory:
        plane = ControlPlane(Path(directory) / "plane")
        try:
            plane.start()
            plane.define(as_yaml())
            async with freezes(plane, options.lease, Path(directory)) as made:
                rounds = []
                for _ in range(options.rounds):
                    rounds.append(await made.freeze(options.seconds))
                    print(json.dumps(asdict(rounds[-1])), flush=True)
                return rounds
        finally:
            plane.stop()


def main() -> int:
    """Return the exit status: 1 when there were two writers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--lease", type=float, default=15.0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    rounds = asyncio.run(run(options))
    if options.save:
        record: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "lease_seconds": options.lease,
            "rounds": [asdict(each) for each in rounds],
        }
        options.save.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(each.overlapping for each in rounds))


if __name__ == "__main__":
    sys.exit(main())
