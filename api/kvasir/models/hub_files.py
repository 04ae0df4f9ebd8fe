"""Files taken from a Hugging Face hub, and explanations of its errors."""

from __future__ import annotations

from fnmatch import fnmatch

from kvasir.model_uri import ModelURI

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")
"""Files that an engine reads: weights, configs, tokenizers and templates; no pickles, no code."""

UNWANTED = ("*/*", "consolidated*", "training_args*")
"""Folders hold other formats of the same weights (original/, onnx/), as does consolidated*."""


def is_wanted(path: str, further: tuple[str, ...] = ()) -> bool:
    """True for a file that an engine reads, or that a pattern of `further` asks for."""
    return any(fnmatch(path, pattern) for pattern in (*WANTED, *further)) and not any(
        fnmatch(path, pattern) for pattern in UNWANTED
    )


def explain_hub_error(uri: ModelURI, revision: str | None, error: Exception) -> tuple[str, bool]:
    """Return one sentence for a failed request to the hub, and True if it would fail again."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = constants.ENDPOINT
    match error:
        case GatedRepoError():
            return (
                f"{uri} is gated: ask for access on its page at {where},"
                f" then set HF_TOKEN to a token of your account"
            ), True
        case RevisionNotFoundError():
            return (
                f"{uri} has no revision {revision!r} at {where}; name a branch, tag or commit"
            ), True
        case RepositoryNotFoundError():
            return (
                f"{uri} does not exist at {where}, or is private:"
                f" check the name, and set HF_TOKEN if it needs one"
            ), True
        case LocalEntryNotFoundError() if constants.is_offline_mode():
            return (
                f"{uri} is not, or not completely, in the cache at {constants.HF_HUB_CACHE} and"
                f" HF_HUB_OFFLINE is set; download it once without HF_HUB_OFFLINE"
            ), True
        case LocalEntryNotFoundError():
            return (
                f"{uri} is not in the cache at {constants.HF_HUB_CACHE} and {where} cannot be"
                f" reached; check the network or HF_ENDPOINT"
            ), False
        case OfflineModeIsEnabled():
            return f"{uri} cannot be downloaded: HF_HUB_OFFLINE is set; unset it", True
    lasting = isinstance(error, HfHubHTTPError) and error.response.status_code in (
        400,
        401,
        403,
        404,
    )
    return f"{uri} cannot be downloaded from {where}: {' '.join(str(error).split())}", lasting
