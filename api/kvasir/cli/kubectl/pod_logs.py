"""Logs of containers, by the API server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp

from kvasir.cli.kubectl.cluster_session import PODS, ClusterSession, explain
from kvasir.kube import ApiError, Kind
from kvasir.kube.client import read_body

LOGS = Kind("v1", "pods/log")
"""As a right names them."""
_SILENCE = aiohttp.ClientTimeout(sock_connect=10.0)
"""A log that is followed may be silent for as long as it likes."""
_MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The part of a log that is wanted."""

    tail: int | None = None
    """Last lines; None = all."""
    since_seconds: int | None = None
    """Age of the oldest line, in seconds."""
    since_time: str | None = None
    """Time of the oldest line, in RFC 3339; to the second."""
    limit_bytes: int | None = None
    """Bytes, at most."""
    previous: bool = False
    """True for the run before the last restart."""
    follow: bool = False
    """True to wait for what comes."""
    timestamps: bool = False
    """True to begin each line with its time."""

    def parameters(self, container: str) -> dict[str, str]:
        """Return the API's query."""
        numbers = {
            "tailLines": self.tail,
            "sinceSeconds": self.since_seconds,
            "sinceTime": self.since_time,
            "limitBytes": self.limit_bytes,
        }
        switches = {
            "previous": self.previous,
            "follow": self.follow,
            "timestamps": self.timestamps,
        }
        given = {name: str(value) for name, value in numbers.items() if value is not None}
        return {
            "container": container,
            **given,
            **{it: "true" for it, on in switches.items() if on},
        }


async def read_log(
    session: ClusterSession, namespace: str, pod: str, container: str, query: LogQuery, limit: int
) -> bytes:
    """Return a log of at most `limit` bytes. Raises ClusterError."""
    path = PODS.path(namespace, pod, "log")
    try:
        async with session.cluster.open("GET", path, query.parameters(container)) as response:
            return await read_body(response, limit)
    except ApiError as error:
        raise explain(error, session.cluster.access, "get", LOGS, namespace) from error


async def stream_log(
    session: ClusterSession, namespace: str, pod: str, container: str, query: LogQuery
) -> AsyncGenerator[str, None]:
    """Yield the lines of a log as they come; one of more than 1 MiB in pieces. Raises
    ClusterError."""
    path, sent = PODS.path(namespace, pod, "log"), query.parameters(container)
    try:
        async with session.cluster.open("GET", path, sent, timeout=_SILENCE) as response:
            rest = b""
            async for part in response.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
                if len(rest) > _MAX_LINE:
                    yield rest.decode(errors="replace")
                    rest = b""
            if rest:
                yield rest.decode(errors="replace")
    except ApiError as error:
        raise explain(error, session.cluster.access, "get", LOGS, namespace) from error
