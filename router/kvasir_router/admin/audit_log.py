"""The audit log: who did what to the router, from where and with what result, as JSON lines."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from kvasir_router.telemetry.access_log import AccessLog, LogStream
from kvasir_router.telemetry.router_metrics import Metrics

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Size from which on a file goes on as a new one; the one before stays as FILE.1."""
_MAX_TEXT = 256
_MAX_NAMES = 100


class AuditRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Record of one action. Never a key or a secret."""

    audit: str
    """The action, as `policy.set`."""
    who: str = ""
    """By which secret somebody was known, by its fingerprint; empty for nobody known."""
    client: str = ""
    """Address that it came from."""
    target: str = ""
    """Model, or file, that it was done to."""
    details: Mapping[str, Any] = {}
    result: str = "ok"
    """`ok`, `refused` or `failed`."""
    reason: str = ""
    """Sentence on why it was not done."""
    time: float = msgspec.field(default_factory=time.time)
    """Unix seconds at its end."""


class AuditLog:
    """Writes records in a thread, bounded as the access log is."""

    def __init__(self, output: LogStream, metrics: Metrics) -> None:
        self._output = output
        self._log = AccessLog(output, metrics.audit_line_dropped)

    def write(self, record: AuditRecord) -> None:
        """Write a record; one too many is dropped and counted."""
        self._log.write(record)

    def keys_changed(
        self, added: Sequence[str], removed: Sequence[str], other: Sequence[str]
    ) -> None:
        """Note that the key file has other keys, by their ids."""
        named = {"added": added, "removed": removed, "changed": other}
        details: dict[str, Any] = {}
        for what, ids in named.items():
            if ids:
                details[what] = sorted(ids)[:_MAX_NAMES]
                details[f"{what}_count"] = len(ids)
        self.write(AuditRecord(audit="keys.changed", target="key file", details=details))

    @contextmanager
    def action(self, name: str, who: str, client: str, target: str) -> Iterator[dict[str, Any]]:
        """Record what is done within, and with what result; details may be added to what it
        yields."""
        details: dict[str, Any] = {}
        result, reason = "failed", ""
        try:
            yield details
            result = "ok"
        except ActionRefusedError as error:
            result, reason = "refused", str(error)[:_MAX_TEXT]
            raise
        except Exception as error:
            reason = type(error).__name__
            raise
        finally:
            if len(msgspec.json.encode(details)) > 4 * _MAX_TEXT:
                details = {"left_out": "too long"}
            record = AuditRecord(
                audit=name,
                who=who,
                client=client,
                target=target[:_MAX_TEXT],
                details=details,
                result=result,
                reason=reason,
            )
            self.write(record)

    def close(self) -> None:
        """Write what waits, and close a file."""
        self._log.close()
        if isinstance(self._output, AuditFile):
            self._output.close()


class ActionRefusedError(Exception):
    """An action that is not done; its text says why."""


class AuditFile:
    """A file that is appended to, and bounded."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when it cannot be written."""
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        """LogStream.write."""
        if self._file.tell() + len(data) > MAX_FILE_BYTES and self._file.tell():
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def open_audit(path: str | None, stdout: LogStream, metrics: Metrics) -> AuditLog | None:
    """Return the log at a path, `-` for stdout; None for none. Raises OSError with a sentence."""
    if path is None:
        return None
    try:
        return AuditLog(stdout if path == "-" else AuditFile(Path(path)), metrics)
    except OSError as error:
        text = f"cannot write the audit log {path}: {error.strerror}; see --audit-log"
        raise OSError(error.errno, text) from None


def fingerprint(secret: str) -> str:
    """Return what tells one secret from another in a log, and nothing of it: secrets are random and
    long."""
    return "secret:" + blake2b(secret.encode(), digest_size=4, person=b"kvasir.audit").hexdigest()
