"""Reads a kubeconfig file: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_EXEC_SECONDS = 60
_MAX_BYTES = 1 << 20


class AccessError(Exception):
    """No cluster can be reached; one sentence on why and what to do."""


class KubeconfigAccess(NamedTuple):
    """What the chosen context of a kubeconfig says."""

    server: str
    ssl_context: ssl.SSLContext
    authorization: Callable[[], str | None]
    namespace: str


def read_kubeconfig(context: str | None, environ: Mapping[str, str]) -> KubeconfigAccess:
    """The first file of KUBECONFIG, or ~/.kube/config. Raises AccessError."""
    paths = environ.get("KUBECONFIG", "").split(os.pathsep)
    path = Path(paths[0]) if paths[0] else Path.home() / ".kube" / "config"
    config = _load(path)
    name = context or config.get("current-context")
    if not name:
        raise AccessError(f"{path} has no current-context; choose one with kubectl config use")
    chosen = _named(config, "contexts", "context", name, path)
    cluster = _named(config, "clusters", "cluster", chosen.get("cluster"), path)
    user = _named(config, "users", "user", chosen.get("user"), path) if chosen.get("user") else {}
    try:
        trust = _trust(cluster, path.parent)
        _client_certificate(trust, user, path.parent)
    except (OSError, ValueError) as error:
        raise AccessError(f"{path}: a certificate of context {name} is no good: {error}") from None
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise AccessError(f"{path}: the server of context {name} is {server!r}, not a URL")
    return KubeconfigAccess(
        server, trust, _authorization(user, path.parent), chosen.get("namespace") or "default"
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise AccessError(f"{path} is larger than {_MAX_BYTES} bytes; it is no kubeconfig")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AccessError(
            f"{path} does not exist; set KUBECONFIG to the file of the cluster you mean"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AccessError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise AccessError(f"{path} is no kubeconfig")
    return content


def _named(config: dict[str, Any], group: str, key: str, name: Any, path: Path) -> dict[str, Any]:
    for entry in config.get(group) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry.get(key) or {}
    raise AccessError(f"{path} has no {key} named {name!r}")


def _trust(cluster: Mapping[str, Any], base: Path) -> ssl.SSLContext:
    if data := cluster.get("certificate-authority-data"):
        context = ssl.create_default_context(cadata=base64.b64decode(data).decode())
    elif file := cluster.get("certificate-authority"):
        context = ssl.create_default_context(cafile=base / file)
    else:
        context = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _client_certificate(context: ssl.SSLContext, user: Mapping[str, Any], base: Path) -> None:
    certificate, key = user.get("client-certificate"), user.get("client-key")
    if certificate and key:
        context.load_cert_chain(base / certificate, base / key)
    elif user.get("client-certificate-data") and user.get("client-key-data"):
        # OpenSSL reads them from files only
        with tempfile.TemporaryDirectory() as directory:
            pair = Path(directory) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(
                base64.b64decode(user["client-certificate-data"])
                + b"\n"
                + base64.b64decode(user["client-key-data"])
            )
            context.load_cert_chain(pair)


def _authorization(user: Mapping[str, Any], base: Path) -> Callable[[], str | None]:
    if token := user.get("token"):
        return lambda: f"Bearer {token}"
    if file := user.get("tokenFile"):
        return lambda: f"Bearer {(base / file).read_text(encoding='ascii').strip()}"
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        return lambda: f"Basic {base64.b64encode(pair).decode()}"
    if command := user.get("exec"):
        token = _plugin_token(command)
        return lambda: f"Bearer {token}"
    return lambda: None


def _plugin_token(plugin: Mapping[str, Any]) -> str:
    """The token that a cloud's credential plugin prints. Raises AccessError."""
    version = plugin.get("apiVersion") or "client.authentication.k8s.io/v1"
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    extra = {each["name"]: each["value"] for each in plugin.get("env") or ()}
    command = [plugin["command"], *(plugin.get("args") or ())]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            capture_output=True,
            timeout=_EXEC_SECONDS,
            check=True,
        )
        return str(json.loads(done.stdout)["status"]["token"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise AccessError(f"{command[0]} gave no token: {error}") from None
