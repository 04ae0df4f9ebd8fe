"""Address of a cluster's API server and the credentials for it.

The official client reads both: all files of KUBECONFIG merged, credential plugins, or a pod's
service account. Here is what it leaves to its users: which of them is meant, tokens that are
renewed, and one sentence about what is wrong.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.exec_provider import ExecProvider
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.config.kube_config import (
    ConfigNode,
    FileOrData,
    KubeConfigLoader,
    KubeConfigMerger,
)

from kvasir.kube.api import AccessError

__all__ = ["ClusterAccess", "load_access"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_SECONDS = 60
_REFRESH_SECONDS = 60.0
_SOON = timedelta(seconds=90)
"""A plugin's token that expires within this time is replaced: more than between two looks."""


class ClusterAccess:
    """An API server and how to be let in.

    Credentials are loaded again every minute, as bound tokens and plugins' tokens are renewed, and
    after `reject`.
    """

    def __init__(
        self,
        configuration: Configuration,
        load: Callable[[Configuration, bool], Awaitable[None]],
        namespace: str,
    ) -> None:
        self.configuration = configuration
        """The official client's."""
        self.namespace = namespace
        """Namespace to look in when none is named."""
        self._load = load
        self._due = time.monotonic() + _REFRESH_SECONDS
        self._rejected = False

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self.configuration.host)

    def reject(self) -> None:
        """Take note that the server did not accept the credentials."""
        self._due, self._rejected = 0.0, True

    async def authorization(self) -> str | None:
        """Return the next request's Authorization header; None = there is none.

        Raises AccessError when credentials that are due cannot be loaded.
        """
        if time.monotonic() >= self._due:
            rejected, self._rejected = self._rejected, False
            # Requests that come meanwhile go on with what there is
            self._due = time.monotonic() + _REFRESH_SECONDS
            try:
                await self._load(self.configuration, rejected)
            except AccessError:
                self._due, self._rejected = 0.0, rejected
                raise
        token = self.configuration.api_key.get("BearerToken")
        return None if token is None else str(token).strip()


async def load_access(
    context: str | None = None, environ: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
) -> ClusterAccess:
    """Return what KUBECONFIG says if it is set, the pod's service account inside a cluster, else
    ~/.kube/config.

    `context` is one of the kubeconfig's, by default its current one. Raises AccessError.
    """
    configuration = Configuration()
    inside = "KUBERNETES_SERVICE_HOST" in environ and (account / "token").exists()
    if inside and context is None and not environ.get("KUBECONFIG"):
        return await _service_account(configuration, account, environ)
    return await _kubeconfig(configuration, context, environ)


async def _service_account(
    configuration: Configuration, account: Path, environ: Mapping[str, str]
) -> ClusterAccess:
    places = str(account / "token"), str(account / "ca.crt")
    loader = InClusterConfigLoader(
        *places, environ={"KUBERNETES_SERVICE_PORT": "443", **environ}, try_refresh_token=False
    )

    async def load(configuration: Configuration, rejected: bool) -> None:
        try:
            loader.load_and_set(configuration)
        except (ConfigException, OSError) as error:
            raise AccessError(f"the pod's service account cannot be read: {error}") from None

    await load(configuration, False)
    try:
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise AccessError(f"the pod's service account cannot be read: {error}") from None
    return ClusterAccess(configuration, load, namespace)


async def _kubeconfig(
    configuration: Configuration, context: str | None, environ: Mapping[str, str]
) -> ClusterAccess:
    paths = environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(map(_exists, paths.split(os.pathsep))):
        raise AccessError(
            f"{paths} does not exist; set KUBECONFIG to the file of the cluster you mean"
        )

    async def load(configuration: Configuration, rejected: bool) -> None:
        loader.plugin_is_due |= rejected
        try:
            await loader.load_and_set(configuration)
        except (ConfigException, OSError, ValueError) as error:
            raise AccessError(f"{paths}: {_sentence(error)}") from None

    try:
        merged = KubeConfigMerger(paths)
        loader = _KubeconfigLoader(
            merged.config, context or _current(merged), config_base_path=None
        )
        await load(configuration, False)
        namespace = loader.current_context["context"].get("namespace") or "default"
    except (ConfigException, OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AccessError(f"{paths} cannot be used: {_sentence(error)}") from None
    except (AttributeError, KeyError, TypeError):
        raise AccessError(f"{paths} is no kubeconfig") from None
    if "host" not in vars(loader):
        raise AccessError(f"{paths}: the cluster has no server")
    if not configuration.host.startswith(("https://", "http://")):
        raise AccessError(f"{paths}: the server is {configuration.host!r}, not a URL")
    return ClusterAccess(configuration, load, namespace)


def _exists(path: str) -> bool:
    return bool(path) and Path(path).expanduser().exists()


def _current(merged: KubeConfigMerger) -> str | None:
    """Return the current context of the first file that has one, as kubectl takes it."""
    files = merged.config_files.values()
    return next((each["current-context"] for each in files if each.get("current-context")), None)


def _sentence(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class _KubeconfigLoader(KubeConfigLoader):  # type: ignore[misc]  # untyped
    """The official one runs a plugin again for each load when its token has no expiry, does no more
    than log why it failed, and raises TypeError for a context without a user."""

    plugin_is_due = True
    _user: Any
    _expires: datetime | None = None

    def set_active_context(self, context_name: str | None = None) -> None:
        super().set_active_context(context_name)
        if self._user is None:
            self._user = ConfigNode("users", {})

    async def load_from_exec_plugin(self) -> bool:
        expires = self._expires is not None and self._expires - datetime.now(UTC) < _SOON
        if not (self.plugin_is_due or expires):
            return True
        plugin = self._user["exec"]
        try:
            async with asyncio.timeout(_EXEC_SECONDS):
                status = await ExecProvider(plugin).run()
            self._take(status)
        except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            problem = _sentence(error)
            raise AccessError(f"{plugin['command']} gave no credentials: {problem}") from None
        self.plugin_is_due = False
        return True

    def _take(self, status: Mapping[str, str]) -> None:
        if "token" in status:
            self.token = f"Bearer {status['token']}"
        else:
            self.cert_file, self.key_file = (
                FileOrData(
                    {key: status[key]}, None, data_key_name=key, base64_file_content=False
                ).as_file()
                for key in ("clientCertificateData", "clientKeyData")
            )
        expires = status.get("expirationTimestamp")
        self._expires = datetime.fromisoformat(expires) if expires else None
