"""Paths of models and their files in a cache volume."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from kvasir.model_uri import ModelURI, ModelURIError

MANIFEST = "kvasir-model.json"
"""File in every complete model's directory: its source, revision and files with sizes and
hashes."""

STAGING = ".incomplete"
"""Hold a directory for each model that is not complete."""

LOCKS = ".locks"
"""Hold a lock file for each model that somebody downloads or removes."""

KERNELS = ".kernels"
"""Hold compiled kernels: a directory NAME/IMAGE for each image that LLMDeployment NAME has had."""

KERNELS_MARKER = "kvasir-kernels"
"""File in a directory of compiled kernels: engines that use it lock the file, and the last one's
start is its time of change."""

CACHED_SCHEMES = ("hf", "s3", "oci", "https", "http")
"""Schemes whose models are downloaded; pvc:// names a directory of a volume as it is."""

_READABLE_CHARS = 64
_HASH_CHARS = 12


def model_directory(uri: ModelURI, revision: str | None = None) -> str:
    """The directory of the model at `uri`, relative to the root of the volume it is cached in.

    One directory a URI and revision: readable, and ending in a hash of both. For pvc:// it is the
    path inside the claim. Raises ModelURIError for a scheme that has no place in a cache.
    """
    if uri.scheme == "pvc":
        return claim_and_path(uri)[1] or "."
    if uri.scheme not in CACHED_SCHEMES:
        raise ModelURIError(f"model URI {str(uri)!r} is not cached: it needs no download")
    canonical = str(replace(uri, revision=uri.revision or revision))
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", canonical)[:_READABLE_CHARS].strip("-.")
    return f"{readable}-{hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_CHARS]}"


def claim_and_path(uri: ModelURI) -> tuple[str, str]:
    """The claim's name and the path inside it of pvc://CLAIM[/PATH]."""
    claim, _, path = uri.name.partition("/")
    return claim, path.strip("/")
