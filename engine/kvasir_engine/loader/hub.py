"""Finds a model's directory, downloading it from a Hugging Face hub where that is asked for."""

from __future__ import annotations

from pathlib import Path

from kvasir.hf_config import ConfigError
from kvasir.model_files import find_config
from kvasir.model_uri import ModelURI, ModelURIError, parse_model_uri
from kvasir_engine.loader.errors import ModelLoadError

_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "tokenizer*"]
_UNWANTED = ["*/*", "consolidated*", "training_args*"]
"""Folders hold other formats of the same weights (original/, onnx/), as does consolidated*."""


def resolve_model(model: str, revision: str | None = None, *, remote_code: bool = False) -> Path:
    """The directory of `model`: a path, `builtin://kvasir-tiny`, `hf://ORG/NAME` or `ORG/NAME`.

    A hub's model is downloaded into the Hugging Face cache unless it is there: safetensors, JSON,
    tokenizer and template files, with `remote_code` also Python. HF_ENDPOINT, HF_TOKEN, HF_HOME
    and HF_HUB_OFFLINE mean what they mean to huggingface_hub. Raises ModelLoadError.
    """
    try:
        uri = parse_model_uri(model)
        uri.require_local()
        if uri.scheme == "hf":
            return _download(uri, uri.revision or revision, remote_code=remote_code)
        if revision is not None:
            raise ModelLoadError(f"revision {revision!r} has a meaning only with hf://, not {uri}")
        directory = find_config(uri)
    except (ModelURIError, ConfigError) as error:
        raise ModelLoadError(str(error)) from error
    if not directory.is_dir():
        raise ModelLoadError(f"{directory} is not a directory; name a Hugging Face model directory")
    return directory


def loaded_revision(directory: Path, asked: str | None) -> str | None:
    """The commit that a directory of the Hub's cache is of: a branch means another one tomorrow.
    What was `asked` for where the directory is none of the cache's."""
    return directory.name if directory.parent.name == "snapshots" else asked


def _download(uri: ModelURI, revision: str | None, *, remote_code: bool) -> Path:
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            uri.name,
            revision=revision,
            allow_patterns=[*_WANTED, "*.py"] if remote_code else _WANTED,
            ignore_patterns=_UNWANTED,
        )
    except Exception as error:  # its HTTP library has exceptions of its own
        raise ModelLoadError(_explain(uri, revision, error)) from error
    if not (Path(path) / "config.json").is_file():
        raise ModelLoadError(f"{uri} has no config.json; is it a model for transformers?")
    return Path(path)


def _explain(uri: ModelURI, revision: str | None, error: Exception) -> str:
    """One sentence for a failed download."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = constants.ENDPOINT
    match error:
        case GatedRepoError():
            return (
                f"{uri} is gated: ask for access on its page at {where},"
                f" then set HF_TOKEN to a token of your account"
            )
        case RevisionNotFoundError():
            return f"{uri} has no revision {revision!r} at {where}; name a branch, tag or commit"
        case RepositoryNotFoundError():
            return (
                f"{uri} does not exist at {where}, or is private:"
                f" check the name, and set HF_TOKEN if it needs one"
            )
        case LocalEntryNotFoundError() if constants.is_offline_mode():
            return (
                f"{uri} is not, or not completely, in the cache at {constants.HF_HUB_CACHE} and"
                f" HF_HUB_OFFLINE is set; download it once without HF_HUB_OFFLINE"
            )
        case LocalEntryNotFoundError():
            return (
                f"{uri} is not in the cache at {constants.HF_HUB_CACHE} and {where} cannot be"
                f" reached; check the network or HF_ENDPOINT"
            )
    return f"{uri} cannot be downloaded from {where}: {' '.join(str(error).split())}"
