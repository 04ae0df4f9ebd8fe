"""The model, the router's Service and the key that a conversation needs."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvasir.cli.kubectl.cluster_session import (
    ClusterError,
    ClusterSession,
    NotAllowedError,
)
from kvasir.kube import Kind
from kvasir.kube.objects import Object, name_of, namespace_of
from kvasir.resource import labels
from kvasir.resource.ownership.name_claims import names_of

SERVICES = Kind("v1", "services")
SECRETS = Kind("v1", "secrets")
_ROUTERS = f"{labels.COMPONENT}={labels.ROUTER}"
_MAX_KEY_BYTES = 4096
_IN_CLUSTER = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)(?:\.svc(?:\..*)?)?")


@dataclass(frozen=True, slots=True)
class ChatTarget:
    """Address and identity of a conversation."""

    model: str
    namespace: str
    """The router's."""
    service: str
    port: int
    scheme: str
    api_key: str | None


async def find_target(
    session: ClusterSession, name: str, key_secret: str | None = None
) -> ChatTarget:
    """Return what a conversation with the LLMDeployment or model `name` needs; its key is in
    `key_secret`, SECRET or SECRET/KEY. Raises ClusterError."""
    resource = await session.deployment(name)
    # By the name that was given: a key may be good for that one alone
    served = names_of(resource)
    model = name if name in served else served[0]
    service = _choose(await _routers(session), (resource.get("status") or {}).get("url"))
    port = _client_port(service) if service is not None else None
    if service is None or port is None:
        raise ClusterError(
            f"there is no Service of a router (label {_ROUTERS}) that you may read; install one, or"
            " use kvasir chat --url with its address"
        )
    key = await _key(session, namespace_of(resource), key_secret) if key_secret else None
    return ChatTarget(
        model=model,
        namespace=namespace_of(service),
        service=name_of(service),
        port=int(port["port"]),
        scheme=str(port["name"]),
        api_key=key,
    )


async def _routers(session: ClusterSession) -> list[Object]:
    """Return the Services of routers, in all namespaces if they may be read."""
    for place in (ClusterSession(session.cluster, None), session):
        try:
            return await place.find(SERVICES, selector=_ROUTERS)
        except NotAllowedError:
            continue
    return []


def _client_port(service: Object) -> Object | None:
    """Return the port for clients; None of the admin port's Service."""
    ports = service["spec"].get("ports") or ()
    return next((port for port in ports if port.get("name") in ("http", "https")), None)


def _choose(services: Sequence[Object], url: str | None) -> Object | None:
    """Return the Service that the LLMDeployment's URL names, or else the only or first one."""
    found = [it for it in services if _client_port(it) is not None]
    place = _IN_CLUSTER.fullmatch(urlsplit(url).hostname or "") if url else None
    if place is not None:
        for it in found:
            if (name_of(it), namespace_of(it)) == (place[1], place[2]):
                return it
    return min(found, key=lambda it: (namespace_of(it), name_of(it)), default=None)


async def _key(session: ClusterSession, namespace: str, reference: str) -> str:
    """Return a key out of a Secret; what it holds is in no message."""
    name, _, entry = reference.partition("/")
    secret = await session.get(SECRETS, namespace, name)
    if secret is None:
        raise ClusterError(f"--key-secret: there is no Secret {name!r} in namespace {namespace}")
    data = secret.get("data") or {}
    if not entry and len(data) == 1:
        entry = next(iter(data))
    if entry not in data:
        there = ", ".join(sorted(data)) or "nothing"
        raise ClusterError(
            f"--key-secret: Secret {name} has {there}; name the entry as {name}/ENTRY"
        )
    try:
        text = base64.b64decode(data[entry], validate=True)[:_MAX_KEY_BYTES].decode("ascii").strip()
    except ValueError:
        text = ""
    if not text or not text.isprintable():
        raise ClusterError(f"--key-secret: {name}/{entry} is no key; it must be printable ASCII")
    return text
