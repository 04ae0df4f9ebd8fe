"""Mirrors of registries that oci:// models are downloaded from."""

from __future__ import annotations

import os
from collections.abc import Mapping

MIRRORS = "KVASIR_REGISTRY_MIRRORS"
"""Variable with pairs SOURCE=MIRROR, separated by commas, of registries or registry and path; the
source * stands for every registry."""


def mirrored_name(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a name of the form REGISTRY/REPOSITORY at the mirror of the longest source that it
    begins with; without one, or on a mirror already, as it is."""
    given = (pair.strip().partition("=") for pair in environ.get(MIRRORS, "").split(","))
    return at_mirror(name, [(source, mirror) for source, _, mirror in given if source and mirror])


def at_mirror(name: str, mirrors: list[tuple[str, str]]) -> str:
    """The same with pairs of source and mirror."""
    if any(_rest(name, mirror) is not None for _, mirror in mirrors):
        return name
    found = [(s, m, rest) for s, m in mirrors if (rest := _rest(name, s)) is not None]
    if not found:
        return name
    _, mirror, rest = max(found, key=lambda it: len(it[0].rstrip("*")))
    return f"{mirror}/{rest}"


def _rest(name: str, source: str) -> str | None:
    """Return what follows `source` and a slash in a name; None = it is not of it."""
    if source == "*":
        return name.partition("/")[2]
    return name[len(source) + 1 :] if name.startswith(f"{source}/") else None
