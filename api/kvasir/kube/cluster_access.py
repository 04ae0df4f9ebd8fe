"""Where a cluster's API server is and with which credentials it is asked."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvasir.kube.kubeconfig import AccessError, read_kubeconfig

__all__ = ["AccessError", "ClusterAccess", "load_access"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """An API server and how to be let in."""

    server: str
    """Its URL."""
    context: ssl.SSLContext
    """Trusts its certificate, and shows the client's, if that is how it is known."""
    authorization: Callable[[], str | None]
    """The Authorization header of the next request; None = there is none."""
    namespace: str
    """Where to look when none is named."""


def load_access(
    context: str | None = None, environ: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
) -> ClusterAccess:
    """KUBECONFIG if it is set, the pod's service account inside a cluster, else ~/.kube/config.

    `context` is one of the kubeconfig's, by default its current one. Raises AccessError.
    """
    inside = "KUBERNETES_SERVICE_HOST" in environ and (account / "token").exists()
    if inside and context is None and not environ.get("KUBECONFIG"):
        return _service_account(account, environ)
    found = read_kubeconfig(context, environ)
    return ClusterAccess(found.server, found.ssl_context, found.authorization, found.namespace)


def _service_account(account: Path, environ: Mapping[str, str]) -> ClusterAccess:
    host = environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host

    def bearer() -> str:
        # The kubelet renews the token: it is read anew for each request
        return f"Bearer {(account / 'token').read_text(encoding='ascii').strip()}"

    try:
        trust = ssl.create_default_context(cafile=account / "ca.crt")
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise AccessError(f"the pod's service account cannot be read: {error}") from None
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    return ClusterAccess(f"https://{host}:{port}", trust, bearer, namespace)
