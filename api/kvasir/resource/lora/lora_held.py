"""An engine pod's annotation of the LoRA adapters that the engine holds. No pydantic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HeldAdapters:
    """Adapters of one run of an engine, as labels.ADAPTERS has them on its pod: written by the
    operator once the engine has answered, read by routers, and void for another run."""

    run: str = ""
    """The run of the engine: uid/restarts."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Directories of the adapters that the engine has loaded, by their names."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Sentences on why it has not loaded others, by their names."""

    def written(self) -> str:
        """Return the annotation's value."""
        made = {"run": self.run, "held": dict(self.held), "refused": dict(self.refused)}
        return json.dumps(made, separators=(",", ":"), sort_keys=True)


def read_held(text: str, run: str) -> HeldAdapters | None:
    """Return what the annotation says of `run`; None where it says nothing, or is of another
    run."""
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(found, dict) or not run or found.get("run") != run:
        return None
    return HeldAdapters(run, _texts(found.get("held")), _texts(found.get("refused")))


def _texts(given: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in given.items()} if isinstance(given, dict) else {}
