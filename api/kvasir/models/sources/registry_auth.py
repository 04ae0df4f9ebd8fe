"""Authenticate to a container registry: bearer tokens, basic auth, Docker config files."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import httpx

from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.http_reading import check, failures_explained, is_private

CREDENTIALS = (
    "log in to the registry, or name a Docker config.json in REGISTRY_AUTH_FILE (on a cluster: the"
    " Secret of type kubernetes.io/dockerconfigjson that spec.model.secretRef names)"
)
_MAX_FILE_BYTES = 1 << 20
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB = ("https://index.docker.io/v1/", "docker.io", "registry-1.docker.io")


class RegistryAuth:
    """The Authorization header for one registry, made anew when the registry asks for it."""

    def __init__(self, client: httpx.Client, registry: str, what: str) -> None:
        self._client = client
        self._what = what
        self._login = _login(registry)
        self._header: str | None = None
        self._lock = threading.Lock()

    def headers(self) -> dict[str, str]:
        """The headers that were good the last time."""
        return {"authorization": self._header} if self._header else {}

    def renewed(self, refusal: httpx.Response) -> dict[str, str]:
        """New headers, by what `refusal` (a 401) asks for. Raises DownloadError."""
        challenge = refusal.headers.get("www-authenticate", "")
        with self._lock:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                self._header = f"Bearer {self._token(dict(_CHALLENGE.findall(rest)))}"
            elif (
                scheme.lower() == "basic"
                and self._login
                and "authorization" not in (refusal.request.headers)
            ):
                self._require_private(str(refusal.request.url))
                self._header = _basic(*self._login)
            else:
                raise PermanentError(f"{self._what} is refused (401): {CREDENTIALS}")
            return self.headers()

    def _require_private(self, url: str) -> None:
        """Raises PermanentError where a password would be readable on its way."""
        if not is_private(url):
            raise PermanentError(f"{self._what} asks for a password without TLS at {url}")

    def _token(self, challenge: dict[str, str]) -> str:
        realm = challenge.pop("realm", "")
        challenge.pop("error", None)
        headers = {}
        if self._login:
            self._require_private(realm)
            headers["authorization"] = _basic(*self._login)
        what = f"{self._what} (token of {realm})"
        with failures_explained(what):
            answer = self._client.get(realm, params=challenge, headers=headers)
        check(answer, what, CREDENTIALS)
        try:
            given: dict[str, Any] = answer.json()
            return str(given.get("token") or given["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            # Without its words: they may be a token all the same, and end in a status
            kind = answer.headers.get("content-type", "no type")
            told = f"{len(answer.content)} bytes of {kind}"
            raise PermanentError(
                f"{what}: the answer ({told}) is no JSON object with token or access_token; check"
                " the registry's address, or the proxy on the way to it"
            ) from error


def _login(registry: str) -> tuple[str, str] | None:
    """User and password for `registry` in the Docker config file; None where there is none.

    Raises PermanentError for a file that cannot be read.
    """
    file = auth_file()
    if file is None:
        return None
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise PermanentError(f"{file} is larger than {_MAX_FILE_BYTES} bytes")
        entries: dict[str, Any] = json.loads(file.read_bytes()).get("auths") or {}
        names = _DOCKER_HUB if registry == "docker.io" else (registry, f"https://{registry}")
        entry = next((entries[name] for name in names if name in entries), None)
        if not entry:
            return None
        if "auth" not in entry:
            return str(entry["username"]), str(entry["password"])
        user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, binascii.Error) as error:
        raise PermanentError(
            f"{file} cannot be read as a Docker config.json: {error}; {CREDENTIALS}"
        ) from error
    return user, password


def auth_file() -> Path | None:
    """The Docker config file: REGISTRY_AUTH_FILE, else DOCKER_CONFIG or ~/.docker."""
    named = os.environ.get("REGISTRY_AUTH_FILE")
    if named:
        return Path(named)
    directory = os.environ.get("DOCKER_CONFIG")
    home = Path(directory) if directory else Path.home() / ".docker"
    file = home / "config.json"
    return file if file.is_file() else None


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
