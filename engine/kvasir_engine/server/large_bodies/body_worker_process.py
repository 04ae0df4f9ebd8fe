"""One body worker, as the API process that started it sees it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable

from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.server.large_bodies.shared_body import SharedBody, memory_file, read_all
from kvasir_engine.server.large_bodies.worker_messages import (
    MAX_PACKET_BYTES,
    Answered,
    FromWorker,
    Job,
    Next,
    Setup,
    decode_from_worker,
    decode_reports,
    encode,
)

ENDING_SECONDS = 2.0
_MODULE = "kvasir_engine.server.process.body_worker"


class WorkerEndedError(Exception):
    """The worker has ended with `status` (negative: by that signal) in the middle of a job."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class BodyWorkerProcess:
    """A process that reads one body at a time. Make it with `start`."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection

    @classmethod
    def start(cls, setup: Setup) -> BodyWorkerProcess:
        """Start one; it loads its tokenizer while the first job waits for it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                # Before the process is there: without its setup it would be in nobody's care.
                _send_setup(ours, setup)
                fd = theirs.fileno()
                # Not the event loop's way: uvloop forks, which copies the page tables first.
                process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE, str(fd), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    # Without memory a backtrace may never end, and the process with it.
                    env={**os.environ, "RUST_BACKTRACE": "0"},
                    pass_fds=(fd,),
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def work(
        self,
        job: Job,
        body: SharedBody,
        answer: Callable[[bytes], None],
        report: Callable[[PromptReport], None],
    ) -> bool:
        """Have `body` read; `answer` gets the result before any report.

        Returns False when the worker takes no more. Raises WorkerEndedError.
        """
        await self._send(encode(job), body.fd)
        # Freeing so much memory takes the last holder 10 ms, which is not to be this process.
        body.close_file()
        then = Next.REPORT
        while then is Next.REPORT:
            message, content = await self._receive()
            then = message.then
            if isinstance(message, Answered):
                answer(content)
            else:
                for each in decode_reports(content):
                    report(each)
        return then is Next.FREE

    async def _send(self, packet: bytes, descriptor: int) -> None:
        try:
            # A free worker has read everything: there is room for a packet.
            socket.send_fds(self._connection, [packet], [descriptor])
        except OSError as error:
            raise WorkerEndedError(await self._ended()) from error

    async def _receive(self) -> tuple[FromWorker, bytes]:
        """Return the next message and the content of its descriptor."""
        await _readable(self._connection.fileno())
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._connection, MAX_PACKET_BYTES, 1)
        except OSError:
            packet, descriptors = b"", []
        content = read_all(descriptors[0]) if descriptors else b""
        if not packet:
            raise WorkerEndedError(await self._ended())
        return decode_from_worker(packet), content

    async def _ended(self) -> int:
        """Return its exit status; one that has closed its socket gets a moment to end by itself."""
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                return await self._exited()
        except TimeoutError:
            self.kill()
            return await self._exited()

    async def _exited(self) -> int:
        """Return the exit status, when there is one."""
        if (status := self._process.poll()) is not None:
            return status
        descriptor = os.pidfd_open(self._process.pid)
        try:
            await _readable(descriptor)
        finally:
            os.close(descriptor)
        return self._process.wait()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    async def close(self) -> None:
        """End it, and return when it is gone."""
        self.kill()
        await self._exited()
        self._connection.close()


def _send_setup(connection: socket.socket, setup: Setup) -> None:
    """Send it by a descriptor: a chat template may be longer than a packet."""
    descriptor = memory_file(encode(setup))
    try:
        socket.send_fds(connection, [b"setup"], [descriptor])
    finally:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, set_ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
