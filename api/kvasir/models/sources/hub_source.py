"""hf://ORG/NAME[@REVISION]: a Hugging Face hub, or what speaks its protocol at HF_ENDPOINT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from kvasir.model_uri import ModelURI
from kvasir.models.download_errors import DownloadError, PermanentError
from kvasir.models.hub_files import explain_hub_error
from kvasir.models.sources.http_reading import new_client, reading
from kvasir.models.sources.source import Digest, Listing, RemoteFile, Selection, safe_path

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_CREDENTIALS = (
    "ask for access on the model's page, and give a token in HF_TOKEN (on a cluster: the Secret"
    " that spec.model.secretRef names)"
)


class HubSource:
    """One repository at one commit."""

    def __init__(self, uri: ModelURI, revision: str | None, selection: Selection) -> None:
        self._uri = uri
        self._revision = revision
        self._selection = selection
        self._client = new_client()
        self._headers = build_hf_headers()

    def close(self) -> None:
        """See ModelSource."""
        self._client.close()

    def list(self) -> Listing:
        """The wanted files of the commit that the revision stands for now."""
        try:
            info = HfApi().model_info(self._uri.name, revision=self._revision, files_metadata=True)
        except Exception as error:  # its HTTP library has exceptions of its own
            message, permanent = explain_hub_error(self._uri, self._revision, error)
            raise (PermanentError if permanent else DownloadError)(message) from error
        found = [s for s in info.siblings or () if self._selection.takes(s.rfilename)]
        return Listing(tuple(self._file(s, info.sha) for s in found), info.sha)

    def _file(self, sibling: RepoSibling, commit: str | None) -> RemoteFile:
        url = hf_hub_url(self._uri.name, sibling.rfilename, revision=commit)
        return RemoteFile(safe_path(sibling.rfilename), sibling.size, url, _digest(sibling), commit)

    def read(
        self, file: RemoteFile, start: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Read the file's bytes; a commit never changes, so no validator is sent."""
        return reading(
            self._client,
            file.address,
            what=f"{file.path} of {self._uri} at {constants.ENDPOINT}",
            start=start,
            headers=self._headers,
            credentials=_CREDENTIALS,
        )


def _digest(sibling: RepoSibling) -> Digest | None:
    """Large files have their SHA-256, the others their blob's id in git."""
    if sibling.lfs is not None:
        return Digest("sha256", sibling.lfs.sha256)
    return Digest("git", sibling.blob_id) if sibling.blob_id else None
