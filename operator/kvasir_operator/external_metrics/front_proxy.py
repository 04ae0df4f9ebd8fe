"""Check of the caller: the API server alone, which shows its front-proxy certificate and has
authenticated and authorised whom it asks for.

https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.kube import Kind
from kvasir.kube.client import Cluster

_CONFIG_MAPS = Kind("v1", "configmaps")
_NAMESPACE, _NAME = "kube-system", "extension-apiserver-authentication"


class FrontProxyError(Exception):
    """The cluster does not say how its front proxy is known; one sentence on what is missing."""


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """Front-proxy settings that the API server publishes about itself."""

    authority: str
    """PEM: signs its client certificate."""
    names: frozenset[str]
    """Common names that the certificate may have; empty = any."""
    user_headers: tuple[str, ...]
    """Headers that name the user it asks for."""

    def sent(self, certificate: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bool:
        """Return True if a request on a connection with the client's `certificate` (as
        SSLSocket.getpeercert gives it, so it was verified) is the API server's for some user."""
        if not certificate:
            return False
        named = {
            value
            for part in certificate.get("subject") or ()
            for key, value in part
            if key == "commonName"
        }
        known = not self.names or bool(named & self.names)
        return known and any(headers.get(header) for header in self.user_headers)


async def read_front_proxy(cluster: Cluster) -> FrontProxy:
    """Read kube-system/extension-apiserver-authentication. Raises FrontProxyError and ApiError."""
    found = await cluster.get(_CONFIG_MAPS, _NAMESPACE, _NAME)
    data = (found or {}).get("data") or {}
    authority = data.get("requestheader-client-ca-file")
    if not authority:
        raise FrontProxyError(
            f"{_NAMESPACE}/{_NAME} has no requestheader-client-ca-file; start the API server with"
            " its aggregation layer (--requestheader-client-ca-file)"
        )
    return FrontProxy(
        authority,
        frozenset(_listed(data, "requestheader-allowed-names")),
        _listed(data, "requestheader-username-headers"),
    )


def _listed(data: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        values = json.loads(data.get(name) or "[]")
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise FrontProxyError(f"{_NAMESPACE}/{_NAME}: {name} is no JSON list")
    return tuple(map(str, values))
