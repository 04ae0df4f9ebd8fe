"""A setting and its flag of `kvasir serve`, declared together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

PANELS = MODEL, CACHE, STEP, HTTP, OPS = (
    "Model",
    "KV cache",
    "Scheduling",
    "HTTP",
    "Operations",
)
"""Groups of flags, in the order of --help."""


@dataclass(frozen=True)
class Flag:
    """Command-line flag of a setting, as --help shows it."""

    help: str
    panel: str
    name: str = ""
    """Name of the flag where it differs from the field's."""
    bounds: Mapping[str, Any] | None = None


def flag(default: Any, help_: str, panel: str, name: str = "", **bounds: Any) -> Any:
    """Return the dataclass field of a setting that has a flag."""
    return field(default=default, metadata={"flag": Flag(help_, panel, name, bounds)})


def flags_of(*settings: type[Any]) -> dict[str, tuple[type[Any], Any, Flag]]:
    """Return the flags' names in --help's order, each with class, field and what --help says."""
    found = {
        each.metadata["flag"].name or each.name: (owner, each, each.metadata["flag"])
        for owner in settings
        for each in fields(owner)
        if "flag" in each.metadata
    }
    return dict(sorted(found.items(), key=lambda item: PANELS.index(item[1][2].panel)))
