"""A cluster of recorded objects in memory, for what commands say of them. Logs and metrics, which
only nodes have, are what a test says."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kvasir.kube import ApiError, Kind

Object = dict[str, Any]


class Access:
    server = "https://recorded"


class Content:
    def __init__(self, text: bytes, size: int) -> None:
        self._parts = [text[i : i + size] for i in range(0, len(text), size)]

    async def iter_any(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


class Response:
    def __init__(self, text: bytes, size: int) -> None:
        self.content = Content(text, size)


class RecordedCluster:
    """Stands for `Cluster`: lists by namespace and labels, reads by name, merges annotations."""

    def __init__(self, **objects: list[Object]) -> None:
        self.objects = objects
        """Objects by the plural of their kind."""
        self.forbidden: set[str] = set()
        """Plurals that may not be read."""
        self.absent: set[str] = set()
        """Plurals that the cluster does not know."""
        self.texts: dict[str, str | int] = {}
        """Answers by path, with "?previous" for the run before; a number is a refusal's status."""
        self.opened: list[tuple[str, dict[str, str]]] = []
        self.access = Access()
        self.part_size = 7

    def _check(self, kind: Kind) -> None:
        if kind.plural in self.forbidden:
            raise ApiError(403, "Forbidden", f'User "u" cannot read resource "{kind.plural}"')
        if kind.plural in self.absent:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str = "", fields: str = ""
    ) -> list[Object]:
        self._check(kind)
        return [
            copy.deepcopy(it)
            for it in self.objects.get(kind.plural, [])
            if namespace in (None, it["metadata"].get("namespace"))
            and _selected(it["metadata"].get("labels") or {}, selector)
        ]

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        self._check(kind)
        for it in self.objects.get(kind.plural, []):
            if it["metadata"]["name"] == name:
                return copy.deepcopy(it)
        return None

    async def merge(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        self._check(kind)
        for it in self.objects[kind.plural]:
            if it["metadata"]["name"] == name:
                found = it["metadata"].setdefault("annotations", {})
                found.update(body["metadata"]["annotations"])
                return it
        raise ApiError(404, "NotFound", name)

    @asynccontextmanager
    async def open(
        self, method: str, path: str, query: Mapping[str, str] | None = None, **_: Any
    ) -> AsyncIterator[Response]:
        asked = dict(query or {})
        self.opened.append((path, asked))
        container = f"?{asked['container']}" if "container" in asked else ""
        key = f"{path}{container}{'?previous' if asked.get('previous') else ''}"
        found = self.texts.get(key, 404)
        if isinstance(found, int):
            raise ApiError(found, "NotFound", "there is nothing")
        yield Response(found.encode(), self.part_size)


def _selected(labels: Mapping[str, str], selector: str) -> bool:
    several = re.fullmatch(r"(\S+) in \((.*)\)", selector)
    if several:
        return labels.get(several[1]) in several[2].split(",")
    for part in filter(None, selector.split(",")):
        key, equals, value = part.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True
