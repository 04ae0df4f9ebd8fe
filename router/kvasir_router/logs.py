"""Events as JSON lines on stderr; the access log as JSON lines on stdout, written in a thread."""

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec
import structlog

_MAX_WAITING = 20_000
_FLUSH_SECONDS = 0.2


def configure_logging() -> None:
    """Make structlog write one JSON object a line to stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ],
        wrapper_class=structlog.BoundLogger,
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


class LineWriter:
    """Writes lines in a thread, so that a slow reader of the log never stops the router. When
    too many wait, lines are dropped and `dropped` is called for each."""

    def __init__(self, output: BinaryIO, dropped: Callable[[], None]) -> None:
        self._output = output
        self._dropped = dropped
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def info(self, line: bytes) -> None:
        """Structlog's final call."""
        if self._lines.qsize() >= _MAX_WAITING:
            self._dropped()
        else:
            self._lines.put(line)

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
            except OSError:
                pass  # nobody reads the log any more; serving goes on


def access_logger(writer: LineWriter) -> Any:
    """A structlog logger whose `info` writes one line."""
    return structlog.wrap_logger(
        writer,
        processors=[
            structlog.processors.TimeStamper(fmt=None, key="time"),
            structlog.processors.JSONRenderer(serializer=_to_json_bytes),
        ],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _to_json_bytes(event: dict[str, Any], **_: Any) -> bytes:
    return msgspec.json.encode(event)


def _to_json(event: dict[str, Any], **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()
