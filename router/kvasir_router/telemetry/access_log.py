"""The access log: JSON lines on stdout, written in a thread."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

_MAX_WAITING = 20_000
_FLUSH_SECONDS = 0.2


class AccessRecord(msgspec.Struct, omit_defaults=True):
    """Record of one request in the access log. Never its body, nor any header but the request
    id."""

    method: str = ""
    path: str = ""
    status: int = 0
    ms: float = 0.0
    """Milliseconds from the whole request to the end of its answer."""
    bytes: int = 0
    """Bytes of the answer's body."""
    request_id: str = ""
    model: str = ""
    replica: str = ""
    tenant: str = ""
    key: str = ""
    """The id of its API key."""
    prompt_tokens: int = 0
    """Prompt tokens by the engine's usage, like the next two."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    trace_id: str = ""
    reason: str = ""
    """Reason for the refusal, if it was no valid request."""
    client: str = ""
    """Address of the client, by its connection or what a trusted proxy says."""
    time: float = msgspec.field(default_factory=time.time)
    """Unix seconds at its end."""


class LogStream(Protocol):
    """Destination of the lines."""

    def write(self, data: bytes, /) -> object:
        """All of them. Raises OSError when nobody reads any more."""

    def flush(self) -> None:
        """Write what is buffered now."""


class AccessLog:
    """Encoded at once (a structlog chain costs five times as much), written in a thread, so that
    a slow reader never stops the router. When too many lines wait, they are dropped and `dropped`
    is called for each."""

    def __init__(self, output: LogStream, dropped: Callable[[], None]) -> None:
        self._output = output
        self._dropped = dropped
        self._encode = msgspec.json.Encoder().encode
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def write(self, record: msgspec.Struct) -> None:
        if self._lines.qsize() >= _MAX_WAITING:
            self._dropped()
        else:
            self._lines.put(self._encode(record))

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, within `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get_nowait())
        if lines:
            try:
                self._output.write(b"\n".join(lines) + b"\n")
                self._output.flush()
            except OSError:  # nobody reads the log any more; serving goes on
                for _ in lines:
                    self._dropped()
