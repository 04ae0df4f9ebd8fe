"""Find a model's directory, downloading it from a Hugging Face hub where that is asked for."""

from __future__ import annotations

from pathlib import Path

from kvasir.model_uri import ModelURI, ModelURIError, parse_model_uri
from kvasir.models.cache.volume import read_manifest
from kvasir.models.hf_config import ConfigError
from kvasir.models.hub_files import UNWANTED, WANTED, explain_hub_error
from kvasir.models.local_config import find_config
from kvasir_engine.loader.load_error import ModelLoadError


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
    """The commit that a directory of the Hub's cache, or of a cache volume, is of: a branch means
    another one tomorrow. What was `asked` for where the directory is no cache's."""
    manifest = read_manifest(directory)
    if manifest is not None:
        return manifest.revision or asked
    return directory.name if directory.parent.name == "snapshots" else asked


def _download(uri: ModelURI, revision: str | None, *, remote_code: bool) -> Path:
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            uri.name,
            revision=revision,
            allow_patterns=[*WANTED, "*.py"] if remote_code else list(WANTED),
            ignore_patterns=list(UNWANTED),
        )
    except Exception as error:  # its HTTP library has exceptions of its own
        raise ModelLoadError(explain_hub_error(uri, revision, error)[0]) from error
    if not (Path(path) / "config.json").is_file():
        raise ModelLoadError(f"{uri} has no config.json; is it a model for transformers?")
    return Path(path)
