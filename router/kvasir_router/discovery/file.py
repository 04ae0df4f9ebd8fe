"""Models and replicas from a YAML file, read again when it changes.

models:
  - name: kvasir-tiny
    aliases: [tiny]
    replicas:
      - {id: r0, url: "http://127.0.0.1:8000"}
      - {id: r1, url: "http://127.0.0.1:8001", draining: true}
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import structlog
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvasir_router.discovery.base import DiscoveryError, ModelSpec, ReplicaSpec, Snapshot

MAX_FILE_BYTES = 4 * 1024 * 1024

_log = structlog.get_logger("kvasir_router.discovery")

Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileReplica(_Strict):
    """One engine by its base URL."""

    id: Name
    url: str
    draining: bool = False

    @model_validator(mode="after")
    def _plain_http(self) -> Self:
        self.address()
        return self

    def address(self) -> tuple[str, int]:
        """Host and port. Raises ValueError for anything but `http://HOST:PORT`."""
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"url {self.url!r} must be of the form http://HOST:PORT")
        return parts.hostname, parts.port or 80


class FileModel(_Strict):
    name: Name
    aliases: list[Name] = []
    replicas: list[FileReplica] = []

    @model_validator(mode="after")
    def _unique_ids(self) -> Self:
        twice = _duplicate(replica.id for replica in self.replicas)
        if twice is not None:
            raise ValueError(f"replica id {twice!r} is used twice in model {self.name!r}")
        return self


class FileConfig(_Strict):
    models: list[FileModel]

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        twice = _duplicate(name for model in self.models for name in (model.name, *model.aliases))
        if twice is not None:
            raise ValueError(f"name {twice!r} is given to a model or alias twice")
        return self

    def snapshot(self) -> Snapshot:
        return tuple(
            ModelSpec(
                name=model.name,
                aliases=tuple(model.aliases),
                replicas=tuple(
                    ReplicaSpec(replica.id, *replica.address(), draining=replica.draining)
                    for replica in model.replicas
                ),
            )
            for model in self.models
        )


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
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DiscoveryError(f"discovery file {path}: {where}: {first['msg']}") from None


def _parse_yaml(text: bytes) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
