"""Models and replicas from a YAML (or JSON) file, read again when it changes.

models:
  - name: kvasir-tiny
    aliases: [tiny]
    policy: kv_aware             # default: the router's --policy
    adapters: [tiny-sql]         # LoRA adapters that its replicas serve, by name
    replicas:
      - id: r0
        url: "http://127.0.0.1:8000"
        grpc_port: 8001          # load and prompt reports (kvasir serve --grpc-port)
        kv_events: "tcp://127.0.0.1:5557"
        kv_replay: "tcp://127.0.0.1:5558"
      - {id: r1, url: "http://127.0.0.1:8010", draining: true}
      - {id: r2, url: "http://127.0.0.1:8020", engine: vllm}   # or sglang, openai
  - name: kvasir-tiny-v2
canaries:
  - name: chat                   # one name for several models, by weight
    split: {kvasir-tiny: 95, kvasir-tiny-v2: 5}
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
import yaml
from pydantic import ValidationError

from kvasir_router.discovery.base import DiscoveryError, Snapshot
from kvasir_router.discovery.schema import FileConfig

MAX_FILE_BYTES = 4 * 1024 * 1024

_log = structlog.get_logger("kvasir_router.discovery")


class FileSource:
    """A discovery file at `path`, looked at every `interval` seconds.

    `reported` is called after each attempt to read a changed file, with whether it was good.
    """

    def __init__(self, path: Path, reported: Callable[[bool], None], interval: float = 0.5) -> None:
        self._path = path
        self._reported = reported
        self._interval = interval
        self._seen: tuple[int, ...] | None = None

    async def load(self) -> Snapshot:
        self._seen = self._stamp()
        snapshot = await asyncio.to_thread(read_snapshot, self._path)
        self._reported(True)
        return snapshot

    async def watch(self) -> AsyncIterator[Snapshot]:
        while True:
            await asyncio.sleep(self._interval)
            if self._stamp() == self._seen:
                continue
            try:
                snapshot = await self.load()
            except DiscoveryError as error:
                self._reported(False)
                _log.error("discovery file refused, the last good one stays", error=str(error))
            else:
                _log.info("discovery file read", models=len(snapshot))
                yield snapshot

    def confirm(self, serving: Sequence[tuple[str, str]]) -> None:
        """Source.confirm: nobody reads a file's back side."""

    def _stamp(self) -> tuple[int, ...] | None:
        """Changes when the file does, also when another one is moved to its place."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


def read_snapshot(path: Path) -> Snapshot:
    """Raises DiscoveryError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DiscoveryError(f"cannot read discovery file {path}: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise DiscoveryError(f"discovery file {path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        content = _parse_yaml(text)
        if not isinstance(content, dict):
            raise DiscoveryError(f"discovery file {path} must be a dictionary with key `models`")
        return FileConfig.model_validate(content).snapshot()
    except yaml.YAMLError as error:
        raise DiscoveryError(f"discovery file {path} is not YAML: {_one_line(error)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DiscoveryError(f"discovery file {path}: {where}: {reason}") from None


def _parse_yaml(text: bytes) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
