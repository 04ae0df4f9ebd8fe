"""Replicas that an LLMDeployment's `spec.external` names, and their keys in Secrets."""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

import structlog

from kvasir.base_url import BaseURL, parse_base_url
from kvasir.certificates import TlsError
from kvasir.kube.api import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir_router.discovery.kubernetes_objects import LLMDeployment, UpstreamURL
from kvasir_router.discovery.kubernetes_pods import Guest, guest_kind
from kvasir_router.discovery.specs import EngineKind, ReplicaSpec, Upstream
from kvasir_router.discovery.upstream_fields import UpstreamError, checked_key
from kvasir_router.wire.tls import context_for

READ_SECONDS = 15.0
"""Seconds between two readings of a Secret."""

_SECRETS = Kind("v1", "secrets")
_log = structlog.get_logger("kvasir_router.discovery")


class KeyName(NamedTuple):
    """One key of a Secret."""

    namespace: str
    secret: str
    key: str


class Selection(NamedTuple):
    """Pods of a namespace with some labels."""

    namespace: str
    selector: str


class FoundKey(NamedTuple):
    """An upstream's key, or a clause on why there is none."""

    value: str
    problem: str = ""

    def __repr__(self) -> str:
        """Leave the value out: it is nobody's to read."""
        return f"FoundKey(problem={self.problem!r})"


UNREAD = FoundKey("", "its key has not been read yet")


class SecretKeys:
    """Keys that LLMDeployments name, read by `get` of those Secrets alone. What was read last stays
    while the API server does not answer."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when a key has become another one."""
        self.found: dict[KeyName, FoundKey] = {}
        self._wanted: frozenset[KeyName] = frozenset()
        self._changed = changed
        self._asked = asyncio.Event()

    def want(self, names: Iterable[KeyName]) -> None:
        """Read these from now on, and forget all others."""
        wanted = frozenset(names)
        if wanted != self._wanted:
            self._wanted = wanted
            self.found = {name: each for name, each in self.found.items() if name in wanted}
            self._asked.set()

    async def follow(self, cluster: Cluster) -> None:
        """Read them whenever others are wanted, and from time to time, for ever."""
        while True:
            self._asked.clear()
            for name in sorted(self._wanted):
                await self._read(cluster, name)
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def _read(self, cluster: Cluster, name: KeyName) -> None:
        try:
            found = await _key_of(cluster, name)
        except (ApiError, OSError, TimeoutError) as error:
            _log.warning("a Secret cannot be read", secret=name.secret, error=str(error))
            return
        if name in self._wanted and self.found.get(name) != found:
            self.found[name] = found
            self._changed()


async def _key_of(cluster: Cluster, name: KeyName) -> FoundKey:
    where = f"Secret {name.secret!r}"
    try:
        secret = await cluster.get(_SECRETS, name.namespace, name.secret)
    except ApiError as error:
        if error.status != 403:
            raise
        return FoundKey("", f"routers may not read {where} (the chart's router.readableSecrets)")
    if secret is None:
        return FoundKey("", f"{where} does not exist")
    encoded = (secret.get("data") or {}).get(name.key)
    if encoded is None:
        return FoundKey("", f"{where} has no key {name.key!r}")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
        return FoundKey(checked_key(text, f"{where}, key {name.key!r},"))
    except (binascii.Error, UnicodeDecodeError):
        return FoundKey("", f"{where}, key {name.key!r}, is not text")
    except UpstreamError as error:
        return FoundKey("", str(error))


def keys_wanted(deployments: Iterable[LLMDeployment]) -> set[KeyName]:
    """Return the keys that the deployments' upstreams ask for."""
    return {
        name
        for deployment in deployments
        for url in deployment.urls
        if (name := _key_name(deployment, url)) is not None
    }


def upstream_replicas(
    deployment: LLMDeployment, keys: Mapping[KeyName, FoundKey]
) -> tuple[ReplicaSpec, ...]:
    """Return a replica for each of the deployment's URLs, also for one that cannot be used: it says
    why."""
    return tuple(_replica(deployment, i, url, keys) for i, url in enumerate(deployment.urls))


def guest_replicas(
    deployment: LLMDeployment, guests: Mapping[Selection, Sequence[Guest]]
) -> tuple[ReplicaSpec, ...]:
    """Return a replica for each pod of others that the deployment selects and that serves."""
    pods, selection = deployment.pods, selection_of(deployment)
    if pods is None or selection is None:
        return ()
    engine, upstream = guest_kind(pods.engine), None
    if pods.model:
        path = "/v1/models" if engine is EngineKind.OPENAI else "/health"
        upstream = Upstream(model=pods.model, health_path=path)
    return tuple(
        ReplicaSpec(
            each.id,
            each.host,
            pods.port,
            draining=each.leaves,
            departure=each.departure,
            engine=engine,
            node=each.node,
            upstream=upstream,
        )
        for each in sorted(guests.get(selection, ()), key=lambda it: (it.created, it.uid))
        if each.id
    )


def selection_of(deployment: LLMDeployment) -> Selection | None:
    """Return which pods of others serve the deployment: of its own namespace alone."""
    pods = deployment.pods
    return None if pods is None else Selection(deployment.metadata.namespace, pods.selector)


def _replica(
    deployment: LLMDeployment, index: int, given: UpstreamURL, keys: Mapping[KeyName, FoundKey]
) -> ReplicaSpec:
    name = _key_name(deployment, given)
    key = FoundKey("") if name is None else keys.get(name, UNREAD)
    url, problem = _checked(given)
    upstream = Upstream(
        url.prefix,
        given.model or "",
        key.value,
        given.key_header,
        given.ca_bundle or "",
        given.server_name or "",
        given.health_path or "",
        problem or key.problem,
    )
    return ReplicaSpec(
        f"{deployment.uid}/url-{index}",
        url.host,
        url.port,
        engine=EngineKind.OPENAI,
        tls=url.tls,
        upstream=upstream,
    )


def _key_name(deployment: LLMDeployment, given: UpstreamURL) -> KeyName | None:
    """Return the key that a URL asks for. What names a router's own files or variables is not
    looked at: who may write an LLMDeployment may not have those."""
    ref = given.key.secret_ref if given.key is not None else None
    return None if ref is None else KeyName(deployment.metadata.namespace, ref.name, ref.key)


def _checked(given: UpstreamURL) -> tuple[BaseURL, str]:
    """Return the parts of the URL, and why it cannot be used."""
    try:
        url = parse_base_url(given.url)
    except ValueError as error:
        return BaseURL("invalid.invalid", 443, True, "/v1"), str(error)
    if _is_own(url.host):
        return url, "its host is the router's own machine or a link-local address"
    if given.ca_bundle:
        try:
            context_for(given.ca_bundle)
        except TlsError as error:
            return url._replace(tls=False), f"caBundle: {error}"
    return url, ""


def _is_own(host: str) -> bool:
    """Return whether a request there would reach what only the router may: its own ports, or a
    node's metadata service."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.rstrip(".").lower().rpartition(".")[2] == "localhost"
    return address.is_loopback or address.is_link_local or address.is_unspecified
