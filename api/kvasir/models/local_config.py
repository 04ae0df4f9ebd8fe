"""Find a model's config.json on this machine, without downloading anything."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from kvasir.model_uri import ModelURI
from kvasir.models.hf_config import ConfigError


def find_config(uri: ModelURI, revision: str | None = None) -> Path:
    """The config.json, or the directory that holds it, of the model at `uri`. Raises ConfigError.

    For hf:// only the local Hugging Face cache is looked into.
    """
    if uri.scheme == "file":
        return Path(uri.name)
    if uri.scheme == "builtin":
        return _builtin(uri)
    cached = _from_cache(uri, revision) if uri.scheme == "hf" else None
    if cached is None:
        raise ConfigError(
            f"the config of {uri} is not on this machine; download its config.json and pass it"
            " with --config"
        )
    return cached


def _builtin(uri: ModelURI) -> Path:
    # The engine's package holds the model; it is found without being imported.
    spec = find_spec("kvasir_engine")
    places = spec.submodule_search_locations if spec is not None else None
    name = uri.name.removeprefix("kvasir-")
    for place in places or ():
        directory = Path(place) / "assets" / name
        if directory.is_dir():
            return directory
    raise ConfigError(f"{uri} is not installed; the model that comes with Kvasir is kvasir-tiny")


def _from_cache(uri: ModelURI, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        raise ConfigError(
            f"the config of {uri} cannot be looked up without huggingface_hub; pass its config.json"
            " with --config, or pip install huggingface_hub"
        ) from None
    found = try_to_load_from_cache(uri.name, "config.json", revision=uri.revision or revision)
    return Path(found) if isinstance(found, str) else None
