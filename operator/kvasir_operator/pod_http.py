"""Ask pods over HTTP, by their addresses."""

from __future__ import annotations

from collections.abc import Generator

import httpx

from kvasir.kube.objects import Object
from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER
from kvasir.wire.fleet_secret_file import FleetSecretFile


class FleetProof(httpx.Auth):
    """Put the fleet's secret of the moment into each request."""

    def __init__(self, secret: FleetSecretFile) -> None:
        self._secret = secret

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """httpx.Auth.auth_flow."""
        if sent := self._secret.now.sent:
            request.headers[FLEET_SECRET_HEADER] = sent
        yield request


class NoAnswerError(Exception):
    """A pod did not answer as it should; one clause on why."""


def host_of(pod: Object) -> str:
    """Return the pod's address as URLs have it; "" before it has one."""
    address = str((pod.get("status") or {}).get("podIP") or "")
    return f"[{address}]" if ":" in address else address


async def ask(
    client: httpx.AsyncClient, pod: Object, port: int, path: str, limit: int
) -> tuple[int, bytes]:
    """Return the status and the body of GET `path` at `port` of `pod`.

    Raises NoAnswerError, also when the body is larger than `limit` bytes, of which no more is read.
    """
    try:
        async with client.stream("GET", f"http://{host_of(pod)}:{port}{path}") as response:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > limit:
                    raise NoAnswerError(f"an answer is larger than {limit} bytes")
            return response.status_code, bytes(body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoAnswerError(str(error) or type(error).__name__) from error
