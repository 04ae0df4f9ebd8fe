"""Model sources, one file per URI scheme."""

from __future__ import annotations

from kvasir.model_uri import ModelURI
from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.source import ModelSource, Selection


def open_source(uri: ModelURI, revision: str | None, selection: Selection) -> ModelSource:
    """The source of the model at `uri`. Raises PermanentError for a scheme without one, or whose
    library is not installed."""
    try:
        match uri.scheme:
            case "hf":
                from kvasir.models.sources.hub_source import HubSource

                return HubSource(uri, uri.revision or revision, selection)
            case "s3":
                from kvasir.models.sources.s3_source import S3Source

                return S3Source(uri, selection)
            case "oci":
                from kvasir.models.sources.registry_source import RegistrySource

                return RegistrySource(uri, selection)
            case "https" | "http":
                from kvasir.models.sources.web_source import WebSource

                return WebSource(uri, selection)
    except ModuleNotFoundError as error:
        extra = "s3" if uri.scheme == "s3" else "sim"
        raise PermanentError(
            f"{uri.scheme}:// needs {error.name}; install with pip install 'kvasir[{extra}]'"
        ) from error
    raise PermanentError(f"{uri} is not downloaded: {uri.scheme}:// names what is already there")
