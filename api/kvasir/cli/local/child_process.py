"""One supervised process: started under the monitor, its output kept, its end awaited."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

MAX_LINE = 8192
TAIL_LINES = 40
_MONITOR = Path(__file__).with_name("monitor.py")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Command line, environment and readiness URL of one process."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment."""
    ready_url: str
    """Answers 200 when the process serves."""
    grace: float
    """Seconds from SIGTERM to SIGKILL."""


class Child:
    """A running process of a spec."""

    def __init__(
        self,
        spec: ChildSpec,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        on_line: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """The last lines it wrote."""
        self._process = process
        self._on_line = on_line
        self._reader = asyncio.create_task(self._read(output))

    @classmethod
    async def start(cls, spec: ChildSpec, on_line: Callable[[str], None]) -> Child:
        """Start the process; `on_line` gets each line that it writes.

        Call it from the main thread: the kernel takes a process's parent for dead when the thread
        that started it ends. Raises OSError when there is no memory or process id for it.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_MONITOR)),
            *(str(os.getpid()), str(spec.grace), *spec.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=spec.env,
            # A Ctrl-C in the terminal is for the supervisor, which stops things in order.
            start_new_session=True,
        )
        output = cast(asyncio.StreamReader, process.stdout)
        return cls(spec, process, output, on_line)

    async def wait(self) -> int:
        """The exit status, after the last line was read; a signal is 128 + its number."""
        code = await self._process.wait()
        await self._reader
        return code

    def terminate(self) -> None:
        """Ask the process to end; after the spec's grace it is killed."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all that it started."""
        self._signal(signal.SIGINT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            self.tail.append(line)
            self._on_line(line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of at most MAX_LINE bytes; a longer one is cut, so that no output grows our memory."""
    pending = b""
    while chunk := await stream.read(65536):
        *whole, pending = (pending + chunk).split(b"\n")
        if len(pending) > MAX_LINE:
            whole, pending = [*whole, pending], b""
        for line in whole:
            yield _text(line)
    if pending:
        yield _text(pending)


def _text(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", "replace").rstrip()
