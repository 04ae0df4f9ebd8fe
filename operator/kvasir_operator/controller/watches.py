"""Watches by kopf: label selectors, indexes, and from every event a key for the queue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

import kopf

from kvasir.kube import AccessError, Kind
from kvasir.kube.config import load_access
from kvasir.kube.objects import Object, name_of, namespace_of
from kvasir.resource import labels
from kvasir.resource.ownership.name_claims import names_of
from kvasir_operator.controller.view import (
    CHILDREN,
    CLUSTER_WIDE,
    ROUTERS,
    WATCHED,
    View,
    index_id,
    key_of,
)
from kvasir_operator.controller.work_queue import Key, WorkQueue
from kvasir_operator.departures.node_signals import kept_node
from kvasir_operator.kinds import CLASSES, MODEL_NAMES, NODES, PODS, name_of_kind
from kvasir_operator.settings import OperatorSettings

_RETRY_SECONDS = 2.0
_COMPONENTS = f"{labels.COMPONENT} in ({labels.ENGINE},{labels.DOWNLOAD},{labels.ROUTER})"


class WatchError(Exception):
    """Watching cannot go on, but a new process may begin anew; one sentence on why."""


class Watching:
    """Feeder of the queue from events in the cluster."""

    def __init__(
        self,
        view: View,
        queue: WorkQueue[Key],
        settings: OperatorSettings,
        pod_changed: Callable[[], None],
        node_changed: Callable[[], None],
    ) -> None:
        self._view = view
        self._queue = queue
        self._settings = settings
        self._pod_changed = pod_changed
        self._node_changed = node_changed
        self.registry = kopf.OperatorRegistry()
        for kind in (*WATCHED, NODES) if settings.node_drain else WATCHED:
            self._watch(kind)
        kopf.on.login(registry=self.registry)(_login)

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set. Raises WatchError when kopf gives up, as on the watch of a
        kind that the cluster no longer has."""
        namespaces = self._settings.watch_namespaces
        if namespaces:
            namespaces = tuple({*namespaces, self._settings.router_namespace})
        try:
            await kopf.operator(
                registry=self.registry,
                settings=_kopf_settings(self._settings.class_name),
                standalone=True,
                # Its own would have the user's name, which a container's user has not
                identity=cast(Any, labels.MANAGER),
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop,
            )
        except Exception as error:  # its own errors are not public
            raise WatchError(f"a watch ended: {error}") from error

    def _watch(self, kind: Kind) -> None:
        async def index(body: kopf.Body, **_: Any) -> dict[Key, Object] | None:
            kept = _kept(kind, body)
            key = key_of(kind, kept)
            if key is None or not self._is_served(kind, key):
                return None
            if kind is MODEL_NAMES:
                return {key: kept, Key("", name_of(kept)): kept}
            return {key: kept}

        async def on_event(body: kopf.Body, type: str | None, **kwargs: Any) -> None:  # noqa: A002
            self._view.bind(kwargs)
            if type == "DELETED":
                self._view.deleted(kind, body)
            key = key_of(kind, body)
            if key is not None and self._is_served(kind, key):
                self._note(kind, key, body, deleted=type == "DELETED")

        group, _, version = kind.api_version.rpartition("/")
        where = (group, version, kind.plural)
        kopf.index(*where, id=index_id(kind), registry=self.registry)(index)
        kopf.on.event(*where, id=f"on_{kind.plural}", registry=self.registry)(on_event)

    def _is_served(self, kind: Kind, key: Key) -> bool:
        """Tell if a key is ours: the routers' namespace may be watched only for its pods."""
        only = self._settings.watch_namespaces
        return kind in (*CLUSTER_WIDE, NODES) or key == ROUTERS or not only or key.namespace in only

    def _note(self, kind: Kind, key: Key, body: kopf.Body, *, deleted: bool) -> None:
        if kind is PODS:
            self._pod_changed()
        if kind is NODES:
            self._node_changed()
            return
        keys = self._view.keys() if key == ROUTERS or kind is CLASSES else [key]
        if kind is MODEL_NAMES and deleted:
            keys += self._waiting_for(str((body.get("spec") or {}).get("name")))
        for each in keys:
            self._queue.add(each)

    def _waiting_for(self, name: str) -> list[Key]:
        """Return the keys of LLMDeployments that may get a name which is free now."""
        wanting = (it for it in self._view.resources() if name in names_of(it))
        return [Key(namespace_of(it), name_of(it)) for it in wanting]


def _kept(kind: Kind, body: kopf.Body) -> Object:
    """Return an object without the fields that nobody here reads."""
    if kind is NODES:
        return kept_node(body)
    it = dict(body)
    it["metadata"] = {
        name: value for name, value in dict(body["metadata"]).items() if name != "managedFields"
    }
    it["kind"] = name_of_kind(kind)
    return it


async def _login(**_: Any) -> kopf.ConnectionInfo:
    """Give kopf what `kvasir.kube` finds: at its start, and whenever a server rejects it."""
    try:
        access = await load_access()
        scheme, token = (await access.authorization() or "").partition(" ")[::2]
    except AccessError as error:
        raise kopf.TemporaryError(str(error), delay=_RETRY_SECONDS) from error
    found = access.configuration
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        proxy_url=found.proxy,
    )


def _kopf_settings(class_name: str) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    # For ever, and soon after an API server is back; kopf's own delays grow to 21 s and then end
    settings.networking.error_backoffs = itertools.repeat(_RETRY_SECONDS)
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.reconnect_backoff = 1.0
    for kind in CHILDREN:
        group, _, version = kind.api_version.rpartition("/")
        selector = _COMPONENTS if kind is PODS else f"{labels.DEPLOYMENT}"
        settings.watching.label_selectors[group, version, kind.plural] = selector
    group, _, version = MODEL_NAMES.api_version.rpartition("/")
    own = f"{labels.CLASS}={class_name}"
    settings.watching.label_selectors[group, version, MODEL_NAMES.plural] = own
    return settings
