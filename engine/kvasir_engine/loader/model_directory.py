"""Find a model's directory, downloading it from a Hugging Face hub where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvasir.model_uri import ModelURI, ModelURIError, parse_model_uri
from kvasir.models.cache.volume import read_manifest
from kvasir.models.hf_config import ConfigError
from kvasir.models.hub_files import UNWANTED, WANTED, explain_hub_error
from kvasir.models.local_config import find_config
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.settings import EngineSettings

_TOKENIZER_FILES = tuple(pattern for pattern in WANTED if pattern != "*.safetensors")


def resolve_files(
    settings: EngineSettings, stand_in: str | None = None
) -> tuple[Path, EngineSettings]:
    """Return the model's directory, or that of its `stand_in`, and the settings with the
    tokenizer's. Raises ModelLoadError."""
    model_dir = resolve_model(
        stand_in or settings.model,
        settings.revision,
        remote_code=settings.trust_remote_code,
        download_dir=settings.download_dir,
    )
    if settings.tokenizer is None:
        return model_dir, settings
    tokenizer = resolve_tokenizer(settings.tokenizer, settings.download_dir)
    return model_dir, replace(settings, tokenizer=str(tokenizer))


def resolve_tokenizer(tokenizer: str, download_dir: str | None = None) -> Path:
    """Return the directory of a tokenizer that is not the model's: a path, or a hub's model, of
    which all but the weights is downloaded. Raises ModelLoadError."""
    if Path(tokenizer).is_dir():
        return Path(tokenizer)
    try:
        uri = parse_model_uri(tokenizer)
    except ModelURIError as error:
        raise ModelLoadError(f"--tokenizer: {error}") from error
    if uri.scheme != "hf":
        raise ModelLoadError(
            f"--tokenizer {tokenizer} is no directory; name one, or a model of the Hub (ORG/NAME)"
        )
    return _download(uri, uri.revision, _TOKENIZER_FILES, download_dir)


def resolve_model(
    model: str,
    revision: str | None = None,
    *,
    remote_code: bool = False,
    download_dir: str | None = None,
) -> Path:
    """The directory of `model`: a path, `builtin://kvasir-tiny`, `hf://ORG/NAME` or `ORG/NAME`.

    A hub's model is downloaded into `download_dir`, or the Hugging Face cache, unless it is there:
    safetensors, JSON, tokenizer and template files, with `remote_code` also Python. HF_ENDPOINT,
    HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they mean to huggingface_hub. Raises
    ModelLoadError.
    """
    try:
        uri = parse_model_uri(model)
        uri.require_local()
        if uri.scheme == "hf":
            wanted = [*WANTED, "*.py"] if remote_code else WANTED
            return _with_config(uri, _download(uri, uri.revision or revision, wanted, download_dir))
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


def _download(
    uri: ModelURI, revision: str | None, wanted: Sequence[str], download_dir: str | None
) -> Path:
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            uri.name,
            revision=revision,
            cache_dir=download_dir,
            allow_patterns=list(wanted),
            ignore_patterns=list(UNWANTED),
        )
    except Exception as error:  # its HTTP library has exceptions of its own
        raise ModelLoadError(explain_hub_error(uri, revision, error)[0]) from error
    return Path(path)


def _with_config(uri: ModelURI, directory: Path) -> Path:
    if not (directory / "config.json").is_file():
        raise ModelLoadError(f"{uri} has no config.json; is it a model for transformers?")
    return directory
