"""https://HOST/PATH: an archive of a model, or the list of the files of one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from kvasir.model_uri import ModelURI
from kvasir.models.cache.layout import MANIFEST
from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.http_reading import (
    check,
    failures_explained,
    is_private,
    new_client,
    reading,
)
from kvasir.models.sources.source import (
    ARCHIVE_SUFFIXES,
    Digest,
    Listing,
    RemoteFile,
    Selection,
    is_archive,
    safe_path,
)

TOKEN_VARIABLE = "KVASIR_HTTP_TOKEN"  # noqa: S105  (the variable's name)
MAX_LIST_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CREDENTIALS = (
    f"give a bearer token in {TOKEN_VARIABLE} (on a cluster: the Secret that spec.model.secretRef"
    " names)"
)


class WebSource:
    """An archive, whose hash may stand in the URI (#sha256=HEX), or a list of files:
    {"files": [{"path", "size", "sha256"}]}, such as the one in every directory of a cache."""

    def __init__(self, uri: ModelURI, selection: Selection) -> None:
        self._what = str(uri).partition("#")[0]
        self._url, _, fragment = str(uri).partition("#")
        self._sha256 = _hash_of(fragment, str(uri))
        self._path = urlsplit(self._url).path
        self._selection = selection
        self._client = new_client()
        token = os.environ.get(TOKEN_VARIABLE)
        self._headers = {}
        if token:
            if not is_private(self._url):
                raise PermanentError(f"{self._what}: a token is sent over https:// only; use that")
            self._headers["authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """See ModelSource."""
        self._client.close()

    def list(self) -> Listing:
        """The archive, or the files that the list at the URI names."""
        if is_archive(self._path):
            return Listing((self._archive(),))
        if self._path.endswith(".json"):
            return self._listed()
        raise PermanentError(
            f"{self._what} is neither an archive ({', '.join(ARCHIVE_SUFFIXES)}) nor a list of"
            f" files (.json, as {MANIFEST} in a directory of a cache); name one of them"
        )

    def _archive(self) -> RemoteFile:
        with failures_explained(self._what):
            head = self._client.head(self._url, headers=self._headers)
        check(head, self._what, _CREDENTIALS)
        size = head.headers.get("content-length", "")
        name = self._path.rpartition("/")[2]
        return RemoteFile(
            safe_path(name),
            int(size) if size.isdigit() else None,
            self._url,
            Digest("sha256", self._sha256) if self._sha256 else None,
            head.headers.get("etag") or head.headers.get("last-modified"),
            archive=True,
        )

    def _listed(self) -> Listing:
        body = bytearray()
        with self._reading(self._url, self._what) as (_, chunks):
            for chunk in chunks:
                body += chunk
                if len(body) > MAX_LIST_BYTES:
                    raise PermanentError(f"{self._what} is larger than {MAX_LIST_BYTES} bytes")
        try:
            listed = json.loads(body)
            files = tuple(self._file(each) for each in listed["files"])
            revision = listed.get("revision")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PermanentError(
                f'{self._what} is no list of files: {{"files": [{{"path", "size", "sha256"}}]}}'
            ) from error
        taken = tuple(file for file in files if self._selection.takes(file.path))
        return Listing(taken, revision if isinstance(revision, str) else None)

    def _file(self, entry: dict[str, Any]) -> RemoteFile:
        path, size, sha256 = safe_path(entry["path"]), entry["size"], entry["sha256"]
        if not isinstance(size, int) or size < 0 or not _SHA256.fullmatch(sha256):
            raise ValueError(path)
        address = urljoin(self._url, quote(path))
        return RemoteFile(path, size, address, Digest("sha256", sha256))

    def read(
        self, file: RemoteFile, start: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Read the file's bytes, from `start` where the server has ranges."""
        return self._reading(file.address, file.address, start, file.version)

    def _reading(
        self, url: str, what: str, start: int = 0, version: str | None = None
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        return reading(
            self._client,
            url,
            what=what,
            start=start,
            version=version,
            headers=self._headers,
            credentials=_CREDENTIALS,
        )


def _hash_of(fragment: str, uri: str) -> str | None:
    """The hash in a URI's `fragment`. Raises PermanentError."""
    if not fragment:
        return None
    name, _, value = fragment.partition("=")
    if name != "sha256" or not _SHA256.fullmatch(value):
        raise PermanentError(f"{uri}: after # only sha256= and 64 hexadecimal digits may follow")
    return value
