"""oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST]: a container registry.

Images with a model in /models (modelcars), ORAS artifacts and model packages: what is a file in the
registry is taken as it is, layers that are archives are unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.model_uri import ModelURI
from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.http_reading import (
    LOOPBACK,
    check,
    failures_explained,
    new_client,
    reading,
)
from kvasir.models.sources.registry_auth import CREDENTIALS, RegistryAuth
from kvasir.models.sources.registry_mirrors import mirrored_name
from kvasir.models.sources.source import Digest, Listing, RemoteFile, Selection, safe_path

_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_TITLES = ("org.opencontainers.image.title", "org.cncf.model.filepath", "org.cnai.model.filepath")
"""Annotations that name the file which a layer is."""
WITHOUT_TLS = "KVASIR_HTTP_REGISTRIES"
"""Variable with registries, HOST:PORT, separated by commas, that are spoken to without TLS."""
_UNPACK = "io.deis.oras.content.unpack"
_TARS = (".tar", "tar+gzip", "tar.gzip", ".tar.gz")
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_LAYERS = 1024
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository in a registry, and a tag or digest in it."""

    registry: str
    repository: str
    reference: str

    @property
    def url(self) -> str:
        """The repository's address in the registry's API; a registry on this machine has no TLS,
        nor have those that WITHOUT_TLS names."""
        host = "registry-1.docker.io" if self.registry == "docker.io" else self.registry
        plain = {name.strip() for name in os.environ.get(WITHOUT_TLS, "").split(",")}
        scheme = "http" if host.partition(":")[0] in LOOPBACK or host in plain else "https"
        return f"{scheme}://{host}/v2/{self.repository}"


def parse_reference(name: str) -> Reference:
    """The parts of what follows oci://; the tag is latest by default, a digest comes before it."""
    place, _, digest = name.partition("@")
    registry, _, rest = place.partition("/")
    repository, _, tag = rest.partition(":")
    if registry == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(registry, repository, digest or tag or "latest")


class RegistrySource:
    """One image or artifact."""

    def __init__(self, uri: ModelURI, selection: Selection) -> None:
        self._uri = uri
        self._selection = selection
        self._reference = parse_reference(mirrored_name(uri.name))
        self._client = new_client()
        self._auth = RegistryAuth(self._client, self._reference.registry, str(uri))

    def close(self) -> None:
        """See ModelSource."""
        self._client.close()

    def list(self) -> Listing:
        """The layers of the manifest, of this machine's platform where there are several."""
        manifest, digest = self._manifest(self._reference.reference)
        if "manifests" in manifest:
            manifest, digest = self._manifest(_of_platform(manifest, str(self._uri)))
        layers = manifest.get("layers")
        if not isinstance(layers, list) or not 0 < len(layers) <= _MAX_LAYERS:
            raise PermanentError(f"{self._uri} has no layers, or more than {_MAX_LAYERS}")
        try:
            files = [self._file(layer) for layer in layers]
        except (KeyError, TypeError, AttributeError) as error:
            raise PermanentError(f"{self._uri} has a layer without {error}") from error
        taken = self._selection.takes
        return Listing(tuple(f for f in files if f.archive or taken(Path(f.path).name)), digest)

    def _manifest(self, reference: str) -> tuple[dict[str, Any], str]:
        """The manifest and its digest, which is checked when it was asked for by digest."""
        accept = ", ".join((*_MANIFESTS, *_INDEXES))
        what = f"{self._uri} (manifest {reference})"
        with self._get(f"manifests/{reference}", what, {"accept": accept}) as (_, chunks):
            body = b""
            for chunk in chunks:
                body += chunk
                if len(body) > _MAX_MANIFEST_BYTES:
                    raise PermanentError(f"{what} is larger than {_MAX_MANIFEST_BYTES} bytes")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if reference.startswith("sha256:") and reference != digest:
            raise PermanentError(f"{what}: the registry sent other content, of digest {digest}")
        try:
            manifest = json.loads(body)
        except ValueError as error:
            raise PermanentError(f"{what} is not JSON: {error}") from error
        if not isinstance(manifest, dict):
            raise PermanentError(f"{what} is not a JSON object")
        return manifest, digest

    def _file(self, layer: dict[str, Any]) -> RemoteFile:
        media, digest, size = layer["mediaType"], layer["digest"], int(layer["size"])
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256":
            raise PermanentError(f"{self._uri}: layer {digest} is not named by its SHA-256")
        if media.endswith("zstd"):
            raise PermanentError(f"{self._uri}: layer {digest} is compressed with zstd; use gzip")
        notes = layer.get("annotations") or {}
        title = next((notes[name] for name in _TITLES if name in notes), None)
        archive = title is None or notes.get(_UNPACK) == "true" or media.endswith(".tar")
        if archive and not media.endswith(_TARS):
            raise PermanentError(
                f"{self._uri}: layer {digest} of type {media} is neither an archive nor named"
                f" by the annotation {_TITLES[0]}; push the files with oras or as an image"
            )
        path = f"layer-{value}.tar" if archive else safe_path(str(title))
        return RemoteFile(path, size, digest, Digest("sha256", value), archive=archive)

    @contextmanager
    def read(self, file: RemoteFile, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A blob's bytes; it is named by its hash, so it cannot change."""
        what = f"{file.address} of {self._uri}"
        with self._get(f"blobs/{file.address}", what, {}, start) as body:
            yield body

    @contextmanager
    def _get(
        self, path: str, what: str, headers: dict[str, str], start: int = 0
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        url = f"{self._reference.url}/{path}"
        asked = {**headers, **self._auth.headers()}
        with failures_explained(what):
            # A HEAD is the cheapest request that tells whether the token still holds.
            probe = self._client.head(url, headers=asked)
        if probe.status_code == 401:
            asked = headers | self._auth.renewed(probe)
        elif probe.status_code != 405:
            check(probe, what, CREDENTIALS)
        with reading(
            self._client, url, what=what, start=start, headers=asked, credentials=CREDENTIALS
        ) as body:
            yield body


def _of_platform(index: dict[str, Any], what: str) -> str:
    """The digest of the manifest for this machine in an image index."""
    machine = platform.machine()
    wanted = _ARCHITECTURES.get(machine, machine)
    for manifest in index["manifests"]:
        system = manifest.get("platform") or {}
        if system.get("os", "linux") == "linux" and system.get("architecture", wanted) == wanted:
            return str(manifest["digest"])
    raise PermanentError(f"{what} has no image for linux/{wanted}")
